"""What earlier jobs taught: how long they ran, and how far predicted starts were off. Frozen; `ran`, `started` make the next one.

Everything is counted in logarithmic bins that forget slowly, so that a history has a bounded size, travels as JSON, and follows a
fleet whose work changes. `lessons.Lessons` keeps one up to date; `eta` predicts from it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from phalanx.decide.scheduler.where.columns import Popular

RUN_BINS: Final = 44
"""Of half a power of two each, from 1 s up: the last one begins at 34 days."""

RATIO_BINS: Final = 44
"""Of a quarter of a power of two each, of run time over limit: the last one ends at 1."""

MISS_BINS: Final = 80
"""Of a fifth of a power of e each, of realised over predicted wait: the middle is 1."""

SOFT_MS: Final = 30_000
"""Added to waits before they are compared: half a minute more or less is no miss of a factor."""

CLASSES_MAX: Final = 256
"""Kept of each kind; when one more comes, the one that knows least is forgotten."""

_FORGET: Final = 1 / 512
"""Of a class's counts, at each new one: about the last 500 say what is expected."""

_QUICK: Final = 1 / 32
"""The same of waits, which change from hour to hour."""

_LEVEL_MIN: Final = 0.75
_LEVEL_MAX: Final = 1.6
"""However many starts in a row are inside or missed: they are of one rush, and the next one may be another."""

_STEP: Final = 0.003
"""By how much one start inside or outside its interval narrows or widens those to come. Small, since what comes of predictions is
known hours later: larger steps swing from too narrow to too wide."""

COVER: Final = 0.8
"""The part of starts that shall fall inside their intervals."""

CAREFUL: Final = 1.2
"""Spanned before anything was learnt."""

_MARGIN: Final = 0.08
"""Aimed at above it: waits come in rushes, and of the first in each nobody knew, so that on a bad day too few are inside."""

Counts = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class History:
    """runs: how long attempts ran, ratios: over their limit, by class ('queue/size'), in bins. waits: how long such jobs waited.
    misses: realised over predicted wait by class of prediction. views: how far off each way to predict is, by size. level: the part
    of `misses` that an interval spans now; it moves until COVER of the starts fall inside, and beyond 1 where all that was ever
    missed does not do. scored, covered: starts that were predicted, and those inside their interval.
    mix: kinds of jobs that were submitted, for the packer."""

    runs: Mapping[str, Counts] = field(default_factory=dict)
    ratios: Mapping[str, Counts] = field(default_factory=dict)
    misses: Mapping[str, Counts] = field(default_factory=dict)
    waits: Mapping[str, Counts] = field(default_factory=dict)
    views: Mapping[str, Counts] = field(default_factory=dict)
    level: float = CAREFUL
    scored: int = 0
    covered: int = 0
    mix: tuple[Popular, ...] = ()


@dataclass(frozen=True, slots=True)
class Predicted:
    """How long a job waits, in milliseconds: by each way to predict (`views`), and what was made of them. runs: its class of run
    times; size: of the gang; names: the classes of predictions that are off alike, from all of them to the narrowest."""

    likely_ms: float
    views: tuple[float, ...]
    runs: str
    size: str
    names: tuple[str, ...]


def size_class(num_devices: int) -> str:
    """Jobs of about a size: 1, 2-8, 9-64, more."""
    return "s" if num_devices <= 1 else "m" if num_devices <= 8 else "l" if num_devices <= 64 else "xl"


def run_class(queue: str, num_devices: int) -> str:
    """Jobs that run about as long as each other, for all that is known."""
    return f"{queue}/{size_class(num_devices)}"


def run_bin(ran_ms: float) -> int:
    """Of a run time."""
    return min(RUN_BINS - 1, max(0, int(2 * math.log2(max(1.0, ran_ms / 1000)))))


def ratio_bin(ratio: float) -> int:
    """Of a part of the limit."""
    return min(RATIO_BINS - 1, max(0, RATIO_BINS + math.ceil(4 * math.log2(max(1e-9, ratio))) - 1))


def miss_bin(predicted_ms: float, realised_ms: float) -> int:
    """Of a wait that was predicted to be `predicted_ms` long."""
    off = math.log((max(0.0, realised_ms) + SOFT_MS) / (max(0.0, predicted_ms) + SOFT_MS))
    return min(MISS_BINS - 1, max(0, math.floor(5 * off) + MISS_BINS // 2))


def ran(history: History, queue: str, num_devices: int, ran_ms: int, limit_ms: int | None) -> History:
    """An attempt ran to its end, its own or its limit's."""
    name = run_class(queue, num_devices)
    runs = _counted(history.runs, name, run_bin(ran_ms), RUN_BINS)
    if limit_ms is None or limit_ms <= 0:
        return replace(history, runs=runs)
    return replace(history, runs=runs, ratios=_counted(history.ratios, name, ratio_bin(ran_ms / limit_ms), RATIO_BINS))


def started(history: History, told: Predicted, waited_ms: float) -> History:
    """A job whose wait was predicted has waited for `waited_ms`."""
    misses = history.misses
    for name in told.names:
        misses = _counted(misses, name, miss_bin(told.likely_ms, waited_ms), MISS_BINS)
    off = tuple(abs(math.log((waited_ms + SOFT_MS) / (view + SOFT_MS))) for view in told.views)
    before = history.views.get(told.size, off)
    seen = tuple(old + _QUICK * (new - old) for old, new in zip(before, off, strict=True))
    waits = _counted(history.waits, told.runs, run_bin(waited_ms), RUN_BINS, _QUICK)
    return replace(history, misses=misses, waits=waits, views={**history.views, told.size: seen})


def scored(history: History, inside: bool) -> History:
    """A predicted start fell inside its interval, or is known not to: the more miss, the wider the next ones are."""
    aim = COVER + _MARGIN
    level = history.level + _STEP * (aim - 1.0 if inside else aim)
    level = min(_LEVEL_MAX, max(_LEVEL_MIN, level))
    return replace(history, level=level, scored=history.scored + 1, covered=history.covered + inside)


def _counted(classes: Mapping[str, Counts], name: str, index: int, size: int, forget: float = _FORGET) -> dict[str, Counts]:
    """`classes` with one more in a bin of the class `name`."""
    counts = [round(count * (1 - forget), 4) for count in classes.get(name, (0.0,) * size)]  # rounded: they travel as text
    counts[index] += 1.0
    after = dict(classes)
    after[name] = tuple(counts)
    if len(after) > CLASSES_MAX:
        del after[min((one for one in after if one != name), key=lambda one: (sum(after[one]), one))]
    return after
