"""A plan, as far as it still holds: it was made in another process, of a snapshot that may be old now. Pure but for the draft."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from phalanx.core.devices import Placement
from phalanx.core.events import AttemptPlaced, DevicesClaimed, JobEvicted, JobWaits
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.reasons import Reason
from phalanx.core.states import Holding, Pending, Running, Starting, Stopping
from phalanx.decide.scheduler.plan import Evict, Plan, Start, Wait
from phalanx.operate.control import names, observed, verdict, wanted
from phalanx.operate.control.fences import Fences
from phalanx.operate.control.fold import Draft
from phalanx.operate.control.observed import Sightings
from phalanx.operate.control.taken import Taken, still_holds
from phalanx.operate.control.world import World
from phalanx.record.telemetry.ledger.waiting import waits_as


def carry(draft: Draft, seen: Sightings, fenced: Fences, plan: Plan, epoch: int, at_ms: int, strangers: bool) -> None:
    """Adds what of the plan still holds to the draft: claims that are given up, evictions with what they are for, starts, and
    reasons to wait that changed. strangers: as in `observed.ready`."""
    taken = Taken(draft.world, fenced)
    ready, forgotten = observed.ready(draft.world, seen, strangers), names.forgotten(draft.world, seen)
    _give_up(draft, taken, seen, plan, at_ms)
    for room in _rooms(plan):
        _make(draft, taken, seen, ready, room, at_ms)
    for decision in plan.decisions:
        match decision:
            case Start(job, placement) if still_holds(draft.world, taken, ready, job, placement):
                record = draft.world.jobs[job]
                ports = wanted.ports(draft.world, taken, record, placement)
                if ports is not None:
                    attempt, (master_port, gang_port) = names.next_attempt(forgotten, record), ports
                    taken.claim(job, None)
                    taken.start(attempt, placement, *(port for port in ports if port))
                    draft.add(AttemptPlaced(job, attempt, placement, master_port, epoch, gang_port), at_ms)
            case Wait(job, reason):
                _wait(draft, job, reason, at_ms)


def waiting(world: World, plan: Plan, before: Mapping[JobId, Wait]) -> dict[JobId, Wait]:
    """Why each pending job waits: as this plan says, else as the one before did."""
    waits = {decision.job: decision for decision in plan.decisions if isinstance(decision, Wait)}
    pending = (job.id for job in world.open_jobs.values() if isinstance(job.state, Pending))
    return {job: wait for job in pending if (wait := waits.get(job) or before.get(job)) is not None}


def _wait(draft: Draft, job: JobId, reason: Reason, at_ms: int) -> None:
    """Only a change of kind is worth a line in the log, or of what the ledger makes of it; the numbers move with every tick."""
    record = draft.world.open_jobs.get(job)
    if record is None or not isinstance(record.state, Pending):
        return
    told = record.reason
    if told is None or told.kind != reason.kind or waits_as(told) != waits_as(reason):
        draft.add(JobWaits(job, reason), at_ms)


# Claims


@dataclass(frozen=True, slots=True)
class _Room:
    """What belongs together: gangs that end, and who starts on what once they have let go."""

    evictions: tuple[Evict, ...]
    claims: tuple[tuple[JobId, Placement], ...]


def _rooms(plan: Plan) -> Iterator[_Room]:
    """One for each job that gangs are ended for, in the plan's order. A gang that would be ended without anybody's claim is left
    alone, but where its node is about to be taken away."""
    claims = {claim.job: claim.placement for claim in plan.claims if claim.placement is not None}
    victims: dict[JobId, list[Evict]] = {job: [] for job in claims}
    for eviction in plan.evictions:
        victims.setdefault(eviction.claimant, []).append(eviction)
    for claimant, evictions in victims.items():
        own = [(claimant, claims[claimant])] if claimant in claims else []
        kept = [(eviction.job, eviction.keeps) for eviction in evictions if eviction.keeps is not None]
        leaves = all(eviction.job == claimant and eviction.cause == "spot" for eviction in evictions)
        if own or leaves or any(job == claimant for job, _ in kept):
            yield _Room(tuple(evictions), (*own, *kept))


def _make(draft: Draft, taken: Taken, seen: Sightings, ready: frozenset[NodeId], room: _Room, at_ms: int) -> None:
    """All of it or nothing: who is ended is ended for a placement. Claims come first, so that what is let go of is never
    anybody's."""
    world = draft.world
    if not all(_goes_on(world, eviction) for eviction in room.evictions):
        return
    ending = {eviction.attempt for eviction in room.evictions} | _stopping(world)
    for number, (job, placement) in enumerate(room.claims):
        if not _may_claim(world, taken, ready, job, placement, room.evictions, ending):
            for claimant, _ in room.claims[:number]:
                taken.claim(claimant, world.jobs[claimant].claim)
            return
        taken.claim(job, placement)
    for job, placement in room.claims:
        if world.jobs[job].claim != placement:
            draft.add(DevicesClaimed(job, placement), at_ms)
    for eviction in room.evictions:
        if not _ends_anyway(draft.world, seen, eviction):
            body = JobEvicted(eviction.job, eviction.attempt, eviction.claimant, eviction.cause, eviction.lost_ms)
            draft.add(body, at_ms)


def _goes_on(world: World, eviction: Evict) -> bool:
    """Whether that attempt still holds its devices. One that was let go of since ends nothing; the next plan knows it."""
    record = world.open_jobs.get(eviction.job)
    return record is not None and isinstance(record.state, Holding) and record.attempt == eviction.attempt


def _ends_anyway(world: World, seen: Sightings, eviction: Evict) -> bool:
    """It was asked to end since, or all its ranks have done what they had to do."""
    record, attempt = world.jobs[eviction.job], world.attempts[eviction.attempt]
    return isinstance(record.state, Stopping) or verdict.is_done(record, attempt, seen.of(attempt))


def _may_claim(
    world: World,
    taken: Taken,
    ready: frozenset[NodeId],
    job: JobId,
    placement: Placement,
    evictions: Sequence[Evict],
    ending: Collection[AttemptId],
) -> bool:
    """A waiting job, or one of the evicted itself; every device is free or becomes so by this, and is nobody else's. Or a gang what
    it borrowed until now."""
    record = world.open_jobs.get(job)
    if record is None or not placement.slices or any(part.node not in ready for part in placement.slices):
        return False
    itself = isinstance(record.state, Starting | Running) and any(eviction.job == job for eviction in evictions)
    if isinstance(record.state, Starting | Running) and not itself:
        assert record.attempt is not None
        return world.attempts[record.attempt].held == replace(placement, borrowed=True)  # it borrows it no more
    return (itself or isinstance(record.state, Pending)) and taken.has_room(job, placement, ending)


def _stopping(world: World) -> set[AttemptId]:
    return {attempt.id for job, attempt in world.holding() if isinstance(job.state, Stopping)}


def _give_up(draft: Draft, taken: Taken, seen: Sightings, plan: Plan, at_ms: int) -> None:
    """Claims that the plan drops, but for those on nodes that only have yet to report to this control plane; and those on devices
    that are not there any more, whatever the plan says."""
    world = draft.world
    dropped = {claim.job for claim in plan.claims if claim.placement is None}
    for record in list(world.open_jobs.values()):
        if record.claim is None:
            continue
        unsaid = any(part.node not in seen.greeted and _is_open(world, part.node) for part in record.claim.slices)
        if (record.id in dropped and not unsaid) or not _is_there(world, record.claim):
            taken.claim(record.id, None)
            draft.add(DevicesClaimed(record.id, None), at_ms)


def _is_open(world: World, node: NodeId) -> bool:
    record = world.nodes.get(node)
    return record is not None and record.up and not record.drained


def _is_there(world: World, placement: Placement) -> bool:
    for part in placement.slices:
        record = world.nodes.get(part.node)
        if record is None or not set(part.devices) <= {device.index for device in record.shape.devices}:
            return False
    return True
