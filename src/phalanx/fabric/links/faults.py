"""Who is at fault when a pair of ranks is slow: one of the two, or what lies between them alone.

A rank reaches with its better partners what its own link allows: the upper quartile of its pairs. One whose own is far below the
median of all is slow itself, and explains all its slow pairs; a pair far below what both its ranks reach with others is a slow
link. Far below: by more than the spread of all explains (four standard deviations, from the median absolute deviation), but at
least by LEAST, so that even noise names nobody, and at most by MOST, since of few the spread is known badly.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

FEWEST: Final = 3
"""Ranks that can be compared: of two nobody knows which is slow."""
LEAST: Final = 0.2
MOST: Final = 0.4
SPREADS: Final = 4 * 1.4826
"""Times the median absolute deviation; 1.4826 makes a standard deviation of it (for normal noise)."""

Edge = tuple[int, int]
Rates = Mapping[Edge, float]
"""Bytes a second of each pair (lower rank, higher rank), all of one class of links."""


@dataclass(frozen=True, slots=True)
class Slow:
    """ranks: one that is slow itself, or the two ends of a slow link. rate: what it reaches; usual: what it should."""

    ranks: tuple[int, ...]
    rate: float
    usual: float
    pairs: int = 1

    @property
    def part(self) -> float:
        return self.rate / self.usual


def slow(rates: Rates) -> tuple[Slow, ...]:
    """Ranks first, then links. Two ranks have nobody to be compared with: then nothing is named.

    A rank that was measured with one other only cannot be told from its link: then the link is named.
    """
    of_rank = dict[int, list[float]]()
    for pair, rate in rates.items():
        for rank in pair:
            of_rank.setdefault(rank, []).append(rate)
    if not comparable(rates):
        return ()
    reach = {rank: _upper(found) for rank, found in of_rank.items()}
    usual = median(reach.values())
    floor = usual * (1 - _limit([value / usual for value in reach.values()]))
    judged = {rank for rank in reach if len(of_rank[rank]) > 1}
    ranks = [rank for rank in sorted(judged) if reach[rank] < floor]
    found = [Slow((rank,), reach[rank], usual, len(of_rank[rank])) for rank in ranks]
    expected = {rank: reach[rank] if rank in judged else usual for rank in reach}
    return (*found, *_slow_links(rates, expected, set(ranks)))


def comparable(rates: Rates) -> bool:
    return len({rank for pair in rates for rank in pair}) >= FEWEST


def suspects(rates: Rates) -> list[Edge]:
    """Pairs that are measured once more before anybody is named: of slow ranks all, and the slow links."""
    named = slow(rates)
    alone = {one.ranks[0] for one in named if len(one.ranks) == 1}
    links = {one.ranks for one in named if len(one.ranks) == 2}
    return [pair for pair in rates if alone.intersection(pair) or pair in links]


def slow_values(values: Mapping[int, float]) -> tuple[Slow, ...]:
    """Ranks whose own value, such as arithmetic, is far below the median of all; of fewer than three nobody."""
    if len(values) < FEWEST:
        return ()
    usual = median(values.values())
    floor = usual * (1 - _limit([value / usual for value in values.values()]))
    return tuple(Slow((rank,), value, usual) for rank, value in sorted(values.items()) if value < floor)


def whole(found: Iterable[int], group_of: Mapping[int, Hashable]) -> dict[Hashable, list[int]]:
    """Groups of two ranks or more, all of which were found; what they have in common is at fault."""
    sizes, seen = dict[Hashable, int](), dict[Hashable, list[int]]()
    for group in group_of.values():
        sizes[group] = sizes.get(group, 0) + 1
    for rank in found:
        seen.setdefault(group_of[rank], []).append(rank)
    return {group: ranks for group, ranks in seen.items() if len(ranks) == sizes[group] > 1}


def _slow_links(rates: Rates, expected: Mapping[int, float], slow_ranks: set[int]) -> list[Slow]:
    parts = {pair: rate / min(expected[rank] for rank in pair) for pair, rate in rates.items() if not slow_ranks.intersection(pair)}
    if not parts:
        return []
    floor = 1 - _limit(list(parts.values()))
    return [Slow(pair, rates[pair], rates[pair] / part) for pair, part in sorted(parts.items()) if part < floor]


def _limit(parts: Sequence[float]) -> float:
    """How far below is too far."""
    middle = median(parts)
    return min(MOST, max(LEAST, SPREADS * median(abs(part - middle) for part in parts) / middle))


def _upper(found: Sequence[float]) -> float:
    """Upper quartile: the greater of its two neighbours."""
    ordered = sorted(found)
    return ordered[math.ceil(0.75 * (len(ordered) - 1))]
