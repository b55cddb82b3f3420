"""What of the fleet waiting jobs may use at all: no nodes that were drained or go away, nor spot where they must not, nor nodes
without the labels and features they need, nor spares, cells of others and what others have booked. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.devices import WHOLE, Placement
from phalanx.core.ids import NodeId
from phalanx.decide.scheduler.plan import Plan, Start
from phalanx.decide.scheduler.quotas.cells import tenant_of
from phalanx.decide.scheduler.room.bookings import REPAIRS, YIELDS_MS, Booked, bookings
from phalanx.decide.scheduler.snapshot import JobFacts, NodeFacts, PendingJob, Snapshot
from phalanx.decide.scheduler.where.ground import Mask

Numbers = NDArray[np.float64]

_NEVER: Final = math.inf

_STEPS: Final = 4.0
"""By this factor differ times from which on a booking is kept from jobs that are counted apart: each has its own limit."""


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """What some jobs may use; of one decision there are no two alike. nodes: which of the snapshot's, as the bytes of a mask.
    kept_ms: from when on (milliseconds from now) each of the bookings that are not over is kept from them; infinite for those that
    it is for."""

    nodes: bytes
    kept_ms: tuple[float, ...]

    @property
    def mask(self) -> Mask:
        return np.frombuffer(self.nodes, np.bool_)

    def is_within(self, other: "Reach") -> bool:
        """Whether who has this may use nothing that who has the other may not."""
        if self is other:
            return True
        kept = all(mine <= its for mine, its in zip(self.kept_ms, other.kept_ms, strict=True))
        return kept and not (self.mask & ~other.mask).any()


class Reaches:
    """Of one decision. bookings: those that are not over. all: the reach of who may use whatever anybody may."""

    def __init__(self, snapshot: Snapshot, plan: Plan) -> None:
        self._snapshot, self._plan = snapshot, plan
        self.bookings = bookings(snapshot.policy, snapshot.now_ms)
        self._lasting = np.array([_lasts(node) for node in snapshot.nodes], np.bool_)
        self._spot = np.array([node.spot for node in snapshot.nodes], np.bool_)
        self._spares = self._of([one.placement for one in plan.reservations if one.what.startswith(REPAIRS)])
        self._cells = dict(plan.cells)
        self.all = Reach(self._lasting.tobytes(), (_NEVER,) * len(self.bookings))
        self._masks: dict[object, bytes] = {}
        self._kinds: dict[str, Mask] = {}
        self._found: dict[tuple[object, object], Reach] = {}
        self._same = {(self.all.nodes, self.all.kept_ms): self.all}
        self._free: dict[tuple[Reach, str], float] = {}
        self._has: dict[tuple[Reach, str], float] = {}
        self._first: dict[object, int] = {}

    def of(self, job: PendingJob) -> Reach:
        """The same object for jobs that are alike."""
        facts, shape = job.facts, job.facts.shape
        tenant = self._tenant(facts) if self._cells else None
        where = (shape.spot == "never", shape.needs, shape.where, job.repair, tenant)
        when = (facts.queue, facts.limit_ms, facts.preemptible) if self.bookings else ()
        found = self._found.get((where, when))
        if found is None:
            if where not in self._masks:
                self._masks[where] = self._nodes(job, tenant)
            has = (self._masks[where], tuple(_coarse(self._from(one, facts)) for one in self.bookings))
            found = self._found[where, when] = self._same.setdefault(has, Reach(*has))
        return found

    def free(self, reach: Reach, kind: str) -> float:
        """Devices of the type that nothing holds once the plan's gangs have started."""
        if (reach, kind) not in self._free:
            mask = reach.mask & self._of_kind(kind)
            free = float(sum(len(node.free) for node in compress(self._snapshot.nodes, mask.tolist()) if node.schedulable))
            for row, devices in self._taken:
                if mask[row]:
                    free -= devices
            self._free[reach, kind] = free
        return self._free[reach, kind]

    def part(self, reach: Reach, kind: str, placement: Placement) -> float:
        """How many of its devices are of the type and lie within reach."""
        mask, of_kind = reach.mask, self._of_kind(kind)
        rows = ((self._row.get(one.node), one) for one in placement.slices)
        inside = (one for row, one in rows if row is not None and mask[row] and of_kind[row])
        return sum(len(one.devices) * one.milli for one in inside) / WHOLE

    def kept(self, reach: Reach, kind: str, times_ms: Numbers, gangs: Mapping[str, tuple[float, Numbers]]) -> Numbers:
        """Devices within reach that bookings keep from its jobs at each time, counted from now. gangs: of each queue, how many its
        gangs hold beyond reach now, and within it at each time."""
        found = np.zeros(len(times_ms))
        for booked, from_ms in zip(self.bookings, reach.kept_ms, strict=True):
            if booked.kind != kind or from_ms == _NEVER:
                continue
            own = [held for queue, held in gangs.items() if queue in booked.queues]
            beyond = sum(held[0] for held in own) + self._kept_beyond(reach, booked)
            lacking = np.maximum(0.0, booked.devices - beyond - sum((held[1] for held in own), np.zeros(len(times_ms))))
            is_on = (times_ms >= from_ms) & (times_ms < booked.end_ms - self._snapshot.now_ms)
            found += np.where(is_on, lacking, 0.0)
        return found

    def left(self, at_ms: int, job: PendingJob) -> float:
        """Devices of the types that it asks for that are free now, and are not kept by bookings for others then."""
        reach, facts = self.of(job), job.facts
        left = {kind: self.free(reach, kind) for kind in facts.shape.request.types or self._all_kinds}
        for booked, had in zip(self.bookings, self._had, strict=True):
            if booked.kind in left and booked.end_ms > at_ms and self._from(booked, facts, at_ms) <= 0.0:
                left[booked.kind] -= max(0.0, booked.devices - had - self._kept_beyond(reach, booked))
        return sum(max(0.0, devices) for devices in left.values())

    def first_ms(self, job: PendingJob) -> int:
        """Unix time before which it starts on nothing that comes free: what is booked for others leaves too little. Now for others.
        It could start before only in the place of gangs of theirs that are ended for it before the booking begins."""
        now_ms, facts = self._snapshot.now_ms, job.facts
        bound = [one for one in self.bookings if self._from(one, facts) <= 0.0]
        if not bound or (self._cells and tenant_of(self._snapshot.policy.queues, facts.queue) is not None):
            return now_ms
        reach, request = self.of(job), facts.shape.request
        fewest = facts.shape.fewest_nodes * request.count * request.milli / WHOLE
        alike = (reach, request.types, fewest, facts.queue, facts.limit_ms, facts.preemptible)
        if alike not in self._first:
            times = sorted({now_ms, *(one.end_ms for one in self.bookings)})
            found = [
                next(at_ms for at_ms in times if fewest + self._booked(at_ms, kind, job) <= has)
                for kind in request.types or self._all_kinds
                if (has := self._devices(reach, kind)) >= fewest
            ]
            self._first[alike] = min(found, default=now_ms)
        return self._first[alike]

    def _booked(self, at_ms: int, kind: str, job: PendingJob) -> float:
        """Devices of the type within the job's reach that are booked for others then, at the least, used or not."""
        facts, elsewhere = job.facts, self._devices(self.all, kind) - self._devices(self.of(job), kind)
        of_kind = (one for one in self.bookings if one.kind == kind)
        bound = (one.devices for one in of_kind if one.end_ms > at_ms and self._from(one, facts, at_ms) <= 0.0)
        return sum(max(0.0, devices - elsewhere) for devices in bound)

    def _from(self, booked: Booked, facts: JobFacts, now_ms: int | None = None) -> float:
        """From when on it is kept from the job, as `Hold.binds` says."""
        if facts.queue in booked.queues:
            return _NEVER
        starts_ms = max(0, booked.start_ms - (self._snapshot.now_ms if now_ms is None else now_ms))
        from_ms = 0.0 if facts.limit_ms is None else max(0.0, starts_ms - facts.limit_ms)
        return max(from_ms, float(starts_ms - YIELDS_MS)) if facts.preemptible else from_ms

    def _kept_beyond(self, reach: Reach, booked: Booked) -> int:
        mask = reach.mask
        placements = (one.placement for one in self._plan.reservations if one.job is None and one.what == booked.what)
        return sum(len(part.devices) for one in placements for part in one.slices if not mask[self._row[part.node]])

    def _tenant(self, facts: JobFacts) -> tuple[str, bool]:
        """Whose cells it may have, and whether it may run beyond them, or, of who has none, in those of others."""
        queues = self._snapshot.policy.queues
        name = tenant_of(queues, facts.queue)
        return name or "", facts.preemptible and (name is None or queues[name].borrow)

    def _nodes(self, job: PendingJob, tenant: tuple[str, bool] | None) -> bytes:
        shape, nodes = job.facts.shape, self._snapshot.nodes
        mask = self._lasting & ~self._spot if shape.spot == "never" else self._lasting.copy()
        if not job.repair:
            mask &= ~self._spares
        if shape.needs:
            mask &= np.array([shape.needs <= node.features for node in nodes], np.bool_)
        for name, value in shape.where:
            mask &= np.array([node.labels.get(name) == value for node in nodes], np.bool_)
        if tenant is not None:
            mask &= np.array([_is_for(self._cells.get(node.node), *tenant) for node in nodes], np.bool_)
        return mask.tobytes()

    def _of(self, placements: Sequence[Placement]) -> Mask:
        """Their nodes."""
        mask = np.zeros(len(self._snapshot.nodes), np.bool_)
        mask[[self._row[part.node] for one in placements for part in one.slices]] = True
        return mask

    def _of_kind(self, kind: str) -> Mask:
        if kind not in self._kinds:
            of_kind = [bool(node.devices) and node.devices[0][1] == kind for node in self._snapshot.nodes]
            self._kinds[kind] = np.array(of_kind, np.bool_)
        return self._kinds[kind]

    def _devices(self, reach: Reach, kind: str) -> float:
        """Of the type within reach, held or not."""
        if (reach, kind) not in self._has:
            mask = reach.mask & self._of_kind(kind)
            self._has[reach, kind] = float(sum(len(node.devices) for node in compress(self._snapshot.nodes, mask.tolist())))
        return self._has[reach, kind]

    @cached_property
    def _row(self) -> dict[NodeId, int]:
        return {node.node: row for row, node in enumerate(self._snapshot.nodes)}

    @cached_property
    def _had(self) -> tuple[float, ...]:
        """Of each booking, what its queues' gangs have now and once the plan's have started."""
        queue_of = {job.facts.job: job.facts.queue for job in self._snapshot.pending}
        starting = [(queue_of[one.job], one.placement) for one in self._plan.decisions if isinstance(one, Start)]
        gangs = [*((gang.facts.queue, gang.placement) for gang in self._snapshot.running), *starting]
        return tuple(
            sum(self.part(self.all, booked.kind, placement) for queue, placement in gangs if queue in booked.queues)
            for booked in self.bookings
        )

    @cached_property
    def _taken(self) -> list[tuple[int, float]]:
        """By the plan's starts: rows and devices."""
        starting = (one.placement for one in self._plan.decisions if isinstance(one, Start))
        return [(self._row[part.node], len(part.devices) * part.milli / WHOLE) for one in starting for part in one.slices]

    @cached_property
    def _all_kinds(self) -> tuple[str, ...]:
        return tuple(sorted({node.devices[0][1] for node in self._snapshot.nodes if node.devices}))


def _lasts(node: NodeFacts) -> bool:
    """Whether what is let go of there can be had again: a node that is merely away comes back."""
    return node.closing_ms is None and (node.schedulable or not (node.drained or node.gone))


def _is_for(owner: str | None, tenant: str, roams: bool) -> bool:
    """Whether a node is. owner: None where it is in nobody's cells, '' where its cell is bound to nobody yet. tenant: '' of who has
    no cells; what runs in those of others is ended for them. roams: as in `Reaches._tenant`."""
    if owner is None:
        return roams or not tenant
    return owner in {"", tenant} if tenant else roams


def _coarse(from_ms: float) -> float:
    return from_ms if from_ms in {0.0, _NEVER} else _STEPS ** math.floor(math.log(from_ms, _STEPS))
