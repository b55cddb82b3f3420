"""Prepared data under PyTorch's own `DataLoader`, and under what is built on it.

`SampleDataset` with `StepBatches` as its `batch_sampler` works with any number of loader processes; the step is counted by who
trains. `BatchDataset` fetches ahead by threads of this process and counts for itself.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from phalanx.core import wire
from phalanx.core.errors import DataError
from phalanx.job.data.cursor import Cursor
from phalanx.job.data.draws import DataOrder, rows_of_rank
from phalanx.job.data.manifest import Split
from phalanx.job.data.open import TokenData
from phalanx.job.data.stream import DEPTH, THREADS, BatchStream


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
    """The samples of each step from `start` on and before `stop`, of one rank: a `batch_sampler` in the order of a run."""

    def __init__(self, order: DataOrder, start: int, stop: int, rank: int = 0, world_size: int = 1) -> None:
        self._rows, self._steps = rows_of_rank(order, rank, world_size), range(start, stop)

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[list[int]]:
        return (self._rows(step).tolist() for step in self._steps)


class BatchDataset(IterableDataset[Tensor]):
    """Iterable: whole batches of one rank, [samples, sequence + 1], for `DataLoader(dataset, batch_size=None)`.

    `state_dict` is a data cursor over the batches that were delivered: the same for every rank, and for a gang of any size. Each
    iteration goes on from there, up to the step `stop`. It refuses loader processes, which would fetch ahead what nobody has
    counted; its own threads do that.
    """

    def __init__(
        self,
        data: TokenData,
        split: Split,
        sequence: int,
        order: DataOrder,
        stop: int | None = None,
        *,
        rank: int = 0,
        world_size: int = 1,
        depth: int = DEPTH,
        threads: int = THREADS,
    ) -> None:
        self._data, self._split, self._sequence, self._order, self._stop = data, split, sequence, order, stop
        self._rank, self._world_size, self._depth, self._threads = rank, world_size, depth, threads
        self._manifests = dict.fromkeys(order.names, data.manifest_hash)
        self._step = 0

    def state_dict(self) -> dict[str, Any]:
        cursor: dict[str, Any] = wire.plain(Cursor, Cursor.after(self._step, self._order, self._manifests))
        return cursor

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises DataError for a state of other data or of another order, or for none."""
        self._step = Cursor.from_json(json.dumps(dict(state))).next_step(self._order, self._manifests)

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        if worker is not None:
            fix = "write 0: threads fetch ahead already, and a loader process would count batches that were never delivered"
            raise DataError("num_workers", worker.num_workers, fix)
        of = (self._data, self._split, self._sequence, rows_of_rank(self._order, self._rank, self._world_size))
        with BatchStream(*of, self._step, self._stop, depth=self._depth, threads=self._threads) as stream:
            for rows in stream:
                self._step = stream.step
                yield torch.from_numpy(rows.copy())  # since the array is filled anew
