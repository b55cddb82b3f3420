"""Prepared data under PyTorch's own `DataLoader`, and under what is built on it.

`SampleDataset` with `StepBatches` as its `batch_sampler` works with any number of loader processes; the step is counted by who
trains. `BatchDataset` fetches ahead by threads of this process and counts for itself.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from phalanx.core.errors import DataError
from phalanx.job.data.manifest import Split
from phalanx.job.data.open import TokenData
from phalanx.job.data.stream import DEPTH, THREADS, BatchStream, Cursor, Order


class SampleDataset(Dataset[Tensor]):
    """Map-style: sample i of a split, int64 of shape [sequence + 1]. A batch of them is one gather."""

    def __init__(self, data: TokenData, split: Split, sequence: int) -> None:
        self._data, self._split, self._sequence = data, split, sequence

    def __len__(self) -> int:
        return self._data.num_samples(self._split, self._sequence)

    def __getitem__(self, index: int) -> Tensor:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Tensor]:
        """What `DataLoader` calls for a whole batch."""
        rows = self._data.gather(self._split, np.asarray(indices, dtype=np.int64), self._sequence)
        return list(torch.from_numpy(rows))


class StepBatches:
    """The samples of each step from `start` on and before `stop`: a `batch_sampler` in the order of a run."""

    def __init__(self, order: Order, start: int, stop: int) -> None:
        self._order, self._steps = order, range(start, stop)

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[list[int]]:
        return (self._order(step).tolist() for step in self._steps)


class BatchDataset(IterableDataset[Tensor]):
    """Iterable: whole batches [samples, sequence + 1], for `DataLoader(dataset, batch_size=None)`.

    `state_dict` counts the batches that were delivered. Each iteration goes on from there, up to the step `stop`. It refuses loader
    processes, which would fetch ahead what nobody has counted; its own threads do that.
    """

    def __init__(
        self,
        data: TokenData,
        split: Split,
        sequence: int,
        order: Order,
        stop: int | None = None,
        *,
        depth: int = DEPTH,
        threads: int = THREADS,
    ) -> None:
        self._data, self._split, self._sequence, self._order, self._stop = data, split, sequence, order, stop
        self._depth, self._threads = depth, threads
        self._cursor = Cursor(0, data.manifest_hash)

    def state_dict(self) -> dict[str, int | str]:
        return {"step": self._cursor.step, "manifest_hash": self._cursor.manifest_hash}

    def load_state_dict(self, state: dict[str, int | str]) -> None:
        """Raises DataError, now or when it is iterated, for a state that is none of this data."""
        try:
            self._cursor = Cursor(int(state["step"]), str(state["manifest_hash"]))
        except (KeyError, ValueError, TypeError) as error:
            raise DataError("state", state, "give what state_dict returned") from error

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        if worker is not None:
            fix = "write 0: threads fetch ahead already, and a loader process would count batches that were never delivered"
            raise DataError("num_workers", worker.num_workers, fix)
        of = (self._data, self._split, self._sequence, self._order)
        with BatchStream(*of, self._cursor, self._stop, depth=self._depth, threads=self._threads) as stream:
            for rows in stream:
                self._cursor = stream.cursor
                yield torch.from_numpy(rows.copy())  # since the array is filled anew
