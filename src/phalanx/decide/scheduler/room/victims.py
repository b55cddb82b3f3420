"""Gangs that may be asked to let go of devices for others, as columns, and what that costs."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from phalanx.core.devices import WHOLE, Placement
from phalanx.core.ids import JobId, NodeId
from phalanx.core.policy import Policy
from phalanx.decide.scheduler.quotas.deserved import Deserts
from phalanx.decide.scheduler.quotas.fair import Ask
from phalanx.decide.scheduler.quotas.lines import Line
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.room.freed import Columns, Freed, Parts
from phalanx.decide.scheduler.room.gangs import Gangs
from phalanx.decide.scheduler.room.kept import Kept
from phalanx.decide.scheduler.snapshot import JobFacts, PendingJob, RunningJob, Snapshot
from phalanx.decide.scheduler.targets import is_late, late_since
from phalanx.decide.scheduler.where.fleet import Fleet, Mask
from phalanx.decide.scheduler.where.ground import Amounts

Cause = Literal["priority", "reclaim", "target", "booking", "order"]

NOMINAL_MS: Final = 1_800_000
"""A gang counts as losing at most half an hour of work, whenever it last saved. Else one that never commits a checkpoint would be
the dearest of all, and everybody would learn to hide theirs. What must not be lost says `preemptible: false`. See ADR 0019."""


def lost_ms(gang: RunningJob, now_ms: int) -> int:
    """Device-milliseconds that are done again or idle when the gang is ended now: since its last checkpoint, and to start again."""
    held = sum(len(part.devices) * part.milli for part in gang.placement.slices)
    return held * (max(0, now_ms - max(gang.placed_ms, gang.saved_ms)) + gang.restart_ms) // WHOLE


def cost_ms(gangs: Gangs, now_ms: int) -> Amounts:
    """What of that counts when victims are chosen, of each gang."""
    unsaved_ms = np.clip(now_ms - np.maximum(gangs.placed_ms, gangs.saved_ms), 0, NOMINAL_MS)
    return np.asarray(gangs.held * (unsaved_ms + gangs.restart_ms) // WHOLE)


class Victims:
    """Mutable within one decision: who has been asked is not asked again, and what is claimed comes free for nobody else."""

    def __init__(
        self, snapshot: Snapshot, fleet: Fleet, tree: Tree, kept: Kept, gangs: Gangs, asks: Callable[[], Mapping[Ask, int]]
    ) -> None:
        self._policy: Policy = snapshot.policy
        now_ms = snapshot.now_ms
        self._late_since = late_since(snapshot.policy, now_ms)
        self._fleet, self._tree, self._kept = fleet, tree, kept
        self._bounds = sorted(one.priority for one in snapshot.policy.classes.values())
        self._gangs = gangs
        self.gangs, self.place = gangs.all, gangs.place
        self._deserts = Deserts(snapshot, tree, gangs, asks)
        self.cost = cost_ms(gangs, now_ms).astype(np.float64)
        self.ending = gangs.stopping.copy()
        self._class = np.searchsorted(self._bounds, gangs.priority, side="right")
        self._may: Mask = gangs.preemptible & (now_ms - gangs.placed_ms >= snapshot.policy.preemption.min_runtime_ms)
        self._spared: Mask = gangs.evictions >= snapshot.policy.preemption.max_evictions
        self._lowest_class = int(self._class[~self._spared].min(initial=len(self._bounds)))
        self._above: Mask = gangs.more_nodes > 0
        self._freed = Freed(snapshot, fleet, gangs, self.ending)
        self._lowest_first = np.lexsort((self.cost, gangs.priority))
        self._known_usable: dict[str, Mask] = {}
        self._causes: dict[Hashable, tuple[dict[Cause, Mask], Mask]] = {}
        self._below: dict[tuple[str, str, int], Mask] = {}
        self._elastic: dict[Hashable, tuple[int, ...]] = {}
        self._lowest: dict[tuple[Line, str, int], tuple[int, ...]] = {}
        self._moves = tree.moves
        self._nobody = np.zeros(len(self.gangs), np.bool_)
        self._guarded = self._nobody.copy()
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
        usable &= ~self._spared & (self._gangs.priority <= job.facts.priority)
        found: list[int] = np.flatnonzero(usable & ~self.within_guarantee(job, kind)).tolist()
        return found

    def causes(self, job: PendingJob, kind: str, num_devices: int) -> tuple[dict[Cause, Mask], Mask]:
        """Who may be ended for the job, by why; and all of these together.

        For what is booked for it: whoever is not of its queue. By priority: lower classes, but for gangs within a guarantee that
        the job has no part in, whose owner would reclaim it at once. To reclaim: whoever has more than it deserves, while the job
        has less; how often they were ended today does not protect them, for a guarantee that others' bad luck suspends is none.
        Nobody of a queue that has no more than what is booked for it when the job would run, which goes before guarantees: it
        would be back at once.
        """
        self._follow()
        facts = job.facts
        rights = self._deserts.rights(facts, kind, num_devices) if self._policy.preemption.reclaim else ()
        is_booked = self._kept.is_booked_for(facts, kind, num_devices)
        key = (
            facts.queue,
            kind,
            facts.priority,
            is_late(job, self._late_since),
            rights,
            is_booked,
            self._kept.in_the_way_of(facts),
        )
        if key not in self._causes:
            is_above = self._policy.preemption.enabled and self.class_of(facts.priority) > self._lowest_class
            might = is_booked or any(rights) or is_above
            found, everybody = self._found_causes(job, kind, num_devices, is_booked) if might else {}, self._nobody
            for mask in found.values():
                everybody = everybody | mask
            self._causes[key] = found, everybody
        return self._causes[key]

    def _found_causes(self, job: PendingJob, kind: str, num_devices: int, is_booked: bool) -> dict[Cause, Mask]:
        facts, policy = job.facts, self._policy.preemption
        usable = self._usable(kind) & ~self._booked(facts, kind)
        found: dict[Cause, Mask] = {}
        if not usable.any():
            return found
        if is_booked:
            found["booking"] = usable & ~self._of(self._kept.booked_with(facts, kind))
        if policy.enabled:
            by_priority: Cause = "target" if is_late(job, self._late_since) else "priority"
            found[by_priority] = usable & self._unprotected(facts, kind)
        if policy.reclaim:
            found["reclaim"] = usable & self._deserts.reclaimable(facts, kind, num_devices)
        return {cause: mask for cause, mask in found.items() if mask.any()}

    def _unprotected(self, job: JobFacts, kind: str) -> Mask:
        """Gangs of lower classes, but for those within a guarantee that the job has no part in. Not to be changed."""
        key = (job.queue, kind, self.class_of(job.priority))
        if key not in self._below:
            self._below[key] = self._usable(kind) & self._lower(job) & ~self._deserts.protected(job, kind)
        return self._below[key]

    def lower(self, job: PendingJob, kind: str, queue: Line) -> tuple[int, ...]:
        """Gangs in the queue of lower classes that may be ended, whoever is guaranteed what they hold; the lowest first, then those
        that lose least."""
        if not self._policy.preemption.enabled:
            return ()
        key = (queue, kind, self.class_of(job.facts.priority))
        if key not in self._lowest:
            found = self._usable(kind) & self._lower(job.facts) & self._deserts.within(queue)
            self._lowest[key] = tuple(self._lowest_first[found[self._lowest_first]].tolist())
        return self._lowest[key]

    def _lower(self, job: JobFacts) -> Mask:
        found: Mask = ~self._spared & (self._class < self.class_of(job.priority))
        return found

    def within_guarantee(self, job: PendingJob, kind: str) -> Mask:
        """Gangs that stay, whoever goes before them: what they have is guaranteed to others than the job, or booked for them."""
        return self._deserts.protected(job.facts, kind) | self._booked(job.facts, kind)

    def _booked(self, job: JobFacts, kind: str) -> Mask:
        """Gangs of queues that have no more than what is booked for them when the job would run, which it is not of."""
        return self._of(self._kept.firm_queues(job, kind))

    def _of(self, queues: Collection[str]) -> Mask:
        """Gangs of these queues."""
        if not queues:
            return self._nobody
        return np.isin(self._gangs.queue, [at for at, name in enumerate(self._gangs.queues) if name in queues])

    def _follow(self) -> None:
        """Forgets what was found out before something was taken or let go of."""
        if self._moves != self._tree.moves:
            self._moves = self._tree.moves
            self._causes.clear()
            self._below.clear()
            self._elastic.clear()

    def _forget(self) -> None:
        """What was found out before other gangs could be ended."""
        self._known_usable.clear()
        self._lowest.clear()
        self._causes.clear()
        self._below.clear()
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
            shape = job.facts.shape
            return not self._deserts.may_reclaim(job.facts, kind, shape.request.count * shape.fewest_nodes, number)
        return cause in ("priority", "target") and self._deserts.protects(job.facts, kind, number)

    def give(self, number: int) -> None:
        """Counts as let go of."""
        gang = self.gangs[number]
        self._tree.give(gang.facts, self._tree.kind(gang.placement), gang.placement.world_size)

    def take_back(self, number: int) -> None:
        """After all it does not let go."""
        gang = self.gangs[number]
        self._tree.take_back(gang.facts, self._tree.kind(gang.placement), gang.placement.world_size)

    def _on(self, kind: str) -> Mask:
        mask: Mask = self._gangs.kind == self._fleet.ground.kind_number[kind]
        return mask

    def columns(self, kind: str) -> Columns:
        return self._freed.columns(kind)

    def parts(self, kind: str, of_shares: bool = False) -> Parts:
        return self._freed.parts(kind, of_shares)

    def freed(self, kind: str, who: Mask) -> NDArray[np.float64]:
        """Devices of the type that come free on each node when all of these end. Not to be changed."""
        return self._freed.per_row(kind, who)

    def releasable(self, number: int, on: Collection[NodeId] | None = None) -> Placement:
        """What the gang lets go of, on these nodes or all, besides what is claimed already: only one that is ending has such."""
        return self._freed.releasable(number, on)

    def ending_on(self, placement: Placement) -> list[int]:
        """Gangs that are ending already and hold some of the placement."""
        slices, wanted = self._gangs.slices, {part.node: part.devices for part in placement.slices}
        rows = np.zeros(len(self._fleet.ground.nodes), np.bool_)
        rows[[self._fleet.ground.row[node] for node in wanted]] = True
        near = np.unique(slices.gang[self.ending[slices.gang] & rows[slices.row]])
        return [number for number in near.tolist() if _holds(self.gangs[number].placement, wanted)]

    def asked(self, gangs: Sequence[JobId], claim: Placement) -> None:
        """These gangs are ended; the devices of the claim are nobody else's."""
        numbers = [self.place[job] for job in gangs]
        self.ending[numbers] = True
        self._forget()
        self._freed.promise(claim, numbers)


def _holds(placement: Placement, wanted: Mapping[NodeId, Collection[int]]) -> bool:
    return any(not set(part.devices).isdisjoint(wanted.get(part.node, ())) for part in placement.slices)
