"""Batches of samples in a run's order, decoded and transformed ahead of their use by threads."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from phalanx.core.errors import DataError
from phalanx.job.data.ahead import Ahead
from phalanx.job.data.draws import DataOrder, Draws, batch
from phalanx.job.data.order import rank_slice
from phalanx.job.data.stream import DEPTH, THREADS
from phalanx.job.data.tars.open import Sample, SampleData
from phalanx.job.data.waits import Cause, Span

B = TypeVar("B")

Decode = Callable[[Sample], Any]
"""From a sample's bytes to what they mean. Called by several threads at once."""

Transform = Callable[[Any, np.random.Generator], Any]
"""From what was decoded to what is trained on. The generator is one for this sample in this epoch: what it draws is the same after
a resume, and on any number of ranks."""

_CAUSES: Final[tuple[Cause, ...]] = ("start", "order", "read", "verify", "decode", "transform")
_WORD: Final = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """How a sample becomes an item of a batch. fields: to be read, None for all that it has. seed: of the generators."""

    decode: Decode
    transform: Transform | None = None
    fields: Sequence[str] | None = None
    seed: int = 0

    def item(self, data: SampleData, epoch: int, number: int, spans: list[Span] | None = None) -> Any:
        """Raises what reading, decoding and transforming raise, with a note that names the sample."""
        spans = [] if spans is None else spans
        sample = data.read(number, self.fields, lambda *span: spans.append(span))
        try:
            made = self.decode(sample)
            if self.transform is not None:
                began = time.monotonic()
                made = self.transform(made, np.random.default_rng([self.seed & _WORD, epoch, number]))
                spans.append(("transform", began, time.monotonic()))
        except Exception as error:
            error.add_note(f"This was made of sample {number}, {sample.key}, of {data.folder}.")
            raise
        return made


def sources_of(data: SampleData | Mapping[str, SampleData], order: DataOrder) -> dict[str, SampleData]:
    """By the names of the order's sources, in its order. Raises DataError where they are not the same."""
    known = dict.fromkeys(order.names, data) if isinstance(data, SampleData) and len(order.names) == 1 else data
    if isinstance(known, SampleData):
        raise DataError("order", ", ".join(order.names), "is over several sources; give the data of each, by its name")
    if missing := [name for name in order.names if name not in known]:
        raise DataError("data", ", ".join(known) or "(none)", f"lacks {missing[0]}, which is a source of the order; open it too")
    return {name: known[name] for name in order.names}


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

    data: of one source, or of each source of the order by its name. stop: the first step that is not delivered. `depth` batches at
    most are made ahead, each by one of `threads`.
    """
    sources = list(sources_of(data, order).values())

    def fetch(step: int, spans: list[Span]) -> B:
        began = time.monotonic()
        rows = draws_of_rank(order, step, rank, world_size)
        ordered = time.monotonic()
        spans.append(("order", began, ordered))
        places = zip(rows.source.tolist(), rows.epoch.tolist(), rows.sample.tolist(), strict=True)
        made = collate([making.item(sources[source], epoch, number, spans) for source, epoch, number in places])
        spans.append(("decode", ordered, time.monotonic()))
        return made

    return Ahead(fetch, start, stop, depth=depth, threads=threads, named=_CAUSES, name="samples")
