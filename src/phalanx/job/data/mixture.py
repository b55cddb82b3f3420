"""What is mixed in which shares: `Mixture([Source("code", weight=0.3), Source("books", weight=0.7)])`.

A mixture is what a user asks for, without data; `mixed.MixedOrder` is the order that it gives over sources of known sizes.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import Final

from phalanx.core.errors import DataError
from phalanx.job.data.blocks import FULL, Shuffle
from phalanx.job.data.checked import fraction, shown, whole

SOURCES_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Source:
    """One data set of a mixture.

    weight: its share of all samples, beside the others' weights; 0 for a source that has its share only from a later change on.
    epochs: instead of a weight, how often it is read while the whole mixture is read once. Neither, for all sources: by size.
    shuffle: how its epochs are ordered.
    """

    name: str
    _: KW_ONLY
    weight: float | None = None
    epochs: float | None = None
    shuffle: Shuffle = FULL

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise DataError("source", shown(self.name), "give it a name; its order depends on it")
        if self.weight is not None and self.epochs is not None:
            raise DataError(f"source {self.name}", f"weight {self.weight} and epochs {self.epochs}", "give one of them")
        for field, value in (("weight", self.weight), ("epochs", self.epochs)):
            if value is not None:
                check_weight(f"{field} of {self.name}", value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Other weights from a step on, counted from 0. weights: by source; a source that is left out is not read from then on."""

    from_step: int
    weights: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Mixture:
    """Sources and how much of each.

    temperature: for sources without weights, their sizes are raised to 1 / temperature: 1 reads each in proportion to its size,
    higher ones even the sources out. changes: in the order of their steps.
    """

    sources: Sequence[Source]
    _: KW_ONLY
    temperature: float | None = None
    changes: Sequence[Change] = ()

    def __post_init__(self) -> None:
        for source in self.sources:
            if not isinstance(source, Source):
                raise DataError("sources", shown(source), "give a list of sources, such as [Source('web', weight=1)]")
        names = [source.name for source in self.sources]
        if not 1 <= len(names) <= SOURCES_MAX:
            raise DataError("sources", len(names), f"name 1 to {SOURCES_MAX} of them")
        if twice := sorted(name for name, times in Counter(names).items() if times > 1):
            raise DataError("sources", twice, "give each source a name of its own")
        self._check_weights()
        self._check_changes(set(names))

    def weights(self, sizes: Mapping[str, int]) -> list[Fraction]:
        """Of the sources, in their order, before any change. sizes: samples of each."""
        if self.sources[0].weight is not None:
            return [_exact(source.weight or 0) for source in self.sources]
        if self.sources[0].epochs is not None:
            return [_exact(source.epochs or 0) * sizes[source.name] for source in self.sources]
        if self.temperature is None or self.temperature == 1:
            return [Fraction(sizes[source.name]) for source in self.sources]
        return [Fraction(float(sizes[source.name]) ** (1 / self.temperature)) for source in self.sources]

    def changed(self, change: Change) -> list[Fraction]:
        """Weights of the sources, in their order, from a change on."""
        return [_exact(change.weights.get(source.name, 0)) for source in self.sources]

    def _check_weights(self) -> None:
        given = {(source.weight is not None, source.epochs is not None) for source in self.sources}
        if len(given) > 1:
            lacking = [source.name for source in self.sources if source.weight is None and source.epochs is None]
            raise DataError("sources", lacking or "weights and epochs", "give all sources a weight, or all epochs, or none of both")
        if self.temperature is not None:
            if given != {(False, False)}:
                raise DataError(
                    "temperature", self.temperature, "is for sources by their sizes; leave it out, or weights and epochs"
                )
            if not (0 < fraction("temperature", self.temperature) < math.inf):
                raise DataError(
                    "temperature", self.temperature, "write a number above 0; 1 reads sources in proportion to their sizes"
                )
        if given != {(False, False)} and not any(source.weight or source.epochs for source in self.sources):
            raise DataError("sources", 0, "no source has a share; give one a weight above 0")

    def _check_changes(self, names: set[str]) -> None:
        before = 0
        for change in self.changes:
            if whole("from_step of a change", change.from_step, 0) <= before:
                raise DataError("changes", change.from_step, "write changes in the order of their steps, the first after step 0")
            before = change.from_step
            if not isinstance(change.weights, Mapping):
                raise DataError("weights of a change", shown(change.weights), "give a mapping, such as {'web': 1}")
            field = f"weights from step {change.from_step}"
            for name, weight in change.weights.items():
                if name not in names:
                    raise DataError(field, name, f"is no source of this mixture; it has {', '.join(sorted(names))}")
                check_weight(f"{field} of {name}", weight)
            if not any(change.weights.values()):
                raise DataError(field, 0, "no source has a share; give one a weight above 0")


def check_weight(field: str, value: float) -> None:
    """Raises DataError for what is no share."""
    if not (0 <= fraction(field, value) < math.inf):
        raise DataError(field, value, "write a number from 0 up")


def _exact(number: float) -> Fraction:
    """What was written: 0.3 is three tenths, not the nearest binary fraction."""
    return Fraction(str(number))
