"""Gangs that may be asked to let go of devices for others, as columns, and what that costs."""

from bisect import bisect_right
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from phalanx.core.devices import WHOLE, NodeSlice, Placement
from phalanx.core.ids import JobId, NodeId
from phalanx.core.policy import Policy
from phalanx.decide.scheduler.quotas.deserved import Deserts
from phalanx.decide.scheduler.quotas.lines import Line
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.room.kept import Kept
from phalanx.decide.scheduler.snapshot import JobFacts, PendingJob, RunningJob, Snapshot
from phalanx.decide.scheduler.targets import is_late, late_since
from phalanx.decide.scheduler.where.fleet import Fleet, Mask, Rows

Cause = Literal["priority", "reclaim", "target", "booking", "order"]

NOMINAL_MS: Final = 1_800_000
"""A gang counts as losing at most half an hour of work, whenever it last saved. Else one that never commits a checkpoint would be
the dearest of all, and everybody would learn to hide theirs. What must not be lost says `preemptible: false`. See ADR 0019."""


def lost_ms(gang: RunningJob, now_ms: int) -> int:
    """Device-milliseconds that are done again or idle when the gang is ended now: since its last checkpoint, and to start again."""
    return _amount(gang.placement, max(0, now_ms - max(gang.placed_ms, gang.saved_ms)) + gang.restart_ms)


def cost_ms(gang: RunningJob, now_ms: int) -> int:
    """What of it counts when victims are chosen."""
    return _amount(gang.placement, min(NOMINAL_MS, max(0, now_ms - max(gang.placed_ms, gang.saved_ms))) + gang.restart_ms)


def _amount(placement: Placement, ms: int) -> int:
    return sum(len(part.devices) * part.milli for part in placement.slices) * ms // WHOLE


@dataclass(frozen=True, slots=True)
class Columns:
    """Slices of gangs on one type: whose (places in `Victims.gangs`), where, devices, cores, bytes."""

    slice_gang: Rows
    slice_row: Rows
    slice_devices: NDArray[np.float64]
    slice_cpus: NDArray[np.float64]
    slice_memory: NDArray[np.float64]
    parts: list[NodeSlice]


class Victims:
    """Mutable within one decision: who has been asked is not asked again, and what is claimed comes free for nobody else."""

    def __init__(self, snapshot: Snapshot, fleet: Fleet, tree: Tree, kept: Kept) -> None:
        self._policy: Policy = snapshot.policy
        now_ms = snapshot.now_ms
        self._late_since = late_since(snapshot.policy, now_ms)
        self._fleet, self._tree, self._kept = fleet, tree, kept
        self._bounds = sorted(one.priority for one in snapshot.policy.classes.values())
        self.gangs: tuple[RunningJob, ...] = tuple(sorted(snapshot.running, key=lambda gang: gang.facts.job))
        self._deserts = Deserts(snapshot, tree, self.gangs)
        self.place = {gang.facts.job: number for number, gang in enumerate(self.gangs)}
        self.cost = np.array([cost_ms(gang, now_ms) for gang in self.gangs], np.float64)
        self.ending = np.array([gang.stopping for gang in self.gangs], np.bool_)
        self._class = np.array([self.class_of(gang.facts.priority) for gang in self.gangs], np.int64)
        steady = snapshot.policy.preemption.min_runtime_ms
        self._may = np.array([gang.facts.preemptible and now_ms - gang.placed_ms >= steady for gang in self.gangs], np.bool_)
        most = snapshot.policy.preemption.max_evictions
        self._spared = np.array([gang.evictions >= most for gang in self.gangs], np.bool_)
        self._priority = np.array([gang.facts.priority for gang in self.gangs], np.int64)
        self._above = np.array([len(gang.placement.slices) > gang.facts.shape.fewest_nodes for gang in self.gangs], np.bool_)
        number = fleet.ground.kind_number
        self._kind = np.array([number.get(tree.kind(gang.placement), -1) for gang in self.gangs], np.int64)
        self._queue = np.array([gang.facts.queue for gang in self.gangs], np.object_)
        self._claimed = {
            (part.node, index)
            for job in snapshot.pending
            if job.claim is not None
            for part in job.claim.slices
            for index in part.devices
        }
        self._claimed.update(
            (part.node, index)
            for gang in snapshot.running
            if gang.stopping and gang.keeps is not None
            for part in gang.keeps.slices
            for index in part.devices
        )
        self._columns: dict[str, Columns] = {}
        self._known_usable: dict[str, Mask] = {}
        self._causes: dict[Hashable, dict[Cause, Mask]] = {}
        self._elastic: dict[Hashable, tuple[int, ...]] = {}
        self._lowest: dict[tuple[Line, str, int], tuple[int, ...]] = {}
        self._moves = tree.moves
        self._guarded = np.zeros(len(self.gangs), np.bool_)
        self._on_node: dict[NodeId, list[int]] = {}

    def guard(self, jobs: Collection[JobId]) -> None:
        """These gangs run in their queues' own cells: they are ended for nobody who stands elsewhere."""
        self._guarded[[self.place[job] for job in sorted(jobs)]] = True
        self._forget()

    def on_node(self, node: NodeId) -> list[int]:
        if not self._on_node:
            for number, gang in enumerate(self.gangs):
                for part in gang.placement.slices:
                    self._on_node.setdefault(part.node, []).append(number)
        return self._on_node.get(node, [])

    def may_end(self, number: int) -> bool:
        """Whether the gang may be ended at all: not too soon."""
        return bool(self._may[number] and not self.ending[number])

    def may_end_ms(self, number: int) -> int:
        """From when on it is not too soon (Unix time)."""
        return self.gangs[number].placed_ms + self._policy.preemption.min_runtime_ms

    def rotates(self, number: int) -> bool:
        """Whether its place may go to one that comes before it, in an order that shares devices in time, now or a little later."""
        firm = self._spared[number] or self._guarded[number] or self.ending[number]
        return bool(self._policy.preemption.enabled and self.gangs[number].facts.preemptible and not firm)

    def class_of(self, priority: int) -> int:
        return bisect_right(self._bounds, priority)

    def may_change(self, gang: RunningJob) -> bool:
        """Whether the gang may be ended to start again in another size: not too soon, nor too often."""
        number = self.place[gang.facts.job]
        return bool(self._may[number] and not self.ending[number] and not self._spared[number])

    def elastic(self, job: PendingJob, kind: str) -> tuple[int, ...]:
        """Gangs above their fewest nodes that may be made smaller for the job: of its priority or below, and not within a guarantee
        that it has no part in."""
        self._follow()
        key = (job.facts.queue, kind, job.facts.priority)
        if key not in self._elastic:
            self._elastic[key] = tuple(self._found_elastic(job, kind))
        return self._elastic[key]

    def _found_elastic(self, job: PendingJob, kind: str) -> list[int]:
        usable = self._usable(kind) & self._above
        if not usable.any():
            return []
        usable &= ~self._spared & (self._priority <= job.facts.priority)
        found: list[int] = np.flatnonzero(usable & ~self._deserts.protected(job.facts, kind)).tolist()
        return found

    def causes(self, job: PendingJob, kind: str, num_devices: int) -> dict[Cause, Mask]:
        """Who may be ended for the job, and why.

        For a booking that is on: whoever is not of its queue. By priority: lower classes, but for gangs within a guarantee that the
        job has no part in, whose owner would reclaim it at once. To reclaim: whoever has more than it deserves, while the job has
        less; how often they were ended today does not protect them, for a guarantee that others' bad luck suspends is none.
        """
        self._follow()
        facts, shape = job.facts, job.facts.shape
        key = (facts.queue, kind, facts.priority, is_late(job, self._late_since), num_devices, shape.request.milli)
        if key not in self._causes:
            self._causes[key] = self._found_causes(job, kind, num_devices)
        return self._causes[key]

    def _found_causes(self, job: PendingJob, kind: str, num_devices: int) -> dict[Cause, Mask]:
        facts, policy = job.facts, self._policy.preemption
        usable = self._usable(kind)
        found: dict[Cause, Mask] = {}
        if not usable.any():
            return found
        for booked in self._kept.bookings:
            if self._kept.is_due(booked, facts, kind, num_devices):
                found["booking"] = usable & ~np.isin(self._queue, sorted(booked.queues))
        if policy.enabled:
            lower = usable & self._lower(facts)
            by_priority: Cause = "target" if is_late(job, self._late_since) else "priority"
            found[by_priority] = lower & ~self._deserts.protected(facts, kind)
        if policy.reclaim:
            found["reclaim"] = usable & self._deserts.reclaimable(facts, kind, num_devices)
        return {cause: mask for cause, mask in found.items() if mask.any()}

    def lower(self, job: PendingJob, kind: str, queue: Line) -> tuple[int, ...]:
        """Gangs in the queue of lower classes that may be ended, whoever is guaranteed what they hold; the lowest first, then those
        that lose least."""
        if not self._policy.preemption.enabled:
            return ()
        key = (queue, kind, self.class_of(job.facts.priority))
        if key not in self._lowest:
            found = np.flatnonzero(self._usable(kind) & self._lower(job.facts) & self._deserts.within(queue)).tolist()
            found.sort(key=lambda number: (self.gangs[number].facts.priority, self.cost[number], number))
            self._lowest[key] = tuple(found)
        return self._lowest[key]

    def _lower(self, job: JobFacts) -> Mask:
        found: Mask = ~self._spared & (self._class < self.class_of(job.priority))
        return found

    def within_guarantee(self, job: PendingJob, kind: str) -> Mask:
        """Gangs that stay, whoever goes before them."""
        return self._deserts.protected(job.facts, kind)

    def _follow(self) -> None:
        """Forgets what was found out before something was taken or let go of."""
        if self._moves != self._tree.moves:
            self._moves = self._tree.moves
            self._causes.clear()
            self._elastic.clear()

    def _forget(self) -> None:
        """What was found out before other gangs could be ended."""
        self._known_usable.clear()
        self._lowest.clear()
        self._causes.clear()
        self._elastic.clear()

    def _usable(self, kind: str) -> Mask:
        """Who may be ended on a type at all. Not to be changed."""
        if kind not in self._known_usable:
            self._known_usable[kind] = self._may & ~self.ending & ~self._guarded & self._on(kind)
        return self._known_usable[kind]

    def reclaimable(self, job: PendingJob, kind: str, num_nodes: int) -> Mask:
        """Gangs that the job may have ended to get so much of what it deserves, with what was let go of meanwhile."""
        return self._deserts.reclaimable(job.facts, kind, job.facts.shape.request.count * num_nodes)

    def deserves(self, job: PendingJob, kind: str) -> bool:
        """Whether its queue may take so much from others: then it may claim what those that are ending let go of."""
        shape = job.facts.shape
        is_asked = self._policy.preemption.reclaim and bool(self.ending.any())
        return is_asked and self._deserts.deserves(job.facts, kind, shape.request.count * shape.fewest_nodes)

    def stays(self, job: PendingJob, kind: str, number: int, cause: Cause) -> bool:
        """Whether the gang may not be ended for it any more, with what was let go of meanwhile: its queue has no more than its own,
        and would get it back at once."""
        if cause == "reclaim":
            return not self.reclaimable(job, kind, job.facts.shape.fewest_nodes)[number]
        return cause in ("priority", "target") and bool(self._deserts.protected(job.facts, kind)[number])

    def give(self, number: int) -> None:
        """Counts as let go of."""
        gang = self.gangs[number]
        self._tree.give(gang.facts, self._tree.kind(gang.placement), gang.placement.world_size)

    def drop(self, number: int) -> None:
        """Counts as gone."""
        gang = self.gangs[number]
        self._tree.drop(gang.facts, self._tree.kind(gang.placement), gang.placement.world_size)

    def undrop(self, number: int) -> None:
        """After all it is not gone."""
        gang = self.gangs[number]
        self._tree.use(gang.facts, self._tree.kind(gang.placement), gang.placement.world_size)

    def take_back(self, number: int) -> None:
        """After all it does not let go."""
        gang = self.gangs[number]
        self._tree.take_back(gang.facts, self._tree.kind(gang.placement), gang.placement.world_size)

    def _on(self, kind: str) -> Mask:
        mask: Mask = self._kind == self._fleet.ground.kind_number[kind]
        return mask

    def columns(self, kind: str) -> Columns:
        if kind not in self._columns:
            table, parts = list[tuple[float, ...]](), list[NodeSlice]()
            for number in map(int, np.flatnonzero(self._on(kind))):
                shape = self.gangs[number].facts.shape
                for part in self.releasable(number).slices:
                    row = self._fleet.ground.row.get(part.node)
                    if row is not None:
                        parts.append(part)
                        freed = self._fleet.shares.freed(row, part.devices, part.milli)
                        table.append((number, row, freed, shape.cpus, float(shape.memory_bytes)))
            found = np.array(table, np.float64).reshape(-1, 5).T
            whole = found[:2].astype(np.int64)
            self._columns[kind] = Columns(whole[0], whole[1], found[2].copy(), found[3], found[4], parts)
        return self._columns[kind]

    def _reclaim(self, claim: Placement) -> None:
        """What gangs that are ending hold of the claim comes free for nobody else."""
        rows = [self._fleet.ground.row[part.node] for part in claim.slices if part.node in self._fleet.ground.row]
        for columns in self._columns.values():
            at = np.flatnonzero(np.isin(columns.slice_row, rows) & self.ending[columns.slice_gang])
            for one in at:
                part = columns.parts[one]
                left = [index for index in part.devices if (part.node, index) not in self._claimed]
                columns.slice_devices[one] = self._fleet.shares.freed(int(columns.slice_row[one]), left, part.milli)

    def releasable(self, number: int) -> Placement:
        """What the gang lets go of, besides what is claimed already: only one that is ending has such."""
        placement = self.gangs[number].placement
        if not self.ending[number] or not self._claimed:
            return placement
        return Placement(
            tuple(
                replace(part, devices=tuple(index for index in part.devices if (part.node, index) not in self._claimed))
                for part in placement.slices
            )
        )

    def asked(self, gangs: Sequence[JobId], claim: Placement) -> None:
        """These gangs are ended; the devices of the claim are nobody else's."""
        for job in gangs:
            self.ending[self.place[job]] = True
        self._forget()
        self._claimed.update((part.node, index) for part in claim.slices for index in part.devices)
        for job in gangs:
            self._reclaim(self.gangs[self.place[job]].placement)
        self._reclaim(claim)
