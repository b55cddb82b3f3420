"""Batches of samples in a run's order, decoded and transformed ahead of their use by threads."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError
from phalanx.job.data.ahead import Ahead, Tell
from phalanx.job.data.bad_block import BadBlock
from phalanx.job.data.draws import DataOrder, Draws, batch, part_of
from phalanx.job.data.order import rank_slice
from phalanx.job.data.stream import DEPTH, THREADS
from phalanx.job.data.tars.open import Sample, SampleData, all_of
from phalanx.job.data.waits import CAUSES

if TYPE_CHECKING:
    from phalanx.job.data.read_ahead import ReadAhead

B = TypeVar("B")

Decode = Callable[[Sample], Any]
"""From a sample's bytes to what they mean. Called by several threads at once."""

Transform = Callable[[Any, np.random.Generator], Any]
"""From what was decoded to what is trained on. The generator is one for this sample in this epoch: what it draws is the same after
a resume, and on any number of ranks."""

_WORD: Final = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """How a sample becomes an item of a batch. fields: to be read, None for all that it has. seed: of the generators."""

    decode: Decode
    transform: Transform | None = None
    fields: Sequence[str] | None = None
    seed: int = 0

    def items(
        self, data: SampleData, epochs: Sequence[int], numbers: Sequence[int], tell: Tell | None = None
    ) -> Iterator[tuple[Any, int]]:
        """Of these samples of a data set, in these epochs, each with its sample's `content`. Raises what reading, decoding and
        transforming raise, with a note that names the sample."""
        for epoch, sample in zip(epochs, data.read_all(numbers, self.fields, tell), strict=True):
            try:
                yield self._made(sample, epoch, tell), sample.content
            except Exception as error:
                error.add_note(f"This was made of sample {sample.number}, {sample.key}, of {data.place}.")
                raise

    def batch(self, sources: Sequence[SampleData], rows: Draws, tell: Tell | None = None) -> "Made":
        """Of the sources of an order, by number. Raises as `items` does; of damage, when all that there is of it in the batch is
        known."""
        items: list[Any] = [None] * len(rows)
        contents = np.zeros(len(rows), dtype=np.uint64)
        bad: list[BadBlock] = []
        for source in np.unique(rows.source).tolist():
            at = np.flatnonzero(rows.source == source)
            mine = rows.take(at)
            made = self.items(sources[source], mine.epoch.tolist(), mine.sample.tolist(), tell)
            try:
                for row, (item, content) in zip(at.tolist(), made, strict=True):
                    items[row], contents[row] = item, content
            except BadBlock as error:
                bad.append(error)
        if bad:
            raise all_of(bad)
        return Made(items, rows, contents)

    def _made(self, sample: Sample, epoch: int, tell: Tell | None) -> Any:
        made = self.decode(sample)
        if self.transform is None:
            return made
        began = time.monotonic()
        made = self.transform(made, generator_of(self.seed, epoch, sample.number))
        if tell is not None:
            tell("transform", began, time.monotonic())
        return made


def generator_of(seed: int, epoch: int, number: int) -> np.random.Generator:
    """Of a sample in an epoch, for what is drawn about it."""
    return np.random.default_rng([seed & _WORD, epoch, number])


@dataclass(frozen=True, slots=True)
class Made:
    """A batch before it is collated. rows: which samples it is of. contents: of each, `Sample.content`."""

    items: list[Any]
    rows: Draws
    contents: NDArray[np.uint64]


def sources_of(data: SampleData | Mapping[str, SampleData], order: DataOrder) -> dict[str, SampleData]:
    """By the names of the order's sources, in its order. Raises DataError where they are not the same."""
    known = dict.fromkeys(order.names, data) if isinstance(data, SampleData) and len(order.names) == 1 else data
    if isinstance(known, SampleData):
        raise DataError("order", ", ".join(order.names), "is over several sources; give the data of each, by its name")
    if missing := [name for name in order.names if name not in known]:
        raise DataError("data", ", ".join(known) or "(none)", f"lacks {missing[0]}, which is a source of the order; open it too")
    return {name: known[name] for name in order.names}


def check_lengths(sources: Mapping[str, SampleData], order: DataOrder) -> None:
    """Raises DataError for an order of more samples than there are, which would fail at the first batch that draws one of these."""
    for name, wanted in zip(order.names, order.sizes.tolist(), strict=True):
        if wanted > (there := len(sources[name])):
            raise DataError(f"samples of {name} in the order", wanted, f"the data has {there}; make the order by len(data)")


def draws_of_rank(order: DataOrder, step: int, rank: int, world_size: int) -> Draws:
    """The rows of a step's batch, counted from 0, that `rank` reads, in order."""
    whole = batch(order, step)
    return Draws(*(rank_slice(column, rank, world_size) for column in (whole.source, whole.epoch, whole.sample)))


def sample_stream(
    data: SampleData | Mapping[str, SampleData],
    order: DataOrder,
    making: Making,
    collate: Callable[[list[Any]], B],
    start: int = 0,
    stop: int | None = None,
    *,
    rank: int = 0,
    world_size: int = 1,
    depth: int = DEPTH,
    threads: int = THREADS,
) -> Ahead[B]:
    """The batches of one rank from the step `start` on, counted from 0: an iterator of what `collate` makes of a batch's items.
    See `made_stream`."""
    of = (data, order, making, lambda made: collate(made.items), start, stop)
    return made_stream(*of, rank=rank, world_size=world_size, depth=depth, threads=threads)


def made_stream(
    data: SampleData | Mapping[str, SampleData],
    order: DataOrder,
    making: Making,
    finish: Callable[[Made], B],
    start: int = 0,
    stop: int | None = None,
    *,
    rank: int = 0,
    world_size: int = 1,
    depth: int = DEPTH,
    threads: int = THREADS,
) -> Ahead[B]:
    """The batches of one rank from the step `start` on, counted from 0: an iterator of what `finish` makes of them.

    data: of one source, or of each source of the order by its name. stop: the first step that is not delivered. `depth` batches at
    most are made ahead, each by one of `threads`.
    """
    by_name = sources_of(data, order)
    check_lengths(by_name, order)
    sources = list(by_name.values())
    rank, world_size = part_of(order, rank, world_size)

    def fetch(step: int, tell: Tell) -> B:
        began = time.monotonic()
        rows = draws_of_rank(order, step, rank, world_size)
        ordered = time.monotonic()
        tell("order", began, ordered)
        made = finish(making.batch(sources, rows, tell))
        tell("decode", ordered, time.monotonic())
        return made

    def read_ahead(tell: Tell) -> "ReadAhead | None":
        return samples_ahead(sources, making.fields, lambda step: draws_of_rank(order, step, rank, world_size), start, stop, tell)

    return Ahead(fetch, start, stop, depth=depth, threads=threads, named=CAUSES, name="samples", read_ahead=read_ahead)


def samples_ahead(
    sources: Sequence[SampleData],
    fields: Sequence[str] | None,
    rows: Callable[[int], Draws],
    start: int,
    stop: int | None,
    tell: Tell | None = None,
) -> "ReadAhead | None":
    """What fetches the steps to come of those that lie in a store; None where none does."""
    caches = [data.cache for data in sources if data.cache is not None]
    if not caches:
        return None
    from phalanx.job.data.read_ahead import ReadAhead  # what data in folders does without
    from phalanx.job.data.tars.stored import StoredTars

    def needs(step: int) -> Iterator[tuple[StoredTars, list[int]]]:
        drawn = rows(step)
        for number, data in enumerate(sources):
            mine = drawn.sample[drawn.source == number].tolist()
            if mine and isinstance(data.tars, StoredTars):
                yield data.tars, data.tars.needed(data.asked(mine, fields, tell))

    return ReadAhead(caches[0], needs, start, stop)
