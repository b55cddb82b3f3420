"""What a run will read of each source, and when: `phalanx data mix`. Pure, but for opening the folders.

Everything is counted by the order that training reads by; nothing is estimated.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from phalanx.core.data_asked import MixAsked
from phalanx.core.data_views import MixSourceView, MixView, MixWeightsView
from phalanx.core.errors import DataError
from phalanx.job.data.draws import DataOrder
from phalanx.job.data.mixed import MixedOrder
from phalanx.job.data.sources import open_sources

EPOCHS_WARNED: Final = 4
"""Up to about four epochs, text that is read again is nearly as good as new, and soon after worth little (Muennighoff et al.,
"Scaling Data-Constrained Language Models", NeurIPS 2023)."""

EPOCHS_TOLD: Final = 32
PARTS: Final = 60
_OFF_WARNED: Final = Fraction(1, 100)
"""Of the share that was asked for; what rounding changes by less is not worth a word."""

STEPS_MAX: Final = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a source has."""

    path: str
    tokens: int
    samples: int


def outlook(asked: MixAsked) -> MixView:
    """Raises DataError for folders that are not there, without one sample, or of other tokens than the rest."""
    for name, value in (("steps", asked.steps), ("batch", asked.batch), ("sequence", asked.sequence), ("first", asked.first)):
        if not 1 <= value <= STEPS_MAX:
            raise DataError(f"--{name}", value, f"write a whole number from 1 to {STEPS_MAX}")
    data = open_sources(asked.data)
    order = data.order(asked.sequence, seed=asked.seed, global_batch=asked.batch)
    sizes = data.sizes("train", asked.sequence)
    held = {
        name: Held(path=asked.data.paths[name], tokens=one.num_tokens("train"), samples=sizes[name])
        for name, one in data.opened.items()
    }
    return outlook_of(asked, order, held)


def outlook_of(asked: MixAsked, order: DataOrder, held: Mapping[str, Held]) -> MixView:
    """From the order alone. held: by the name of the source."""
    reads = _Reads(order, asked.steps)
    first = min(asked.first, asked.steps)
    weights = _weights(order, reads, asked)
    early, read = reads.upto(first), reads.upto(asked.steps)
    sources = tuple(
        MixSourceView(
            name=name, path=held[name].path, tokens=held[name].tokens, samples=held[name].samples, asked=weights[0].asked[name],
            first=early[name] / (first * asked.batch), whole=read[name] / (asked.steps * asked.batch), read=read[name],
            epochs=read[name] / held[name].samples, next_epochs=tuple(_next_epochs(reads, name, held[name].samples)),
        )
        for name in order.names
    )  # fmt: skip
    return MixView(
        steps=asked.steps, batch=asked.batch, sequence=asked.sequence, seed=asked.seed, packing=asked.data.packing, first=first,
        sources=sources, weights=weights, parts=_parts(reads, asked),
        warnings=(*_warnings(sources, weights, asked), *_rounded(order, {name: one.samples for name, one in held.items()})),
    )  # fmt: skip


class _Reads:
    """How many samples of each source the first steps have, of an order of any kind."""

    def __init__(self, order: DataOrder, steps: int) -> None:
        self._order, self.steps = order, steps

    def upto(self, step: int) -> dict[str, int]:
        order = self._order
        return order.drawn(step) if isinstance(order, MixedOrder) else {order.names[0]: step * order.global_batch}

    def of(self, name: str, step: int) -> int:
        order = self._order
        return order.drawn_of(name, step) if isinstance(order, MixedOrder) else step * order.global_batch

    def within(self, begin: int, end: int) -> dict[str, int]:
        before = self.upto(begin)
        return {name: count - before[name] for name, count in self.upto(end).items()}


def _next_epochs(reads: _Reads, name: str, samples: int) -> Iterator[int]:
    """The step that reads the first sample of an epoch is the first one with more than all those before it."""
    step = 0
    for epoch in range(1, min((reads.of(name, reads.steps) - 1) // samples, EPOCHS_TOLD) + 1):
        low, high = step, reads.steps - 1  # the last step before which no more than `epoch` epochs were read
        while low < high:
            middle = (low + high) // 2
            if reads.of(name, middle + 1) > epoch * samples:
                high = middle
            else:
                low = middle + 1
        step = low
        yield step


def _weights(order: DataOrder, reads: _Reads, asked: MixAsked) -> tuple[MixWeightsView, ...]:
    """Those that come into force while the run lasts."""
    begins = [0, *(change.from_step for change in asked.data.changes if change.from_step < asked.steps)]
    ends = [*begins[1:], asked.steps]
    return tuple(
        MixWeightsView(after_step=begin, steps=end - begin, asked=_shares(order, begin), read=reads.within(begin, end))
        for begin, end in zip(begins, ends, strict=True)
    )


def _shares(order: DataOrder, step: int) -> dict[str, float]:
    if not isinstance(order, MixedOrder):
        return dict.fromkeys(order.names, 1.0)
    return {name: float(share) for name, share in order.shares(step).items()}


def _parts(reads: _Reads, asked: MixAsked) -> dict[str, tuple[float, ...]]:
    """Shares over the run."""
    count = min(PARTS, asked.steps)
    ends = [asked.steps * part // count for part in range(count + 1)]
    drawn = [reads.upto(end) for end in ends]
    return {
        name: tuple(
            (drawn[part + 1][name] - drawn[part][name]) / ((ends[part + 1] - ends[part]) * asked.batch) for part in range(count)
        )
        for name in drawn[0]
    }


def _warnings(sources: tuple[MixSourceView, ...], weights: tuple[MixWeightsView, ...], asked: MixAsked) -> Iterator[str]:
    for source in sources:
        if source.epochs > EPOCHS_WARNED:
            yield (
                f"{source.name} is read {source.epochs:,.1f} times: beyond {EPOCHS_WARNED} epochs text that is read again teaches "
                "little; give it a smaller share, or more text"
            )
        if source.read == 0:
            wanted = max(one.asked[source.name] for one in weights)
            why = f"its share of {wanted:.3g} is less than one sample of this run" if wanted else "it has no weight at any step"
            yield f"{source.name} is never read: {why}"
    for change in asked.data.changes:
        if change.from_step >= asked.steps:
            yield f"the weights from step {change.from_step} on never come into force: the run ends after {asked.steps} steps"


def _rounded(order: DataOrder, sizes: Mapping[str, int]) -> Iterator[str]:
    """Weights become whole numbers below 2^31; where that changes a share, it is said."""
    if not isinstance(order, MixedOrder):
        return
    rows = [(0, order.mixture.weights(sizes))]
    rows += [(change.from_step, order.mixture.changed(change)) for change in order.mixture.changes]
    for from_step, row in rows:
        got, total = order.shares(from_step), sum(row)
        for name, weight in zip(order.names, row, strict=True):
            share = weight / total
            if abs(got[name] - share) > share * _OFF_WARNED:
                where = f" from step {from_step} on" if from_step else ""
                yield (
                    f"{name}{where} asks for a share of {float(share):.3g} and gets {float(got[name]):.3g}: weights that lie so "
                    "far apart are rounded; write ones that are nearer to each other"
                )
