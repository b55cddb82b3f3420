"""Shares: how much of an expert each of its replicas takes, so that GPUs which have experts in common are level.

One expert after the other is poured over its GPUs as water over steps of different height. Each pour lowers the sum of the squared
GPU loads, which is convex with one constraint for each expert, so sweeps come to its least value; there the largest GPU load is
least too (Megiddo's lexicographically optimal flow, 1974). No replica moves.
"""

from dataclasses import dataclass

import numpy as np

from phalanx.fabric.experts.layout import Bools, Floats, Ints, at
from phalanx.fabric.experts.rows import Rows, ranked

SWEEPS = 8
SLOW = 1e-4
"""Where a sweep gains less, as a part of the largest load, it is the last one; GPUs that differ by less are level."""

SETTLED = 200
LEVEL = 1e-5


def level(rows: Rows) -> None:
    """Changes the tokens of slots, as far as that lowers the largest load fast; the sum of each expert stays."""
    act = rows.all()
    for _ in range(SWEEPS):
        act = rows.open(act)
        if not len(act):
            return
        before = rows.gpus[act].max(1)
        part = rows.at(act)
        _sweep(part, SLOW)
        rows.put(act, part)
        act = act[part.largest() < before * (1 - SLOW)]


def settle(rows: Rows) -> None:
    """The same to the end, where no expert has tokens on a GPU that is fuller than another one that has it."""
    act = rows.all()
    for _ in range(SETTLED):
        part = rows.at(act)
        changed = _sweep(part, LEVEL)
        rows.put(act, part)
        act = act[changed]
        if not len(act):
            return


def _sweep(rows: Rows, apart: float) -> Bools:
    """Each expert whose GPUs are not level once, those with the largest load first, in all rows at a time. Returns in which rows
    there was one."""
    slots = _Slots.of(rows)
    uneven = slots.uneven(rows, apart)
    count = uneven.sum(1)
    turns = ranked(np.where(uneven, rows.loads, -1.0))
    for turn in range(int(count.max(initial=0))):
        act = np.flatnonzero(turn < count)
        _pour(rows, slots, act, turns[act, turn])
    return np.asarray(count > 0)


@dataclass(frozen=True, slots=True)
class _Slots:
    """by_expert: a row's slots, M x S in a line, in the order of their experts [P, MS]; first: where each expert's begin [P, E]."""

    by_expert: Ints
    first: Ints

    @classmethod
    def of(cls, rows: Rows) -> "_Slots":
        flat = rows.experts.reshape(len(rows.experts), -1)
        return cls(np.argsort(flat, axis=1, kind="stable"), np.cumsum(rows.copies, axis=1) - rows.copies)

    def uneven(self, rows: Rows, apart: float) -> Bools:
        """Experts [P, E] that could give from one of their GPUs to another."""
        count, width = self.by_expert.shape
        there = at(rows.gpus, self.by_expert // rows.experts.shape[2])
        taken = np.where(at(rows.tokens.reshape(count, width), self.by_expert) > 0, there, -np.inf)
        row, expert = np.nonzero(rows.copies)
        begin = row * width + self.first[row, expert]
        differ = np.maximum.reduceat(taken.ravel(), begin) - np.minimum.reduceat(there.ravel(), begin)
        found = np.zeros(rows.copies.shape, np.bool_)
        found[row, expert] = differ > apart * rows.largest()[row]
        return found


def _pour(rows: Rows, slots: _Slots, act: Ints, expert: Ints) -> None:
    """One expert of each of these rows over the GPUs that hold it."""
    count = rows.copies[act, expert]
    turn = np.arange(int(count.max()))
    real = turn < count[:, None]
    slot = slots.by_expert[act[:, None], np.where(real, slots.first[act, expert][:, None] + turn, 0)]
    gpu, place = np.divmod(slot, rows.experts.shape[2])
    own = rows.tokens[act[:, None], gpu, place]
    others = np.where(real, rows.gpus[act[:, None], gpu] - own, np.inf)
    taken = np.maximum(_surface(others, rows.loads[act, expert])[:, None] - others, 0.0)
    row, column = np.nonzero(real)
    to = (act[row], gpu[row, column])
    rows.gpus[to] = others[row, column] + taken[row, column]
    rows.tokens[(*to, place[row, column])] = taken[row, column]


def _surface(ground: Floats, amount: Floats) -> Floats:
    """How high that much water stands over ground of these heights [P, n], infinite where there is none."""
    heights = np.sort(ground, axis=1)
    finite = np.where(np.isinf(heights), 0.0, heights)
    surface = (amount[:, None] + np.cumsum(finite, axis=1)) / np.arange(1, heights.shape[1] + 1)
    wet = np.maximum((surface > heights).sum(1) - 1, 0)
    return np.asarray(surface[np.arange(len(wet)), wet])
