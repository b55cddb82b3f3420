"""Samples of any kind, such as images, under PyTorch's own `DataLoader`, and under what is built on it.

What the bytes mean is the user's to say: `decode` takes a `Sample`, `transform` what that gives and a random generator of the
sample and the epoch, so that augmentation is the same after a resume. `FieldDataset` with `StepDraws` as its `batch_sampler` works
with any number of loader processes; the step is counted by who trains. `FieldLoader` is that with a state. `FieldBatches` makes
batches ahead by threads of this process, which suits decoders that let other threads run, as Pillow's do, and counts for itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset, IterableDataset, default_collate

from phalanx.core.errors import DataError
from phalanx.core.training_data import DataSource, MixtureSource
from phalanx.job.data.ahead import Ahead
from phalanx.job.data.bad_block import Block
from phalanx.job.data.checked import callable_of, integer, names_of, order_of, shown, steps_of, unknown, whole
from phalanx.job.data.deliveries import DeliveryLog, Head
from phalanx.job.data.draws import DataOrder, Draws, part_of
from phalanx.job.data.order_facts import facts_of
from phalanx.job.data.quarantine import Touching
from phalanx.job.data.sound import STOP, BadData, SoundOrder
from phalanx.job.data.stream import DEPTH, THREADS
from phalanx.job.data.tars.open import SampleData
from phalanx.job.data.tars.stream import Decode, Made, Making, Transform, check_lengths, draws_of_rank, made_stream, sources_of
from phalanx.job.data.waits import Cause
from phalanx.job.train.delivered import Counted, Delivered, ProcessLoader, Read, refuse_loader_processes


def _check_making(
    sources: Mapping[str, SampleData], decode: object, transform: object, fields: Sequence[str] | None, seed: object
) -> None:
    """Raises DataError for what would fail at the first sample."""
    callable_of("decode", decode, "from a Sample to what it holds")
    if transform is not None:
        callable_of("transform", transform, "from that and a generator to an item")
    integer("seed", seed)
    names_of("fields", fields)
    for data in sources.values():
        if not isinstance(data, SampleData):
            raise DataError("data", shown(data), "give what `open_samples` opened")
        for name in fields or ():
            if name not in data.fields:
                raise unknown("fields", name, data.fields)


def _checked(
    data: SampleData | Mapping[str, SampleData],
    order: DataOrder,
    decode: object,
    transform: object,
    fields: Sequence[str] | None,
    seed: object,
) -> Mapping[str, SampleData]:
    """The data of each source of the order. Raises DataError for what is none, or too little, and as `_check_making` does."""
    order_of(order)
    if not isinstance(data, SampleData | Mapping):
        raise DataError("data", shown(data), "give what `open_samples` opened, or a mapping of it by the order's sources")
    sources = sources_of(data, order)
    _check_making(sources, decode, transform, fields, seed)
    check_lengths(sources, order)
    return sources


class FieldDataset(Dataset[Any]):
    """Map-style: item i is made of sample i. A pair (epoch, i), as `StepDraws` gives, says for which epoch; else it is epoch 0."""

    def __init__(
        self,
        data: SampleData,
        decode: Decode,
        transform: Transform | None = None,
        *,
        fields: Sequence[str] | None = None,
        seed: int = 0,
    ) -> None:
        """fields: to be read, None for all that a sample has. seed: of the generators."""
        _check_making({"": data}, decode, transform, fields, seed)
        self._data = data
        self._making = Making(decode=decode, transform=transform, fields=fields, seed=seed)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int | tuple[int, int]) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int | tuple[int, int]]) -> list[Any]:
        """What `DataLoader` calls for a whole batch."""
        pairs = [index if isinstance(index, tuple) else (0, index) for index in indices]
        made = self._making.items(self._data, [epoch for epoch, _ in pairs], [number for _, number in pairs])
        return [item for item, _ in made]


class StepDraws:
    """The draws of each step from `start` on and before `stop`, of one rank: a `batch_sampler` for a `FieldDataset`, in a run's
    order. Raises DataError for an order over several sources."""

    def __init__(self, order: DataOrder, start: int, stop: int, rank: int = 0, world_size: int = 1) -> None:
        rank, world_size = part_of(order, rank, world_size)
        start, end = steps_of(start, whole("stop", stop, 0))
        if len(order.names) != 1:
            fix = "is over several sources; read them with `FieldBatches`, or take an order over one"
            raise DataError("order", ", ".join(order.names), fix)
        self._order, self._rank, self._world_size, self._steps = order, rank, world_size, range(start, end or 0)

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for step in self._steps:
            rows = draws_of_rank(self._order, step, self._rank, self._world_size)
            yield list(zip(rows.epoch.tolist(), rows.sample.tolist(), strict=True))


class FieldLoader(ProcessLoader):
    """A loader of whole batches of one rank by any number of loader processes, with a state: as `StepLoader` is for tokens, and
    for decoders that let no other thread run. Of a batch that the ranks do not divide some have a row more than others.
    options: of the `DataLoader` that is made for each iteration, such as `num_workers`.
    """

    def __init__(
        self,
        data: SampleData | Mapping[str, SampleData],
        order: DataOrder,
        decode: Decode,
        transform: Transform | None = None,
        stop: int | None = None,
        *,
        epoch_steps: int | None = None,
        fields: Sequence[str] | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        **options: Any,
    ) -> None:
        """data: of one source, or of each source of the order by its name."""
        sources = _checked(data, order, decode, transform, fields, seed)
        rank, world_size = part_of(order, rank, world_size)
        dataset = _Drawn(list(sources.values()), Making(decode=decode, transform=transform, fields=fields, seed=seed))
        given = Delivered(SoundOrder(order, touching(sources)), _manifests(sources), _places(sources), stop, epoch_steps)
        is_far = any(one.cache is not None for one in sources.values())
        super().__init__(given, dataset, lambda order: _triples(order, rank, world_size), is_far, options)


class _Drawn(Dataset[Any]):
    """An item is asked by its source, epoch and sample."""

    def __init__(self, sources: Sequence[SampleData], making: Making) -> None:
        self._sources, self._making = sources, making

    def __getitems__(self, drawn: Sequence[tuple[int, int, int]]) -> list[Any]:
        columns = np.array(drawn, dtype=np.int64).reshape(-1, 3).T
        return self._making.batch(self._sources, Draws(*columns)).items


class FieldBatches(Counted, IterableDataset[Any]):
    """Iterable: whole batches of one rank, for `DataLoader(dataset, batch_size=None)` or as it is.

    Of a batch that the ranks do not divide some have a row more than others: weigh the loss by rows. It refuses loader processes,
    which would make ahead what nobody has counted; its own threads do that. See `Delivered` for `stop`, `epoch_steps` and the
    state, a data cursor. bad_data: what is done about a damaged sample. log: where deliveries are recorded; see `head`.
    """

    def __init__(
        self,
        data: SampleData | Mapping[str, SampleData],
        order: DataOrder,
        decode: Decode,
        transform: Transform | None = None,
        stop: int | None = None,
        *,
        epoch_steps: int | None = None,
        fields: Sequence[str] | None = None,
        seed: int = 0,
        collate: Callable[[list[Any]], Any] = default_collate,
        rank: int = 0,
        world_size: int = 1,
        depth: int = DEPTH,
        threads: int = THREADS,
        bad_data: BadData = STOP,
        log: DeliveryLog | None = None,
    ) -> None:
        """data: of one source, or of each source of the order by its name."""
        self._sources = _checked(data, order, decode, transform, fields, seed)
        callable_of("collate", collate, "from a list of items to a batch")
        self._making, self._collate = Making(decode=decode, transform=transform, fields=fields, seed=seed), collate
        self._rank, self._world_size = part_of(order, rank, world_size)
        self._depth, self._threads = whole("depth", depth), whole("threads", threads)
        self._ahead: Ahead[tuple[Read, Any]] | None = None
        sound = SoundOrder(order, touching(self._sources), bad_data, world_size)
        super().__init__(Delivered(sound, _manifests(self._sources), _places(self._sources), stop, epoch_steps, log))

    def head(self, attempt: int, generation: int = 0) -> Head:
        """Of the record of what comes from here on, for a `DeliveryLog` that `record` takes, after a state was loaded."""
        given = self._delivered
        asked = DataSource(sources={name: MixtureSource(path=one.place) for name, one in self._sources.items()})
        return Head(
            attempt=attempt, generation=generation, rank=self._rank, world_size=self._world_size, start=given.step,
            order=facts_of(given.order), data=given.manifests, sequence=0,
            fields=None if self._making.fields is None else tuple(sorted(set(self._making.fields))),
            asked=asked.anchored(Path()),
        )  # fmt: skip

    def record(self, log: DeliveryLog | None) -> None:
        """From the next batch on, what is delivered is recorded there; None for nowhere."""
        self._delivered.log = log

    @property
    def waited_s(self) -> Mapping[Cause, float]:
        """In the last iteration, by cause."""
        return {} if self._ahead is None else self._ahead.stats.waited_s

    def __iter__(self) -> Iterator[Any]:
        refuse_loader_processes()
        for _, batch in self._delivered.batches(self._stream, _recorded):
            yield batch

    def _stream(self, order: DataOrder, start: int, end: int | None) -> Ahead[tuple[Read, Any]]:
        self._ahead = made_stream(
            self._sources, order, self._making, self._finished, start, end,
            rank=self._rank, world_size=self._world_size, depth=self._depth, threads=self._threads,
        )  # fmt: skip
        return self._ahead

    def _finished(self, made: Made) -> tuple[Read, Any]:
        """What is recorded of a batch, and the batch, without the items that it was collated of."""
        return (made.rows.source, made.rows.sample, made.contents), self._collate(made.items)


def touching(sources: Mapping[str, SampleData]) -> Callable[[Block], Touching]:
    """The samples that a block is, by source."""
    return lambda block: {name: data.touching(block) for name, data in sources.items()}


def _manifests(sources: Mapping[str, SampleData]) -> Mapping[str, str]:
    return {name: data.manifest_hash for name, data in sources.items()}


def _places(sources: Mapping[str, SampleData]) -> Mapping[str, str]:
    return {name: data.place for name, data in sources.items()}


def _triples(order: DataOrder, rank: int, world_size: int) -> Callable[[int], list[Any]]:
    def rows(step: int) -> list[Any]:
        drawn = draws_of_rank(order, step, rank, world_size)
        return list(zip(drawn.source.tolist(), drawn.epoch.tolist(), drawn.sample.tolist(), strict=True))

    return rows


def _recorded(_: object, given: tuple[Read, Any]) -> Read:
    return given[0]
