"""What is kept for the blocked head of a pool: the nodes on which its gang fits first.

Where limits say when that is, others may use these nodes until then, or for longer what the head leaves over. Where gangs without a
limit are in the way nobody knows when; then what comes free on the nearest nodes is kept together, so that a stream of small jobs
does not starve a large gang.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from phalanx.core.devices import NodeSlice, Placement
from phalanx.decide.scheduler.room.ends import NEVER, Ends, Times, all_end_ms
from phalanx.decide.scheduler.room.gangs import Gangs
from phalanx.decide.scheduler.room.hold import NO_BOUND, Hold
from phalanx.decide.scheduler.snapshot import PendingJob, Shape
from phalanx.decide.scheduler.where.fleet import CORES_SLACK, Counts, Fleet, Ground, Mask, Rows

HOLD_MS: Final = 3_600_000
"""A gang without a limit may end at any moment. What is put on the head's nodes until then delays the head by this at most."""


@dataclass(frozen=True, slots=True)
class View:
    """What a job may count on: devices of a type on each row now, besides what is kept from it, and on which rows at all.
    after_ms: of each row, from when on at the earliest."""

    free: Counts
    rows: Mask
    after_ms: Times | None = None


@dataclass(frozen=True, slots=True)
class Bid:
    """What would be kept for a head in one pool. start_ms: None when no limit says when it starts. nearness: less is nearer."""

    kind: str
    start_ms: int | None
    nearness: tuple[int, int]
    hold: Hold


def bid(job: PendingJob, kind: str, view: View, fleet: Fleet, ends: Ends, now_ms: int) -> Bid | None:
    """None when the gang would not fit if everybody ended, since too many nodes are drained or gone: it waits for nodes then, and
    keeps none from others."""
    shape = job.facts.shape
    ready = ends.ready(shape, kind, view.free, (fleet.free_cpus, fleet.free_memory_bytes))
    coming = view.free + ends.by(NEVER - 1, kind)
    missing = np.maximum(0, shape.request.count - coming).astype(np.int64)
    missing = np.where(fleet.ground.schedulable, missing, shape.request.count + 1).astype(np.int64)
    score = np.where((ready < NEVER) & fleet.ground.schedulable, ready, NEVER + missing)
    if view.after_ms is not None:
        score = np.maximum(score, view.after_ms)
    usable = view.rows & fleet.could_hold(shape, kind) & expected(fleet.ground)
    for node in job.avoids:
        if node in fleet.ground.row:
            usable[fleet.ground.row[node]] = False
    chosen = soonest(shape, fleet.ground, np.flatnonzero(usable), score, np.minimum(coming, NO_BOUND))
    if chosen is None:
        return None
    reached = score[chosen]
    lacking = int((reached[reached >= NEVER] - NEVER).sum())
    start_ms = None if reached.max() >= NEVER else max(now_ms, int(reached.max()))
    from_ms = now_ms + HOLD_MS if start_ms is None else start_ms
    if view.after_ms is not None:
        from_ms = max(from_ms, int(view.after_ms[chosen].max()))
    hold = _hold(job, kind, chosen, from_ms, view, fleet, ends)
    return Bid(kind, start_ms, (NEVER if start_ms is None else start_ms, lacking), hold)


def expected(ground: Ground) -> Mask:
    """Nodes that take part, or will again soon: away, but neither drained nor gone for good."""
    mask = ground.schedulable.copy()
    mask[[row for row in np.flatnonzero(~mask) if not (ground.nodes[row].drained or ground.nodes[row].gone)]] = True
    return mask


def soonest(shape: Shape, ground: Ground, rows: Rows, score: Times, tightness: Counts) -> Rows | None:
    """Of `rows`, which are in order, those with the lowest scores that a gang of the fewest nodes could lie on; None when it could
    not. Among equals the tightest, so that large holes stay open to others."""
    group, num_nodes = max(1, shape.group), shape.fewest_nodes
    if group == 1 and shape.within is None:
        if len(rows) < num_nodes:
            return None
        rows = rows[score[rows] <= np.partition(score[rows], num_nodes - 1)[num_nodes - 1]]
        return np.sort(rows[np.lexsort((tightness[rows], score[rows]))][:num_nodes])
    rows = rows[np.lexsort((tightness[rows], score[rows]))]
    unit = rows.reshape(-1, 1) if group == 1 else _groups(rows, ground.tier(shape.group_tier), group)
    num_units = -(-num_nodes // group)
    unit = unit[np.argsort(score[unit].max(axis=1, initial=0), kind="stable")]
    if shape.within is not None and len(unit):
        container = ground.tier(shape.within)[unit[:, 0]]
        rank = _rank_within(container)
        complete = np.flatnonzero(rank == num_units - 1)
        if not len(complete):
            return None
        unit = unit[container == container[complete[0]]]  # units are in order: the first that completes is the soonest
    if len(unit) < num_units:
        return None
    return np.sort(unit[:num_units].reshape(-1))[:num_nodes]


def _groups(rows: Rows, tier: Rows, group: int) -> Rows:
    """Whole groups of rows that lie in one container, in order of `rows`, as a matrix."""
    order = np.argsort(tier[rows], kind="stable")
    rank = np.empty(len(rows), np.int64)
    rank[order] = _rank_within(tier[rows][order])
    _, at, sizes = np.unique(tier[rows], return_inverse=True, return_counts=True)
    whole = (sizes // group * group)[at]
    kept = order[rank[order] < whole[order]]
    return rows[kept].reshape(-1, group)


def _rank_within(values: Rows) -> Rows:
    """How many equal values stand before each."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    firsts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(values) else order
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values)) - np.repeat(firsts, np.diff(np.append(firsts, len(values))))
    return rank


def _hold(job: PendingJob, kind: str, chosen: Rows, from_ms: int, view: View, fleet: Fleet, ends: Ends) -> Hold:
    shape = job.facts.shape
    then = view.free[chosen] + ends.by(from_ms, kind)[chosen]
    kept, spare = np.zeros(len(view.free), np.int32), np.full(len(view.free), NO_BOUND, np.int32)
    kept[chosen], spare[chosen] = shape.request.count, np.maximum(0, then - shape.request.count)
    hold = Hold(kind, from_ms, kept, spare, head=job.facts.job)
    if shape.cpus > 0 or shape.memory_bytes > 0:
        cpus, memory = ends.room_by(from_ms)
        hold.spare_cpus = np.full(len(spare), np.inf)
        hold.spare_cpus[chosen] = fleet.free_cpus[chosen] + cpus[chosen] - shape.cpus + CORES_SLACK
        hold.spare_memory = np.full(len(spare), np.iinfo(np.int64).max)
        hold.spare_memory[chosen] = fleet.free_memory_bytes[chosen] + memory[chosen] - shape.memory_bytes
    return hold


def likely(kind: str, kept: Counts, fleet: Fleet, gangs: Gangs, now_ms: int) -> Placement:
    """The devices that so many on each row are likely to be: what is free, then what is let go of first."""
    total = fleet.ground.total[kind]
    held = _held(np.where(kept < total, kept, 0), gangs, now_ms)
    all_of: dict[int, tuple[int, ...]] = {}  # by the types of a node's devices, which alike nodes share
    slices = []
    for row in np.flatnonzero(kept).tolist():
        types = fleet.ground.types[row]
        if id(types) not in all_of:
            all_of[id(types)] = tuple(sorted(index for index, of_kind in types.items() if of_kind == kind))
        chosen = all_of[id(types)]
        if kept[row] < total[row]:
            nearest = dict.fromkeys((*fleet.devices(row, kind), *(index for _, index in sorted(held.get(row, ()))), *chosen))
            chosen = tuple(sorted([index for index in nearest if types.get(index) == kind][: kept[row]]))
        slices.append(NodeSlice(fleet.ground.nodes[row].node, chosen))
    return Placement(tuple(slices))


def _held(wanted: Counts, gangs: Gangs, now_ms: int) -> dict[int, list[tuple[int, int]]]:
    """Devices that gangs hold on the rows of which some are wanted, with when each is let go of."""
    found: dict[int, list[tuple[int, int]]] = {}
    slices, ends_ms = gangs.slices, all_end_ms(gangs, now_ms)
    for at in np.flatnonzero(wanted[slices.row]):
        number = int(slices.gang[at])
        part = gangs.all[number].placement.slices[slices.part[at]]
        found.setdefault(int(slices.row[at]), []).extend((int(ends_ms[number]), index) for index in part.devices)
    return found
