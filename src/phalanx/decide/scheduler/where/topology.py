"""Which of the nodes that would do: near together, so that ranks that talk much lie near, and leaving large holes whole.

Tiers are a tree over the nodes: domains in racks in blocks. A gang is laid into the smallest container that holds it, of those into
the one with the least room besides; what spans several takes the fewest of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phalanx.core.policy import TIERS, Tier
from phalanx.decide.scheduler.snapshot import Shape

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Terrain:
    """Tiers of which some node has a label, nearest first, with the number of each node's container in each."""

    tiers: tuple[Tier, ...]
    numbers: tuple[Numbers, ...]

    def of(self, tier: Tier) -> Numbers | None:
        return self.numbers[self.tiers.index(tier)] if tier in self.tiers else None

    def outward(self, tier: Tier) -> tuple[Numbers, ...]:
        """That tier and wider ones."""
        return tuple(
            number for name, number in zip(self.tiers, self.numbers, strict=True) if TIERS.index(name) >= TIERS.index(tier)
        )


@dataclass(frozen=True, slots=True)
class _Units:
    """What is laid as one: a node, or a group of nodes, each a line of `rows`. tiers: the container of each unit, nearest first.
    room: of the same containers. wish: of each unit, the less the better."""

    rows: Numbers
    tiers: tuple[Numbers, ...]
    room: tuple[Numbers, ...]
    wish: Numbers

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, chosen: Numbers, num_tiers: int | None = None) -> "_Units":
        tiers, room = self.tiers[:num_tiers], self.room[:num_tiers]
        return _Units(self.rows[chosen], tuple(one[chosen] for one in tiers), tuple(one[chosen] for one in room), self.wish[chosen])


def arrange(shape: Shape, terrain: Terrain, rows: Numbers, wish: Numbers, room: Sequence[Numbers]) -> Numbers | None:
    """Rows for the gang in rank order, of `rows` that would each do: as many as asked, or as near as there is room down to the
    fewest that will do; None when it cannot lie there. wish: of each of `rows`, the less the better. room: devices that
    are free in each container of the terrain's tiers."""
    units = _units(shape, terrain, rows, wish, room)
    size = units.rows.shape[1]
    asked, fewest = -(-shape.num_nodes // size), -(-shape.fewest_nodes // size)
    if shape.within is not None:
        units = _in_one(units, terrain, shape.within, asked, room)
    if len(units) < fewest:
        return None
    if shape.num_nodes == 1:
        return units.rows[np.lexsort((*reversed(units.room), units.wish))[:1]].ravel()
    chosen = units.only(_nearest(units, min(asked, len(units))))
    order = np.lexsort((chosen.rows[:, 0], *chosen.tiers))
    return chosen.rows[order].ravel()[: shape.num_nodes]


def largest(shape: Shape, terrain: Terrain, rows: Numbers) -> int:
    """Nodes of the largest gang of the shape that could lie on `rows`, at most as many as it asks for."""
    units = _units(shape, terrain, rows, np.zeros(len(rows), np.int64), None)
    if shape.within is not None:
        units = _in_one(units, terrain, shape.within, len(rows), None)
    return min(shape.num_nodes, units.rows.size)


def _units(shape: Shape, terrain: Terrain, rows: Numbers, wish: Numbers, room: Sequence[Numbers] | None) -> _Units:
    size, tiers = 1, terrain.numbers
    lines = rows[:, None]
    if shape.group > 1 and shape.num_nodes > 1:
        size, tiers = min(shape.group, shape.num_nodes), terrain.outward(shape.group_tier)
        lines, wish = _groups(size, terrain, shape.group_tier, rows, wish)
    firsts = lines[:, 0]
    inside = tuple(number[firsts] for number in tiers)
    known = () if room is None else room[len(room) - len(tiers) :]
    return _Units(lines, inside, tuple(of_tier[number] for of_tier, number in zip(known, inside, strict=False)), wish)


def _groups(size: int, terrain: Terrain, tier: Tier, rows: Numbers, wish: Numbers) -> tuple[Numbers, Numbers]:
    """As many groups as each container holds; nodes of a nearer container come together, then those that are wished for."""
    number = terrain.of(tier)
    if number is None:
        return np.zeros((0, size), np.int64), np.zeros(0, np.int64)
    nearer = terrain.numbers[: terrain.tiers.index(tier)]
    order = np.lexsort((rows, wish, *(one[rows] for one in nearer), number[rows]))
    _, start, count = np.unique(number[rows][order], return_index=True, return_counts=True)
    place = np.arange(len(rows)) - np.repeat(start, count)
    order = order[place < np.repeat(count - count % size, count)]
    return rows[order].reshape(-1, size), wish[order].reshape(-1, size).sum(axis=1)


def _in_one(units: _Units, terrain: Terrain, tier: Tier, asked: int, room: Sequence[Numbers] | None) -> _Units:
    """Those of the best container of a tier: one that holds all of them, with the least room besides, or the largest."""
    number = terrain.of(tier)
    if not len(units):
        return units
    if number is None:  # each node is alone
        return units.only(np.argsort(units.wish, kind="stable")[:1])
    inside = number[units.rows[:, 0]]
    besides = inside if room is None else room[terrain.tiers.index(tier)][inside]
    return units.only(np.flatnonzero(inside == _best(inside, besides, asked)))


def _best(inside: Numbers, room: Numbers, asked: int) -> int:
    """The container that holds `asked` of the units with the least room besides; the largest if none does."""
    found, first, counts = np.unique(inside, return_index=True, return_counts=True)
    besides = np.where(counts >= asked, counts - asked, len(inside) + asked - counts)
    return int(found[np.lexsort((found, room[first], besides))[0]])


def _nearest(units: _Units, asked: int) -> Numbers:
    """Which `asked` of the units, of at least as many."""
    for level, inside in enumerate(units.tiers):
        counts = np.bincount(inside)
        if counts.max() >= asked:
            members = np.flatnonzero(inside == _best(inside, units.room[level], asked))
            return members[_spanning(units.only(members, level), asked)]
    return _spanning(units, asked)


def _spanning(units: _Units, asked: int) -> Numbers:
    """No container of a tier holds them all: the largest ones whole, and the rest where it leaves the least room."""
    if not units.tiers or asked == len(units):
        return np.argsort(units.wish, kind="stable")[:asked]
    inside, room = units.tiers[-1], units.room[-1]
    found, first, counts = np.unique(inside, return_index=True, return_counts=True)
    order = np.lexsort((found, room[first], -counts))
    num_whole = int(np.searchsorted(np.cumsum(counts[order]), asked, side="right"))
    whole = np.isin(inside, found[order[:num_whole]])
    rest = asked - int(np.count_nonzero(whole))
    if rest:
        others = np.flatnonzero(~whole)
        chosen = others[_nearest(units.only(others), rest)]
        return np.concatenate([np.flatnonzero(whole), chosen])
    return np.flatnonzero(whole)
