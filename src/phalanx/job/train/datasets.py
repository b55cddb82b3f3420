"""Prepared data under PyTorch's own `DataLoader`, and under what is built on it.

`SampleDataset` with `StepBatches` as its `batch_sampler` works with any number of loader processes; the step is counted by who
trains. `StepLoader` is that with a state, and `BatchDataset` fetches ahead by threads of this process instead. Both count what they
have delivered, go on from there each time they are iterated, and have a length, so that who trains by them looks no batch ahead:
what Lightning and Hugging Face's Trainer ask of a loader.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from phalanx.core.errors import DataError
from phalanx.job.data.bad_block import Block
from phalanx.job.data.checked import numbers_of, shown, split_of, steps_of, whole
from phalanx.job.data.deliveries import DeliveryLog, content_of
from phalanx.job.data.draws import DataOrder, part_of, positions, rows_of_rank
from phalanx.job.data.manifest import Split
from phalanx.job.data.open import TokenData
from phalanx.job.data.order import Indices, rank_slice
from phalanx.job.data.quarantine import Touching
from phalanx.job.data.samples import Rows
from phalanx.job.data.sound import STOP, BadData, SoundOrder
from phalanx.job.data.sources import Sources
from phalanx.job.data.stream import DEPTH, THREADS, BatchStream
from phalanx.job.train.delivered import Counted, Delivered, ProcessLoader, Read, refuse_loader_processes

Data = TokenData | Sources
"""One prepared folder, or several as `open_sources` opens them, whose order is `Sources.order`. Where documents are told apart, a
row is [2, sequence + 1]: the tokens, and the number of each token's document in the row."""

_Numbers = Callable[[int], Indices]


def _ranked(
    data: Data, split: Split, sequence: int, order: DataOrder, rank: int, world_size: int
) -> Callable[[DataOrder], _Numbers]:
    """From an order to the numbers of the samples that a rank reads in each step. Raises DataError for an order that is not of the
    data, and as `part_of` does."""
    check_data(data, split, sequence)
    rank, world_size = part_of(order, rank, world_size)
    sizes = data.sizes(split, sequence) if isinstance(data, Sources) else None
    names = order.names if sizes is None else tuple(sizes)
    if order.names != names:
        raise DataError("order", ", ".join(order.names), f"is over other sources than the data, {', '.join(names)}, in this order")
    there = [data.num_samples(split, sequence)] if sizes is None else list(sizes.values())
    for name, wanted, found in zip(names, order.sizes.tolist(), there, strict=False):
        if wanted > found:
            fix = f"{split} of the data has {found} with this `sequence`; make the order by num_samples(split, sequence)"
            raise DataError(f"samples of {name} in the order", wanted, fix)

    def rows(order: DataOrder) -> _Numbers:
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
        rows = self._data.gather(self._split, numbers_of("index", indices), self._sequence)
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


class StepLoader(ProcessLoader):
    """A loader of whole batches of one rank, [samples, sequence + 1], by any number of loader processes, with a state.

    options: of the `DataLoader` that is made for each iteration, such as `num_workers`, `collate_fn`, `pin_memory`. What its
    processes have fetched ahead is not delivered: the state does not depend on their number, and a run may go on with another one.
    Of a batch that the ranks do not divide some have a row more than others: weigh the loss by rows. See `Delivered` for `stop`,
    `epoch_steps` and the state. Damaged data ends it; a state with blocks set aside is read on.
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
        numbers = _ranked(data, split, sequence, order, rank, world_size)
        numbers(order)  # what it cannot read is refused now
        sound = SoundOrder(order, touching(data, split, sequence, order))
        given = Delivered(sound, _manifests(data, order), _places(data, order), stop, epoch_steps)
        dataset = SampleDataset(data, split, sequence)
        super().__init__(given, dataset, lambda order: _listed(numbers(order)), dataset.is_far, options)


class BatchDataset(Counted, IterableDataset[Tensor]):
    """Iterable: whole batches of one rank, [samples, sequence + 1], for `DataLoader(dataset, batch_size=None)` or as it is.

    Of a batch that the ranks do not divide some have a row more than others: weigh the loss by rows. It refuses loader processes,
    which would fetch ahead what nobody has counted; its own threads do that. See `Delivered` for `stop`, `epoch_steps` and the
    state. bad_data: what is done about a damaged block. log: where deliveries are recorded.
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
        self._rows = _ranked(data, split, sequence, order, rank, world_size)
        self._rows(order)  # what it cannot read is refused now
        sound = SoundOrder(order, touching(data, split, sequence, order), bad_data, world_size)
        super().__init__(Delivered(sound, _manifests(data, order), _places(data, order), stop, epoch_steps, log))

    def __iter__(self) -> Iterator[Tensor]:
        refuse_loader_processes()
        for batch in self._delivered.batches(self._stream, self._read):
            yield torch.from_numpy(batch.copy())  # since the array is filled anew

    def _stream(self, order: DataOrder, start: int, end: int | None) -> BatchStream:
        of = (self._data, self._split, self._sequence, self._rows(order), start, end)
        return BatchStream(*of, depth=self._depth, threads=self._threads)

    def _read(self, stream: BatchStream, batch: Rows) -> Read:
        return *self._drawn(stream.newest), content_of(batch)

    def _drawn(self, numbers: Indices) -> tuple[Indices, Indices]:
        """The source of each, and which of its samples it is."""
        if isinstance(self._data, Sources):
            return self._data.drawn(numbers, self._split, self._sequence)
        return np.zeros_like(numbers), numbers


def _listed(numbers: _Numbers) -> Callable[[int], list[Any]]:
    return lambda step: numbers(step).tolist()


def touching(data: Data, split: Split, sequence: int, order: DataOrder) -> Callable[[Block], Touching]:
    """The stretches of samples that need a block, by source."""
    if isinstance(data, Sources):
        return lambda block: data.touching(block, split, sequence)
    return lambda block: {name: data.touching(split, block, sequence) for name in order.names}


def _manifests(data: Data, order: DataOrder) -> Mapping[str, str]:
    return data.manifests if isinstance(data, Sources) else dict.fromkeys(order.names, data.manifest_hash)


def _places(data: Data, order: DataOrder) -> Mapping[str, str]:
    return (
        {name: one.place for name, one in data.opened.items()}
        if isinstance(data, Sources)
        else dict.fromkeys(order.names, data.place)
    )
