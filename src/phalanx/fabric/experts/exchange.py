"""What changes a placement: two GPUs swap a replica, or a replica becomes one of another expert. Each change lowers the largest GPU
load of its row, or is not made; a GPU never gets an expert that it has."""

from dataclasses import dataclass

import numpy as np

from phalanx.fabric.experts.layout import Bools, Floats, Ints, at
from phalanx.fabric.experts.rows import LEAST, Rows, holds, ranked

PAIRED = 30
SINGLE = 10


def swap_paired(rows: Rows, rounds: int = PAIRED) -> None:
    """The heaviest GPU with the lightest, the second with the second last, and so on, in all rows at a time."""
    half = rows.gpus.shape[1] // 2
    act = rows.all()
    for _ in range(rounds if half else 0):
        act = rows.open(act)
        if not len(act):
            return
        part = rows.at(act)
        order = ranked(part.gpus)
        heavy, light = order[:, :half], order[:, ::-1][:, :half]
        gain, mine, other = _best_swaps(part, heavy, light)
        better = gain > LEAST * part.largest()[:, None]
        row, pair = np.nonzero(better)
        _swap(part, row, (heavy[row, pair], mine[row, pair]), (light[row, pair], other[row, pair]))
        rows.put(act, part)
        act = act[better[:, 0]]


def swap_largest(rows: Rows, rounds: int = SINGLE) -> Bools:
    """The best swap of the heaviest GPU with any other one, in all rows at a time. Returns which rows changed."""
    changed = np.zeros(len(rows.loads), np.bool_)
    act, every = rows.all(), np.arange(rows.gpus.shape[1])
    for _ in range(rounds):
        act = rows.open(act)
        if not len(act):
            break
        part = rows.at(act)
        heavy = np.broadcast_to(part.gpus.argmax(1)[:, None], part.gpus.shape)
        gain, mine, other = _best_swaps(part, heavy, np.broadcast_to(every, part.gpus.shape))
        light = gain.argmax(1)
        row = np.flatnonzero(gain[part.all(), light] > LEAST * part.largest())
        to = light[row]
        _swap(part, row, (heavy[row, to], mine[row, to]), (to, other[row, to]))
        rows.put(act, part)
        act = act[row]
        changed[act] = True
    return changed


def _best_swaps(rows: Rows, heavy: Ints, light: Ints) -> tuple[Floats, Ints, Ints]:
    """For pairs of GPUs [P, H] the best swap: how much lower the larger load of the two gets, and the slots of both."""
    row = rows.all()[:, None]
    mine, other = rows.experts[row, heavy], rows.experts[row, light]
    same = mine[..., :, None] == other[..., None, :]
    barred = same.any(-1)[..., :, None] | same.any(-2)[..., None, :]
    less = rows.tokens[row, heavy][..., :, None] - rows.tokens[row, light][..., None, :]
    apart = (rows.gpus[row, heavy] - rows.gpus[row, light])[..., None, None]
    gain = np.where(barred, -1.0, np.minimum(less, apart - less)).reshape(*heavy.shape, -1)
    best = gain.argmax(-1)
    slot = np.divmod(best, mine.shape[-1])
    return np.take_along_axis(gain, best[..., None], -1)[..., 0], *slot


def _swap(rows: Rows, row: Ints, mine: tuple[Ints, Ints], other: tuple[Ints, Ints]) -> None:
    """(GPU, slot) of both."""
    less = rows.tokens[row, *mine] - rows.tokens[row, *other]
    for table in (rows.experts, rows.tokens):
        table[row, *mine], table[row, *other] = table[row, *other], table[row, *mine]
    rows.gpus[row, mine[0]] -= less
    rows.gpus[row, other[0]] += less


@dataclass(frozen=True, slots=True)
class _Heir:
    """A replica's tokens would go to the least loaded other GPU that has the expert: gpu [P, MS], -1 where there is none."""

    gpu: Ints

    @classmethod
    def of(cls, rows: Rows) -> "_Heir":
        count, num_gpus, num_slots = rows.experts.shape
        row, order = rows.all()[:, None], ranked(rows.gpus)
        listed = np.take_along_axis(rows.experts, order[..., None], 1).reshape(count, -1)
        host = np.repeat(order, num_slots, axis=1)
        least = np.full(rows.loads.shape, -1)
        least[row, listed] = host  # the last one written is the least loaded
        second = np.full((count, rows.loads.shape[1] + 1), -1)
        second[row, np.where(at_ints(least, listed) != host, listed, rows.loads.shape[1])] = host
        flat, own = rows.experts.reshape(count, -1), np.repeat(np.arange(num_gpus), num_slots)
        first = at_ints(least, flat)
        return cls(np.where(first == own, at_ints(second, flat), first))


def rehost(rows: Rows) -> Bools:
    """In each row that replica which does most for the heaviest GPU becomes one of an expert that lies there, and takes a part of
    it; another replica of its own expert takes what it had. Returns which rows changed."""
    count, _, num_slots = rows.experts.shape
    every, heavy, heir = rows.all(), rows.gpus.argmax(1), _Heir.of(rows)
    largest = _after(rows, heavy, heir)
    best = largest.reshape(count, -1).argmin(1)
    row = np.flatnonzero(rows.largest() - largest.reshape(count, -1)[every, best] > LEAST * rows.largest())
    mine, slot = np.divmod(best[row], largest.shape[2])
    _become(rows, row, (heavy[row], mine), np.divmod(slot, num_slots), heir.gpu[row, slot])
    return np.isin(every, row)


def _after(rows: Rows, heavy: Ints, heir: _Heir) -> Floats:
    """The largest load of the three GPUs, for each expert of the heaviest GPU and each slot elsewhere, [P, S, MS]; infinite where
    it cannot be."""
    count, num_gpus, num_slots = rows.experts.shape
    every, gpu = rows.all(), np.repeat(np.arange(num_gpus), num_slots)
    freed, experts = rows.tokens.reshape(count, -1), rows.experts.reshape(count, -1)
    wanted, of_each = rows.experts[every, heavy], rows.tokens[every, heavy]
    back = heir.gpu == heavy[:, None]
    there = rows.gpus[:, gpu] - freed
    top = rows.largest()
    moved = np.minimum(of_each[:, :, None], ((top[:, None] - there) / 2)[:, None, :])
    left = top[:, None, None] - moved + np.where(back, freed, 0.0)[:, None, :]
    inherits = np.where(back, 0.0, at(rows.gpus, np.maximum(heir.gpu, 0)) + freed)
    largest = np.maximum(np.maximum(left, there[:, None, :] + moved), inherits[:, None, :])
    only = (at_ints(rows.copies, experts) < 2) | (gpu == heavy[:, None])
    return np.where(holds(rows.experts, wanted)[:, :, gpu] | only[:, None, :] | (moved <= 0), np.inf, largest)


def _become(rows: Rows, row: Ints, mine: tuple[Ints, Ints], slot: tuple[Ints, Ints], heir: Ints) -> None:
    """mine, slot: (GPU, slot) of the expert and of the replica that becomes one of it."""
    expert, given, freed = rows.experts[row, *mine], rows.experts[row, *slot], rows.tokens[row, *slot]
    rows.tokens[row, heir, (rows.experts[row, heir] == given[:, None]).argmax(1)] += freed
    rows.gpus[row, heir] += freed
    rows.gpus[row, slot[0]] -= freed
    moved = np.minimum(rows.tokens[row, *mine], np.maximum((rows.gpus[row, mine[0]] - rows.gpus[row, slot[0]]) / 2, 0.0))
    rows.experts[row, *slot], rows.tokens[row, *slot] = expert, moved
    rows.tokens[row, *mine] -= moved
    rows.gpus[row, mine[0]] -= moved
    rows.gpus[row, slot[0]] += moved
    rows.copies[row, given] -= 1
    rows.copies[row, expert] += 1


def at_ints(table: Ints, index: Ints) -> Ints:
    return np.take_along_axis(table, index, 1)
