"""From a first placement to a better one, the cheapest changes first: shares, swaps, and replicas that become other experts'. Where
that ends above the lower bound, it begins again from other first placements."""

from dataclasses import dataclass

import numpy as np

from phalanx.fabric.experts.exchange import rehost, swap_largest, swap_paired
from phalanx.fabric.experts.layout import Bools, Floats, Ints, at
from phalanx.fabric.experts.level import level
from phalanx.fabric.experts.rows import NEAR, Rows, lower_bound
from phalanx.fabric.experts.start import apportioned, merge_doubles, started

TURNS = 12
SLOW = 1e-3
HOSTS = 8
"""Replicas of a row that become another expert's in a turn."""

STARTS = 4
WORK = 20_000
"""Pairs of slots that all further starts together may look at in a round of swaps. Large problems gain next to nothing by them."""

WAVER = 0.1
"""How much higher than measured a load may be taken for. Measured loads are further from the next step's than that."""


def searched(loads: Floats, exists: Bools, num_gpus: int, num_slots: int, layers: int) -> Rows:
    """The best that was found for each row. loads: tokens [P, E]; each layer has as many rows as the others."""
    problem = _Problem(loads, exists, num_gpus, num_slots)
    bound = lower_bound(loads, apportioned(loads, exists, num_gpus * num_slots, num_gpus), num_gpus) * (1 + NEAR)
    rows = problem.first(np.arange(len(loads)), 0)
    rows.enough = of_layer(bound, layers)
    improved(rows)
    again = np.flatnonzero(rows.largest() > bound / (1 + NEAR))  # near is not enough to be nowhere above the second start
    for start in range(1, STARTS):
        cheap = start * len(again) * num_gpus * num_slots**2 <= WORK
        if not len(again) or (start > 1 and not cheap):
            break
        other = problem.first(again, start)
        other.enough = np.where(rows.largest() > rows.enough, rows.enough, np.inf)[again]
        if cheap:
            improved(other)
        better = np.flatnonzero(other.largest() < rows.largest()[again])
        rows.put(again[better], other.at(better))
        rows.enough = np.maximum(rows.enough, of_layer(np.minimum(rows.largest(), bound), layers))
        again = rows.open(again)
    return rows


@dataclass(frozen=True, slots=True)
class _Problem:
    """loads: tokens [P, E] of those experts that exist, on that many GPUs of that many slots."""

    loads: Floats
    exists: Bools
    num_gpus: int
    num_slots: int

    def first(self, which: Ints, start: int) -> Rows:
        """0: replicas of an expert apart. 1: wherever they come to lie, above which nothing may end.
        Later ones as 0, as if loads were a little other."""
        loads, exists = self.loads[which], self.exists[which]
        turn = (np.arange(1, loads.shape[1] + 1) * max(start - 1, 0) * _GOLDEN) % 1  # spread evenly, and the same at every call
        seen = loads * (1 + WAVER * turn)
        rows = started(seen, exists, self.num_gpus, self.num_slots, apart=start != 1)
        merge_doubles(rows, exists)
        rows.tokens *= at(np.where(loads > 0, loads / np.where(loads > 0, seen, 1), 1.0), rows.experts)
        rows.loads, rows.gpus = loads, rows.tokens.sum(-1)
        return rows


_GOLDEN = (5**0.5 - 1) / 2


def of_layer(values: Floats, layers: int) -> Floats:
    """A node needs to be no better than the worst one of its layer."""
    return np.repeat(values.reshape(layers, -1).max(1), len(values) // layers)


def improved(rows: Rows, turns: int = TURNS) -> None:
    """The largest GPU load of no row ever grows."""
    act = rows.all()
    for _ in range(turns):
        act = rows.open(act)
        if not len(act):
            return
        part = rows.at(act)
        before = part.largest()
        _turn(part)
        _rehosted(part)
        rows.put(act, part)
        act = act[part.largest() < before * (1 - SLOW)]


def _rehosted(rows: Rows) -> None:
    act = rows.open(rows.all())
    for _ in range(HOSTS):
        if not len(act):
            return
        part = rows.at(act)
        changed = rehost(part)
        rows.put(act, part)
        act = rows.open(act[changed])


def _turn(rows: Rows) -> None:
    level(rows)
    swap_paired(rows)
    swap_largest(rows)
    level(rows)


def swapped(loads: Floats, exists: Bools, num_gpus: int, num_slots: int) -> Rows:
    """By swaps alone: replicas of an expert take equal parts, and two may lie on one GPU."""
    rows = started(loads, exists, num_gpus, num_slots, apart=False)
    rows.enough = loads.sum(1) / num_gpus * (1 + NEAR)
    swap_paired(rows)
    swap_largest(rows)
    return rows
