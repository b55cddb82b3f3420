"""Prepared data under PyTorch's own `DataLoader`, and under what is built on it.

`SampleDataset` with `StepBatches` as its `batch_sampler` works with any number of loader processes; the step is counted by who
trains. `StepLoader` is that with a state, and `BatchDataset` fetches ahead by threads of this process instead. Both count what they
have delivered, go on from there each time they are iterated, and have a length, so that who trains by them looks no batch ahead:
what Lightning and Hugging Face's Trainer ask of a loader.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from phalanx.core import wire
from phalanx.core.errors import DataError
from phalanx.job.data.bad_block import Block
from phalanx.job.data.checked import order_of, rank_of, shown, split_of, steps_of, whole
from phalanx.job.data.cursor import Cursor
from phalanx.job.data.deliveries import DeliveryLog, content_of
from phalanx.job.data.draws import DataOrder, positions, rows_of_rank
from phalanx.job.data.manifest import Split
from phalanx.job.data.open import TokenData
from phalanx.job.data.order import Indices, rank_slice
from phalanx.job.data.quarantine import Touching, set_aside_of
from phalanx.job.data.sound import STOP, BadData, SoundOrder, tried
from phalanx.job.data.sources import Sources
from phalanx.job.data.stream import DEPTH, THREADS, BatchStream

Data = TokenData | Sources
"""One prepared folder, or several as `open_sources` opens them, whose order is `Sources.order`. Where documents are told apart, a
row is [2, sequence + 1]: the tokens, and the number of each token's document in the row."""

_Rows = Callable[[int], Indices]


def _ranked(data: Data, split: Split, sequence: int, order: DataOrder, rank: int, world_size: int) -> Callable[[DataOrder], _Rows]:
    """From an order to the numbers of the samples that a rank reads in each step. Raises DataError for an order that is not of the
    data, and for a rank outside its world."""
    check_data(data, split, sequence)
    rank, world_size = rank_of(rank, world_size)
    order_of(order)
    sizes = data.sizes(split, sequence) if isinstance(data, Sources) else None
    names = order.names if sizes is None else tuple(sizes)
    if order.names != names:
        raise DataError("order", ", ".join(order.names), f"is over other sources than the data, {', '.join(names)}, in this order")
    there = [data.num_samples(split, sequence)] if sizes is None else list(sizes.values())
    for name, wanted, found in zip(names, order.sizes.tolist(), there, strict=False):
        if wanted > found:
            fix = f"{split} of the data has {found} with this `sequence`; make the order by num_samples(split, sequence)"
            raise DataError(f"samples of {name} in the order", wanted, fix)

    def rows(order: DataOrder) -> _Rows:
        if isinstance(data, TokenData):
            return rows_of_rank(order, rank, world_size)
        return lambda step: data.numbers(order.draws(rank_slice(positions(order, step), rank, world_size)), split, sequence)

    return rows


def check_data(data: Data, split: Split, sequence: int) -> None:
    """Raises DataError for what is no opened data, no split of it, or no length of samples."""
    if not hasattr(data, "gather"):
        raise DataError("data", shown(data), "give what `open_data` or `open_sources` opened")
    split_of(split)
    whole("sequence", sequence)


class SampleDataset(Dataset[Tensor]):
    """Map-style: sample i of a split, int64 of shape [sequence + 1]. A batch of them is one gather."""

    def __init__(self, data: Data, split: Split, sequence: int) -> None:
        check_data(data, split, sequence)
        self._data, self._split, self._sequence = data, split, sequence

    @property
    def is_far(self) -> bool:
        """Whether some of it lies in a store."""
        return self._data.cache is not None

    def __len__(self) -> int:
        return self._data.num_samples(self._split, self._sequence)

    def __getitem__(self, index: int) -> Tensor:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Tensor]:
        """What `DataLoader` calls for a whole batch."""
        rows = self._data.gather(self._split, np.asarray(indices, dtype=np.int64), self._sequence)
        return list(torch.from_numpy(rows))


class StepBatches:
    """The samples of each step from `start` on and before `stop`, of one rank: a `batch_sampler` in the order of a run over one
    folder."""

    def __init__(self, order: DataOrder, start: int, stop: int, rank: int = 0, world_size: int = 1) -> None:
        start, end = steps_of(start, whole("stop", stop, 0))
        self._rows, self._steps = rows_of_rank(order, rank, world_size), range(start, end or 0)

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[list[int]]:
        return (self._rows(step).tolist() for step in self._steps)


class Delivered:
    """Which batches of a run were delivered. Steps are counted from 0; `stop` is the first that is never delivered.

    epoch_steps: batches of what a trainer takes for an epoch, one iteration; None for all up to `stop`. It has nothing to do with
    the epochs of the data, which the order goes through by itself. After a resume in the middle only the rest of that epoch comes,
    and the next one is whole again.
    """

    def __init__(self, order: SoundOrder, data: Data, stop: int | None, epoch_steps: int | None) -> None:
        steps_of(0, stop)
        if epoch_steps is not None:
            whole("epoch_steps", epoch_steps)
        self._sound, self.stop, self.epoch_steps, self.step = order, stop, epoch_steps, 0
        self._manifests = data.manifests if isinstance(data, Sources) else dict.fromkeys(order.order.names, data.manifest_hash)

    @property
    def order(self) -> DataOrder:
        """In which the next batch is read: without what was set aside."""
        return self._sound.order

    def state_dict(self) -> dict[str, Any]:
        """A data cursor over what was delivered: the same for every rank, and for a gang of any size."""
        cursor: dict[str, Any] = wire.plain(Cursor, Cursor.after(self.step, self.order, self._manifests))
        return cursor

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next batch is the one after those, without what was set aside. Raises DataError for a state of other data or of
        another order, or for none."""
        cursor = Cursor.from_state(state)
        self._sound.resume(cursor)
        self.step = cursor.next_step(self.order, self._manifests)

    def end(self) -> int | None:
        """Where the iteration that goes on now ends; None for never."""
        ends = [] if self.stop is None else [self.stop]
        if self.epoch_steps is not None:
            ends.append((self.step // self.epoch_steps + 1) * self.epoch_steps)
        return max(self.step, min(ends)) if ends else None

    def __len__(self) -> int:
        """Batches of a whole iteration. Raises TypeError, as Python has it, where it never ends."""
        length = self.stop if self.epoch_steps is None else self.epoch_steps
        if length is None:
            raise TypeError("batches without `stop` or `epoch_steps` have no length")
        return length


class StepLoader:
    """A loader of whole batches of one rank, [samples, sequence + 1], by any number of loader processes, with a state.

    options: of the `DataLoader` that is made for each iteration, such as `num_workers`, `collate_fn`, `pin_memory`. What its
    processes have fetched ahead is not delivered: the state does not depend on their number, and a run may go on with another one.
    See `Delivered` for `stop`, `epoch_steps` and the state. Damaged data ends it; a state with blocks set aside is read on.
    """

    def __init__(
        self,
        data: Data,
        split: Split,
        sequence: int,
        order: DataOrder,
        stop: int | None = None,
        *,
        epoch_steps: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        **options: Any,
    ) -> None:
        self.dataset = SampleDataset(data, split, sequence)
        whole("num_workers", options.get("num_workers", 0), 0)
        self._rows, self._options = _ranked(data, split, sequence, order, rank, world_size), options
        self._delivered = Delivered(SoundOrder(order, touching(data, split, sequence, order)), data, stop, epoch_steps)
        self._rows(order)  # what it cannot read is refused now

    def state_dict(self) -> dict[str, Any]:
        return self._delivered.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises DataError for a state of other data or of another order, or for none."""
        self._delivered.load_state_dict(state)

    def __len__(self) -> int:
        return len(self._delivered)

    def __iter__(self) -> Iterator[Any]:
        start, end = self._delivered.step, self._delivered.end()
        rows, steps = self._rows(self._delivered.order), count(start) if end is None else range(start, end)
        batches = (rows(step).tolist() for step in steps)
        own = torch.Generator().manual_seed(start)  # else each iteration, so each resume, would draw from the global one
        loader = DataLoader(self.dataset, batch_sampler=batches, **{"generator": own, **self._processes(), **self._options})
        for step, batch in enumerate(loader, start):
            self._delivered.step = step + 1
            yield batch

    def _processes(self) -> dict[str, Any]:
        """How they are started: no client of a store outlives a fork."""
        if self._options.get("num_workers", 0) and self.dataset.is_far:
            return {"multiprocessing_context": "spawn"}
        return {}


class BatchDataset(IterableDataset[Tensor]):
    """Iterable: whole batches of one rank, [samples, sequence + 1], for `DataLoader(dataset, batch_size=None)` or as it is.

    It refuses loader processes, which would fetch ahead what nobody has counted; its own threads do that. See `Delivered` for
    `stop`, `epoch_steps` and the state. bad_data: what is done about a damaged block. log: where deliveries are recorded.
    """

    def __init__(
        self,
        data: Data,
        split: Split,
        sequence: int,
        order: DataOrder,
        stop: int | None = None,
        *,
        epoch_steps: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        depth: int = DEPTH,
        threads: int = THREADS,
        bad_data: BadData = STOP,
        log: DeliveryLog | None = None,
    ) -> None:
        self._data, self._split, self._sequence = data, split, sequence
        self._depth, self._threads = whole("depth", depth), whole("threads", threads)
        self._rows, self._log = _ranked(data, split, sequence, order, rank, world_size), log
        self._rows(order)  # what it cannot read is refused now
        self._sound = SoundOrder(order, touching(data, split, sequence, order), bad_data, world_size)
        self._delivered = Delivered(self._sound, data, stop, epoch_steps)

    def state_dict(self) -> dict[str, Any]:
        return self._delivered.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises DataError for a state of other data or of another order, or for none."""
        self._delivered.load_state_dict(state)

    def __len__(self) -> int:
        return len(self._delivered)

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        if worker is not None:
            fix = "write 0: threads fetch ahead already, and a loader process would count batches that were never delivered"
            raise DataError("num_workers", worker.num_workers, fix)
        end = self._delivered.end()
        while (yield from self._until_changed(end)):
            pass

    def _until_changed(self, end: int | None) -> Generator[Tensor, None, bool]:
        """Batches in the order as it is. Whether it then is another one, because some rank has met damage."""
        step, rows = self._delivered.step, self._rows(self._delivered.order)
        of = (self._data, self._split, self._sequence, rows, step, end)
        with BatchStream(*of, depth=self._depth, threads=self._threads) as stream:
            while step != end:
                batch, met = tried(stream.__next__)
                if self._sound.changed_by(met, step):
                    return True
                assert batch is not None
                if self._log is not None:
                    self._log.set_aside(set_aside_of(self._delivered.order))
                    self._log.delivered(step, *self._drawn(stream.newest), content_of(batch))
                self._delivered.step = step = stream.step
                yield torch.from_numpy(batch.copy())  # since the array is filled anew
        return False

    def _drawn(self, numbers: Indices) -> tuple[Indices, Indices]:
        """The source of each, and which of its samples it is."""
        if isinstance(self._data, Sources):
            return self._data.drawn(numbers, self._split, self._sequence)
        return np.zeros_like(numbers), numbers


def touching(data: Data, split: Split, sequence: int, order: DataOrder) -> Callable[[Block], Touching]:
    """The stretches of samples that need a block, by source."""
    if isinstance(data, Sources):
        return lambda block: data.touching(block, split, sequence)
    return lambda block: {name: data.touching(split, block, sequence) for name in order.names}
