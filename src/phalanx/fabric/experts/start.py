"""The first placement: replicas by apportionment, then the heaviest first to the GPU with the least load.

Apportioning by load over replicas is D'Hondt's method, which makes the largest load of a replica as small as it can be. The
packing is Graham's longest processing time first (1969) with as many replicas for every GPU. Both are what DeepSeek's published
balancer does, so nothing that starts here ends above it.
"""

import numpy as np

from phalanx.fabric.experts.layout import Bools, Floats, Ints, at, counted
from phalanx.fabric.experts.rows import Rows, ranked

_DREADED = 1e12
"""Beside loads of experts, of which none is above 1."""


def started(loads: Floats, exists: Bools, num_gpus: int, num_slots: int, apart: bool) -> Rows:
    """loads [P, E] of those experts that exist, on that many GPUs a row of that many slots. Replicas of an expert take equal parts.
    apart: no more of one than GPUs, and two on one GPU only where there is no other room."""
    copies = apportioned(loads, exists, num_gpus * num_slots, num_gpus if apart else num_gpus * num_slots)
    share = loads / np.maximum(copies, 1)
    experts = packed(share, copies, num_gpus, num_slots, apart)
    tokens = at(share, experts)
    return Rows(loads, copies, experts, tokens, tokens.sum(-1), np.zeros(len(loads)))


def apportioned(loads: Floats, exists: Bools, total: int, most: int) -> Ints:
    """Replicas of each expert [P, E], `total` in a row, one at least and `most` at most of each that exists."""
    copies = exists.astype(np.int64)
    missing = total - copies.sum(1)
    share = np.where(exists & (most > 1), loads, -1.0)
    for given in range(int(missing.max(initial=0))):
        rows = np.flatnonzero(given < missing)
        expert = share[rows].argmax(1)
        copies[rows, expert] += 1
        count = copies[rows, expert]
        share[rows, expert] = np.where(count < most, loads[rows, expert] / count, -1.0)
    return copies


def packed(share: Floats, copies: Ints, num_gpus: int, num_slots: int, apart: bool) -> Ints:
    """experts [P, M, S], from the load of a replica of each expert [P, E] and how many there are of it."""
    count, num_experts = share.shape
    listed = np.repeat(np.tile(np.arange(num_experts), count), copies.ravel()).reshape(count, -1)
    listed = np.take_along_axis(listed, ranked(at(share, listed)), 1)
    heavy, rows = at(share, listed), np.arange(count)
    experts = np.zeros((count, num_gpus, num_slots), np.int64)
    gpus, filled = np.zeros((count, num_gpus)), np.zeros((count, num_gpus), np.int64)  # a full one counts as infinitely loaded
    newest = np.full((count, num_gpus), -1)  # replicas of an expert come one after the other: a GPU that has one got it last
    for index in range(listed.shape[1]):
        expert = listed[:, index]
        gpu = (np.where(newest == expert[:, None], gpus + _DREADED, gpus) if apart else gpus).argmin(1)
        experts[rows, gpu, filled[rows, gpu]] = newest[rows, gpu] = expert
        filled[rows, gpu] += 1
        gpus[rows, gpu] += np.where(filled[rows, gpu] < num_slots, heavy[:, index], np.inf)
    return experts


def merge_doubles(rows: Rows, exists: Bools) -> None:
    """Of replicas of an expert on one GPU the first takes all; the room of each other becomes a replica that takes nothing yet."""
    order = np.argsort(rows.experts, axis=2, kind="stable")
    rows.experts, rows.tokens = np.take_along_axis(rows.experts, order, 2), np.take_along_axis(rows.tokens, order, 2)
    num_slots, num_gpus = rows.experts.shape[2], rows.experts.shape[1]
    for slot in range(num_slots - 1, 0, -1):  # from the right, so that the first has all in the end
        row, gpu = np.nonzero(rows.experts[:, :, slot] == rows.experts[:, :, slot - 1])
        rows.tokens[row, gpu, slot - 1] += rows.tokens[row, gpu, slot]
        rows.tokens[row, gpu, slot] = -1.0
    free = rows.tokens < 0
    rows.experts[free] = rows.loads.shape[1]  # no expert
    rows.copies = counted(rows.experts.reshape(len(rows.experts), -1), rows.loads.shape[1] + 1)[:, :-1]
    rows.tokens[free] = 0.0
    for row, gpu, slot in np.argwhere(free):
        fits = exists[row] & (rows.copies[row] < num_gpus)
        fits[rows.experts[row, gpu][rows.experts[row, gpu] < len(fits)]] = False
        expert = np.where(fits, rows.loads[row] / np.maximum(rows.copies[row], 1), -1.0).argmax()
        rows.experts[row, gpu, slot] = expert
        rows.copies[row, expert] += 1
