"""What of the fleet is kept for whom as a decision goes on: the reserved heads of the pools, bookings, spares, spot to come."""

from collections.abc import Hashable, Sequence

import numpy as np

from phalanx.core.devices import Placement
from phalanx.core.ids import JobId
from phalanx.core.reasons import Kept as KeptFor
from phalanx.core.reasons import Reason
from phalanx.decide.scheduler.plan import Reservation
from phalanx.decide.scheduler.quotas.holds import kind_of
from phalanx.decide.scheduler.quotas.homes import Homes
from phalanx.decide.scheduler.room import bids, bookings, reservation, spot
from phalanx.decide.scheduler.room.ends import Ends
from phalanx.decide.scheduler.room.gangs import Gangs
from phalanx.decide.scheduler.room.hold import CLOSED, NO_BOUND, Hold
from phalanx.decide.scheduler.room.promises import Promises
from phalanx.decide.scheduler.snapshot import JobFacts, PendingJob, RunningJob, Shape, Snapshot
from phalanx.decide.scheduler.where.fit import fits
from phalanx.decide.scheduler.where.fleet import Counts, Fleet, Mask


class Kept:
    """Mutable within one decision. reservations: made so far. waited: types that some job waits for. homes: whose cells are whose,
    where queues have cells."""

    def __init__(self, snapshot: Snapshot, fleet: Fleet, gangs: Gangs) -> None:
        self._now_ms = snapshot.now_ms
        self._policy = snapshot.policy
        self._gangs = gangs
        self._fleet = fleet
        self._promises = Promises(gangs, fleet, snapshot.now_ms)
        self._heads: dict[str, list[Hold]] = {kind: [] for kind in fleet.ground.kinds}
        self._holds: list[Hold] = []
        self._headed: set[JobId] = set()
        self._bound: dict[Hashable, tuple[int, ...]] = {}
        self._firm: dict[Hashable, tuple[int, ...]] = {}
        self._free: dict[Hashable, Counts] = {}
        self._left: dict[Hashable, Counts] = {}
        self._open: dict[Hashable, Mask] = {}
        self._free_at = -1
        self._hopeless: set[tuple[int, str, Hashable]] = set()
        self._closing = spot.closing(fleet.ground)
        self._spot = spot.Spot(fleet.ground, snapshot.policy.spot_fallback_ms, snapshot.now_ms)
        self._bookings = bookings.bookings(snapshot.policy, snapshot.now_ms)
        self._booked_now: dict[str, list[bookings.Booked]] = {}
        for booked in self._bookings:
            if booked.is_on(snapshot.now_ms):
                self._booked_now.setdefault(booked.kind, []).append(booked)
        self.reservations: list[Reservation] = []
        self.waited: set[str] = set()
        self.homes: Homes | None = None

    def stand(self) -> None:
        """Keeps what the policy says, once claims are held: spares first, which repairs need at any time."""
        for kind, num_nodes in sorted(self._policy.spares.items()):
            if kind in self._fleet.ground.kinds:
                self._keep(bookings.spares(kind, num_nodes, self._fleet, self._now_ms))
        for booked in self._bookings:
            if booked.kind in self._fleet.ground.kinds:
                free = bids.besides(booked.kind, self._holds, self._fleet)
                used = self._promises.used(booked, booked.start_ms)
                self._keep(bookings.kept_for(booked, used, free, self._fleet, self.ends, self._now_ms))

    def is_booked_for(self, job: JobFacts, kind: str, num_devices: int) -> bool:
        """Whether so many devices of the type are booked for the job now."""
        return any(
            job.queue in booked.queues and self._promises.used(booked) + num_devices <= booked.devices
            for booked in self._booked_now.get(kind, ())
        )

    def firm_queues(self, job: JobFacts, kind: str) -> frozenset[str]:
        """Other queues that have no more than what is booked for them when the job would run. Their gangs are not ended for it:
        they would be back at once, or when the booking begins, in the place of whom they were ended for."""
        firm = [booked for number in self.in_the_way_of(job) if (booked := self._bookings[number]).kind == kind]
        return frozenset().union(*(booked.queues for booked in firm if self._promises.used(booked) <= booked.devices))

    def in_the_way_of(self, job: JobFacts) -> tuple[int, ...]:
        """Places of the bookings of others that the job would run into, started now."""
        if not self._bookings:
            return ()
        key = (job.limit_ms, job.queue, job.preemptible)
        if key not in self._firm:
            binding = (number for number, booked in enumerate(self._bookings) if bookings.binds(booked, job, self._now_ms))
            self._firm[key] = tuple(binding)
        return self._firm[key]

    def booked_with(self, job: JobFacts, kind: str) -> frozenset[str]:
        """Queues that share a booking with the job's now."""
        return frozenset().union(*(booked.queues for booked in self._booked_now.get(kind, ()) if job.queue in booked.queues))

    def kind_of(self, placement: Placement) -> str:
        """The type of the placement's devices, which are all of one; '' where nobody knows its nodes."""
        return kind_of(placement, self._fleet.ground)

    @property
    def ends(self) -> Ends:
        """When devices come free."""
        return self._promises.ends

    def free(self, job: PendingJob, kind: str) -> Counts:
        """Devices of the type per node that the job may use now without delaying those they are kept for. Not to be changed."""
        shape, alike = job.facts.shape, self.alike(job)
        self._follow()
        key = (kind, alike, shape.cpus, shape.memory_bytes, shape.request.is_share)
        if key not in self._free:
            self._free[key] = self._found_free(job, kind)
        return self._free[key]

    def _follow(self) -> None:
        """Forgets what was free before something was taken."""
        if self._free_at != self._fleet.version:
            self._free_at = self._fleet.version
            self._free.clear()
            self._left.clear()
            self._open.clear()

    def _found_free(self, job: PendingJob, kind: str) -> Counts:
        free, shut = self._fleet.free[kind], self._shut(job)
        if shut is not None:
            free = np.where(shut, _none(job.facts.shape), free)
        for hold in self._binding(job):
            free = hold.cut(job.facts.shape, kind, free)
        return free

    def _shut(self, job: PendingJob) -> Mask | None:
        """Nodes on which nothing is started for the job now: they go away, are others' cells, or no spot while it awaits that."""
        no_spot = ~self._fleet.ground.spot if self._awaits_spot(job) else None
        masks = [mask for mask in (self._closing, no_spot, self._others_cells(job)) if mask is not None]
        return np.logical_or.reduce(masks) if masks else None

    def _others_cells(self, job: PendingJob) -> Mask | None:
        return None if self.homes is None else self.homes.shut(job)

    def open(self, job: PendingJob, kind: str) -> Mask:
        """Nodes on which enough is left beside what is kept from the job: there gangs may be ended for it. Not to be changed."""
        self._follow()
        key = (kind, self.alike(job), job.facts.shape.request.count)
        if key not in self._open:
            self._open[key] = self._found_open(job, kind)
        return self._open[key]

    def _found_open(self, job: PendingJob, kind: str) -> Mask:
        shut = self._shut(job)
        mask = np.ones(len(self._fleet.ground.nodes), np.bool_) if shut is None else ~shut
        for hold in self._binding(job):
            if hold.kind == kind:
                needs_bare = job.facts.shape.request.is_share or hold.spare_cpus is not None
                mask &= hold.spare >= (NO_BOUND // 2 if needs_bare else job.facts.shape.request.count)  # less what was taken of it
        return mask

    def views(self, job: PendingJob, kind: str) -> Sequence[Counts]:
        """What the job is tried on, one after the other: spot alone where it comes first, then all that it may use."""
        free = self.free(job, kind)
        if not self._spot.comes_first(job, kind):
            return (free,)
        return np.where(self._fleet.ground.spot, free, _none(job.facts.shape)), free

    def alike(self, job: PendingJob) -> Hashable:
        """Jobs of one shape for which this is equal have the same devices kept from them now, for the same reason."""
        facts, awaited_ms = job.facts, self._spot.awaited_until_ms(job)
        if self.homes is None:
            return self._bound_by(job), awaited_ms
        return self._bound_by(job), awaited_ms, facts.queue, facts.preemptible

    def _bound_by(self, job: PendingJob) -> tuple[int, ...]:
        """Places of the holds that the job has to keep off."""
        facts = job.facts
        own = facts.job if facts.job in self._headed else None
        key = (facts.limit_ms, facts.queue, facts.preemptible, job.repair, len(self._holds), own)
        if key not in self._bound:
            self._bound[key] = tuple(number for number, hold in enumerate(self._holds) if hold.binds(job, self._now_ms))
        return self._bound[key]

    def why(self, job: PendingJob, kind: str, position: int) -> Reason:
        """For whom the devices are kept that the job would fit on: who alone keeps them from it; else without whom it would start,
        a head first, since its start is near; else the first."""
        shape, fleet = job.facts.shape, self._fleet
        until_ms = self._spot.awaited_until_ms(job)
        if until_ms is not None:
            return KeptFor("spot to come (placing.spot: prefer)", until_ms)
        binding = self._bound_by(job)
        for number in binding:
            if not fits(shape, kind, fleet, self._beside(number, shape, kind), job.avoids):
                return self._holds[number].why(position)
        cells = self._others_cells(job)
        if cells is not None and not fits(shape, kind, fleet, np.where(cells, _none(shape), fleet.free[kind]), job.avoids):
            return KeptFor("other queues, in whose cells they are", None)
        heads_first = sorted(binding, key=lambda number: self._holds[number].head is None) if len(binding) > 1 else ()
        for number in heads_first:
            if fits(shape, kind, fleet, self._without(number, binding, shape, kind), job.avoids):
                return self._holds[number].why(position)
        return self._holds[binding[0]].why(position) if binding else KeptFor("nobody: their nodes go away", None)

    def _without(self, number: int, binding: Sequence[int], shape: Shape, kind: str) -> Counts:
        """What the others of these holds would leave of what is free."""
        left = self._fleet.free[kind]
        for other in binding:
            left = np.minimum(left, self._beside(other, shape, kind)) if other != number else left
        return left

    def _beside(self, number: int, shape: Shape, kind: str) -> Counts:
        """What this hold alone would leave of what is free."""
        self._follow()
        key = (number, kind, shape.cpus, shape.memory_bytes, shape.request.is_share)
        if key not in self._left:
            self._left[key] = self._holds[number].cut(shape, kind, self._fleet.free[kind])
        return self._left[key]

    def reserve(self, job: PendingJob, number: int, kinds: Sequence[str], takes_turns: bool = False) -> None:
        """The job has to wait for one of `kinds`: it becomes the head of one that has none yet, the one where it starts first.
        number: of its shape. takes_turns: who may be ended makes room for it when its turn comes, and may start until then."""
        self.waited.update(kinds)
        if job.facts.job in self._headed:
            return
        if not self._policy.backfill:
            for kind in kinds:
                self._strict(job, kind)
            return
        bids = [bid for kind in kinds if (bid := self._bid(job, number, kind)) is not None]
        if not bids:
            return
        best = min(bids, key=lambda bid: bid.nearness)
        best.hold.yields_ms = 0 if takes_turns else None
        self._head(job, best.hold)
        self.reservations.append(Reservation(job.facts.job, best.kind, best.start_ms, self._likely(best.hold)))

    def keep_for(self, job: PendingJob, kind: str, placement: Placement, from_ms: int) -> None:
        """The job starts there as soon as the youngest gang on it may be ended: what is free of it stays free until then."""
        spare = np.full(len(self._fleet.ground.nodes), NO_BOUND, np.int32)
        kept = np.zeros_like(spare)
        for part in placement.slices:
            row = self._fleet.ground.row[part.node]
            kept[row] = len(part.devices)
            spare[row] = len(set(self._fleet.devices(row, kind)) - set(part.devices))
        self._head(job, Hold(kind, from_ms, kept, spare, head=job.facts.job))
        self.reservations.append(Reservation(job.facts.job, kind, from_ms, placement))

    def started(self, job: PendingJob, kind: str, placement: Placement) -> None:
        """The job starts there: what was to spare is less."""
        self._promises.made(job.facts, placement, ())
        self._taken(job, kind, placement)

    def promised(self, job: PendingJob, placement: Placement, holders: Sequence[RunningJob]) -> None:
        """The job starts there as soon as gangs, which end, have let go of it; one of them may be itself, in another size."""
        self._promises.made(job.facts, placement, holders)
        if any(gang.facts.job != job.facts.job for gang in holders):
            self._taken(job, self.kind_of(placement), placement)

    def _taken(self, job: PendingJob, kind: str, placement: Placement) -> None:
        """Of what is to spare beside what is kept."""
        self._free_at = -1
        for hold in self._binding(job):
            hold.took(job.facts.shape, kind, placement, self._fleet)

    def gave_up(self, job: JobFacts) -> None:
        """What was promised to it is not any more."""
        self._promises.gave_up(job)

    def ended(self, gang: RunningJob) -> None:
        """The gang is asked to end in this decision."""
        self._promises.ended(gang)

    def _bid(self, job: PendingJob, number: int, kind: str) -> reservation.Bid | None:
        if len(self._heads[kind]) >= self._policy.heads:
            return None
        alike = number, kind, self.alike(job)
        if alike in self._hopeless:
            return None
        site = bids.Site(self._fleet, self.ends, self._shut(job), self._now_ms)
        bid = bids.found(job, kind, self._holds, site)
        if bid is None:
            self._hopeless.add(alike)
        return bid

    def _strict(self, job: PendingJob, kind: str) -> None:
        """Nobody passes the job, even where that would not delay it."""
        if not self._heads[kind]:
            none = np.zeros(len(self._fleet.ground.nodes), np.int32)
            self._head(job, Hold(kind, self._now_ms, none, none, head=job.facts.job))

    def _head(self, job: PendingJob, hold: Hold) -> None:
        """It is kept for the job, the head of the hold's pool."""
        self._headed.add(job.facts.job)
        self._heads[hold.kind].append(hold)
        self._holds.append(hold)

    def _binding(self, job: PendingJob) -> list[Hold]:
        return [self._holds[number] for number in self._bound_by(job)]

    def _keep(self, hold: Hold | None) -> None:
        if hold is not None:
            self._holds.append(hold)
            self.reservations.append(Reservation(None, hold.kind, hold.from_ms, self._likely(hold), hold.what))

    def _likely(self, hold: Hold) -> Placement:
        return reservation.likely(hold.kind, hold.kept, self._fleet, self._gangs, self._now_ms)

    def _awaits_spot(self, job: PendingJob) -> bool:
        return self._spot.awaited_until_ms(job) is not None


def _none(shape: Shape) -> int:
    """Free devices of a node that is shut: a share gets nothing of a device that others hold in part either."""
    return CLOSED if shape.request.is_share else 0
