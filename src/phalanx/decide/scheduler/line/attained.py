"""Who comes first when nobody knows how long jobs run: whoever is likeliest to end soon for the service that it still takes.

Service is devices times time. How it is distributed is learned from jobs that ended, and from those that did not although they
were served for long. From it comes Gittins' index: the best rate of completions per service that a job can offer from where it
stands (Gittins 1979; for GPU clusters Tiresias, NSDI 2019). Two things sharpen it. Jobs of one gang size are alike, and jobs of
one size that were submitted next to each other are often one person's campaign: the closer, the more they count. So one job of a
campaign is tried, and the others wait until it has told how long they are. Durations, models and iterations are never read.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.decide.scheduler.line.service_order import Bools, Floats, Ints, ServiceJobs

NUM_BINS: Final = 50
FIRST_EDGE: Final = 60_000
EDGE_RATIO: Final = 1.5
EDGES: Final[Ints] = np.array([0, *(round(FIRST_EDGE * EDGE_RATIO**power) for power in range(NUM_BINS - 1))], dtype=np.int64)
"""Where bins of service begin, in device-milliseconds: a minute of one device, then by half as much again. The last bin is open and
begins at 500 device-years."""

KEPT_MAX: Final = 512
"""Ended jobs of one gang size that are remembered by their place in the line; of older ones only the bin is."""

SIZES_MAX: Final = 64
"""Gang sizes that are told apart; when one more comes, the one that knows least is forgotten."""

RADII: Final = (32, 8, 2)
"""Neighbours on each side, in the line of jobs of one size, that count: the far ones first, corrected by the near ones."""

NEAR_WEIGHT: Final = 3.0
SIZE_WEIGHT: Final = 5.0
PRIOR_WEIGHT: Final = 2.0
"""How many jobs a wider circle counts as when a narrower one corrects it."""

PRIOR_HAZARD: Final = 0.2
"""Of ending within a bin that was reached, before anything is known: the longer served, the longer to go."""

MARGIN: Final = 0.5
"""For `favoured`: by how much a waiting job must be better than one that runs. With too little, long jobs that are all alike take
turns and end together, late, and nothing is learned from them before. On Muri's trace 3 prices of a start from 0 to 60 s give
averages from 270,000 to 277,000 s with 0.5, and from 279,000 to 375,000 s with 0.25."""

HALF: Final = 0.5
"""Of its bin is behind a job, on average."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Jobs of one gang size that ended. sequences: of those remembered one by one, ascending, with their bins. older: how many of
    the others ended in each bin."""

    sequences: tuple[int, ...] = ()
    bins: tuple[int, ...] = ()
    older: tuple[int, ...] = (0,) * NUM_BINS

    def __len__(self) -> int:
        return len(self.sequences) + sum(self.older)


@dataclass(frozen=True, slots=True)
class ServiceHistory:
    """What ended jobs teach, by number of devices. Frozen; `learned` makes the next one."""

    sizes: Mapping[int, Ended] = field(default_factory=dict)


def bin_of(attained: int) -> int:
    """The bin of a service in device-milliseconds."""
    return int(np.searchsorted(EDGES, attained, side="right")) - 1


def next_edge(attained: int) -> int | None:
    """The service at which a job's key changes next for its own sake; None in the last bin."""
    after = bin_of(attained) + 1
    return int(EDGES[after]) if after < NUM_BINS else None


def learned(history: ServiceHistory, num_devices: int, sequence: int, attained: int) -> ServiceHistory:
    """A job ended of itself after so much service."""
    before = history.sizes.get(num_devices, Ended())
    at = bisect_left(before.sequences, sequence)
    sequences = (*before.sequences[:at], sequence, *before.sequences[at:])
    bins = (*before.bins[:at], bin_of(attained), *before.bins[at:])
    after = Ended(sequences, bins, before.older)
    sizes = {**history.sizes, num_devices: _forgetful(after)}
    if len(sizes) > SIZES_MAX:
        del sizes[min((size for size in sizes if size != num_devices), key=lambda size: (len(sizes[size]), size))]
    return ServiceHistory(sizes)


def blind(jobs: ServiceJobs, history: ServiceHistory) -> Floats:
    """Minus Gittins' index of each job, per device-millisecond. `jobs.expected_ms` is not read."""
    keys = np.zeros(len(jobs), dtype=np.float64)
    if not len(jobs):
        return keys
    bins = np.searchsorted(EDGES, jobs.attained, side="right") - 1
    sizes = sorted({*history.sizes, *np.unique(jobs.num_devices).tolist()})
    members = {size: np.flatnonzero(jobs.num_devices == size) for size in sizes}
    lines = {size: _line(history.sizes.get(size, Ended()), jobs.sequence[rows], bins[rows]) for size, rows in members.items()}
    ended = sum(line.ended for line in lines.values())
    reached = sum(line.reached for line in lines.values())
    anywhere = (ended + PRIOR_WEIGHT * PRIOR_HAZARD) / (reached + PRIOR_WEIGHT)
    for size, rows in members.items():
        if len(rows):
            line = lines[size]
            hazards = (line.ended + SIZE_WEIGHT * anywhere) / (line.reached + SIZE_WEIGHT)
            keys[rows] = -_gittins(bins[rows], _near(line, hazards))
    return keys


def _forgetful(ended: Ended) -> Ended:
    """Without the one that was submitted first, once there are too many."""
    if len(ended.sequences) <= KEPT_MAX:
        return ended
    first = ended.bins[0]
    older = (*ended.older[:first], ended.older[first] + 1, *ended.older[first + 1 :])
    return replace(ended, sequences=ended.sequences[1:], bins=ended.bins[1:], older=older)


@dataclass(frozen=True, slots=True)
class _Line:
    """Jobs of one size by sequence, ended and open. places: of the open ones, as they are in the columns. ended, reached: jobs that
    ended in each bin, and that came so far (a half where one is in it now), older ones too."""

    bins: NDArray[np.intp]
    done: Bools
    places: NDArray[np.intp]
    ended: Floats
    reached: Floats


def _line(past: Ended, sequences: Ints, bins: NDArray[np.intp]) -> _Line:
    count = len(past.sequences)
    order = np.argsort(np.concatenate((np.array(past.sequences, dtype=np.int64), sequences)), kind="stable")
    place = np.empty(len(order), dtype=np.intp)
    place[order] = np.arange(len(order))
    every = np.concatenate((np.array(past.bins, dtype=np.intp), bins))
    open_in = np.bincount(bins, minlength=NUM_BINS).astype(np.float64)
    ended = np.bincount(every[:count], minlength=NUM_BINS).astype(np.float64) + np.array(past.older, dtype=np.float64)
    all_in = open_in + ended
    beyond = np.cumsum(all_in[::-1])[::-1] - all_in
    return _Line(every[order], order < count, place[count:], ended, beyond + ended + HALF * open_in)


def _near(line: _Line, hazards: Floats) -> Floats:
    """Of each open job, the hazard of ending in each bin: `hazards` corrected by ever nearer neighbours."""
    columns = np.arange(NUM_BINS)
    here = columns == line.bins[:, None]
    ended = _running_sum(here & line.done[:, None])
    reached = _running_sum((columns < line.bins[:, None]) + here * np.where(line.done, 1.0, HALF)[:, None])
    found = np.broadcast_to(hazards, (len(line.places), NUM_BINS))
    for radius in RADII:
        begin = np.maximum(line.places - radius, 0)
        end = np.minimum(line.places + radius + 1, len(line.bins))
        found = (ended[end] - ended[begin] + NEAR_WEIGHT * found) / (reached[end] - reached[begin] + NEAR_WEIGHT)
    return np.minimum(found, 1.0)


def _running_sum(rows: NDArray[np.float64] | Bools) -> Floats:
    """Of the rows above each row, and of all of them last. Sums of halves, so they are exact."""
    out = np.zeros((len(rows) + 1, rows.shape[1]), dtype=np.float64)
    np.cumsum(rows, axis=0, out=out[1:])
    return out


def _gittins(bins: NDArray[np.intp], hazards: Floats) -> Floats:
    """The best, over how far to serve it, of the chance that a job ends by then over the service that this takes on average. Who
    ends in a bin ends in its middle."""
    edges = EDGES.astype(np.float64)
    widths = np.diff(np.append(edges, edges[-1] * EDGE_RATIO))
    ahead = np.arange(NUM_BINS) >= bins[:, None]
    left = np.cumprod(np.where(ahead, 1.0 - hazards, 1.0), axis=1)
    before = np.concatenate((np.ones((len(bins), 1)), left[:, :-1]), axis=1)
    ends = before - left
    service = np.cumsum(np.where(ahead, widths * (left + HALF * ends), 0.0), axis=1)
    rate = np.divide(1.0 - left, service, out=np.zeros_like(left), where=service > 0)
    return np.asarray(rate.max(axis=1), dtype=np.float64)
