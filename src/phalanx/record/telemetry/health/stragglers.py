"""Which rank is slower than its peers, from the time of each rank's own local work. Pure but for the window it is asked to keep.

Step times say nothing: in a gang every rank waits for the slowest. `StepRecord.local_us` is what a rank computes between two
collectives, so a slow card, a hot one or a busy host shows in it, and nobody waits for anything to measure it. It is 0 where ranks
wait for each other inside a block, as with a layout's `tp`, `cp` or `ep`: such a gang is not judged.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from phalanx.core.records import StepRecord

RATIO: Final = 1.25
"""Cards of one type differ by a few percent; a throttled or shared one is often a third slower, and costs the gang as much."""
WINDOW: Final = 32
MOST: Final = 24
"""Of the last WINDOW steps. A rank that is slow in three of ten by chance would be that often once in 10^7 windows."""
PENDING_MAX: Final = 96
"""Steps for which not every rank has spoken yet: records come in bursts, and a rank may lag behind by some."""

_Ratios = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Outlier:
    """A rank that was slow in `slow` of the last `steps`. ratio: median, over these, of its local time over its peers' median;
    local_us, peers_us: medians of both."""

    rank: int
    step: int
    ratio: float
    slow: int
    steps: int
    local_us: int
    peers_us: int


class Window:
    """The newest steps of one attempt of `num_ranks`. Each rank is named once."""

    def __init__(self, num_ranks: int, known: Iterable[int] = ()) -> None:
        """`known`: ranks that were named before."""
        self._num_ranks = num_ranks
        self._ranks = tuple(range(num_ranks))
        self._named = set(known)
        self._pending: dict[int, dict[int, int]] = {}
        self._whole: deque[tuple[npt.NDArray[np.int64], _Ratios]] = deque(maxlen=WINDOW)

    def goes_on_without(self, absent: Collection[int]) -> None:
        """Ranks that have no part in the gang now. Where others have, times of before are of another gang."""
        ranks = tuple(rank for rank in range(self._num_ranks) if rank not in absent)
        if ranks != self._ranks:
            self._ranks = ranks
            self._pending.clear()
            self._whole.clear()

    def take(self, records: Iterable[StepRecord]) -> list[Outlier]:
        """Who turned out to be an outlier by these. Records without local time, and of ranks that there are not, are
        ignored."""
        found: list[Outlier] = []
        for record in records:
            if record.local_us > 0 and record.rank in self._ranks and len(self._ranks) > 1:
                times = self._pending.setdefault(record.step, {})
                times[record.rank] = record.local_us
                if len(times) == len(self._ranks):
                    del self._pending[record.step]
                    found += self._judge(record.step, times)
        while len(self._pending) > PENDING_MAX:
            del self._pending[min(self._pending)]
        return found

    def _judge(self, step: int, times: Mapping[int, int]) -> list[Outlier]:
        local_us = np.array([times[rank] for rank in self._ranks], dtype=np.int64)
        self._whole.append((local_us, local_us / peers_median(local_us)))
        if len(self._whole) < MOST:
            return []
        slow = np.sum([ratios >= RATIO for _, ratios in self._whole], axis=0)
        fresh = [int(place) for place in np.flatnonzero(slow >= MOST) if self._ranks[place] not in self._named]
        self._named.update(self._ranks[place] for place in fresh)
        return [self._outlier(place, step, int(slow[place])) for place in fresh]

    def _outlier(self, place: int, step: int, slow: int) -> Outlier:
        """place: of the rank, among those that have a part in the gang."""
        local_us = [float(times[place]) for times, _ in self._whole]
        ratios = [float(of[place]) for _, of in self._whole]
        peers_us = [mine / ratio for mine, ratio in zip(local_us, ratios, strict=True)]
        ratio, mine_us, theirs_us = (float(np.median(values)) for values in (ratios, local_us, peers_us))
        return Outlier(self._ranks[place], step, ratio, slow, len(self._whole), round(mine_us), round(theirs_us))


def peers_median(values: npt.NDArray[np.int64]) -> _Ratios:
    """For each of two or more values the median of the others: of two ranks, a slow one is no part of what it is held against."""
    order = np.argsort(values, kind="stable")
    ordered = values[order].astype(np.float64)
    place = np.empty(len(values), dtype=np.int64)
    place[order] = np.arange(len(values))
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    others: _Ratios = (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2
    return others
