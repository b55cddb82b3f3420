"""The pipeline, whole. Pure and deterministic: equal snapshots give equal plans, whatever the order of their tuples."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from phalanx.core.devices import Placement
from phalanx.core.reasons import Behind, MakingRoom, NeverFits, NoNodes, OverBudget, OverLimit, OverQuota, Reason
from phalanx.decide.scheduler import admit
from phalanx.decide.scheduler.gates import Gates
from phalanx.decide.scheduler.known import Rights
from phalanx.decide.scheduler.line.order import in_order
from phalanx.decide.scheduler.line.sweeps import Batch
from phalanx.decide.scheduler.line.turns import share_in_time, take_turn
from phalanx.decide.scheduler.memory import Memory
from phalanx.decide.scheduler.plan import Claim, Decision, Plan, Start, Wait
from phalanx.decide.scheduler.quotas.homes import Homes, homes
from phalanx.decide.scheduler.quotas.moving_in import bring_home, move_in
from phalanx.decide.scheduler.room import claims, elastic, handover, preemption
from phalanx.decide.scheduler.room.leaving import leave
from phalanx.decide.scheduler.round import Round
from phalanx.decide.scheduler.snapshot import PendingJob, Snapshot
from phalanx.decide.scheduler.where.fit import fit, fits
from phalanx.decide.scheduler.where.fleet import Counts, Rows
from phalanx.decide.scheduler.where.packing import packs
from phalanx.decide.scheduler.why.explain import no_room

NOT_FOR_DEVICES: Final = (OverQuota, OverLimit, OverBudget, NoNodes)
"""Reasons of jobs that may not take devices now, or could not."""

DECIDED: Final = (Start, Wait)


def schedule(snapshot: Snapshot, memory: Memory | None = None) -> Plan:
    """One decision for each pending job: gangs whole, no device twice, nobody ended unless a placement results.

    memory: of earlier decisions. It makes this one faster, not another.
    """
    round_ = _begun(snapshot, memory)
    decisions = tuple(_decisions(round_))
    elastic.grow(round_)
    if memory is not None:
        memory.decided = (snapshot, round_)
    plan = Plan(decisions, tuple(round_.evictions), tuple(round_.claims), tuple(round_.kept.reservations))
    return plan if round_.kept.homes is None else round_.kept.homes.marked(plan, snapshot, round_.fleet.ground)


def _begun(snapshot: Snapshot, memory: Memory | None) -> Round:
    round_ = Round.of(snapshot, memory or Memory())
    round_.kept.homes = homes(snapshot, round_.fleet.ground, schedule)
    leave(round_)
    if round_.kept.homes is not None:
        bring_home(round_.kept.homes, round_)
    share_in_time(round_)
    return round_


def decided(snapshot: Snapshot, memory: Memory) -> Round:
    """The decision on this very snapshot as it stands at its end, made once."""
    if memory.decided is None or memory.decided[0] is not snapshot:
        schedule(snapshot, memory)
    assert memory.decided is not None
    round_ = memory.decided[1]
    assert isinstance(round_, Round)
    return round_


def _decisions(round_: Round) -> list[Decision]:
    """gate -> order -> admit -> fit -> shrink or preempt -> reserve -> explain."""
    gates, found, stood = Gates(round_.snapshot), list[Decision](), list[Batch]()
    at_home = round_.kept.homes.of if round_.kept.homes is not None else ()

    def may_start(job: PendingJob) -> bool:
        return gates.why(job) is None and round_.never_fits(job.facts.shape) is None

    for batch in in_order(round_.snapshot, round_.tree, round_.batches(), at_home, round_.service, may_start):
        stood.append(batch)
        job = batch.first
        is_plain = batch.part_of is not None and batch.part_of.is_plain
        closed = None if is_plain else gates.why(job)
        if closed is not None:
            if job.claim is not None:
                _give_up(job, round_)
            found.extend(Wait(one.facts.job, closed, None) for one in batch.rest().jobs)
            continue
        decision = _claimed(job, round_) if job.claim is not None else _considered(job, round_, is_plain)
        batch.at += 1
        found.append(decision)
        if isinstance(decision, Start) or isinstance(decision.reason, MakingRoom):
            gates.started(job)
        elif batch.at < batch.end and not round_.follow() and round_.known.latest is not None:
            found.extend(_wait_alike(batch, decision, round_.known.latest, round_))
    round_.sweeps.stood(stood)
    return found


def _wait_alike(batch: Batch, first: Wait, reason: Reason, round_: Round) -> Sequence[Wait]:
    """The others of a batch, who hear what the one before them heard, since nothing has changed."""
    waits, facts = round_.told.after(first, batch), batch.first.facts
    if first.position is not None:
        round_.waiting[facts.queue] += len(waits)
        if not isinstance(reason, NOT_FOR_DEVICES):
            round_.tree.waits(facts, round_.known.number(facts.shape), len(waits))
    batch.at = batch.end
    return waits


def _claimed(job: PendingJob, round_: Round) -> Decision:
    """It starts on what was promised to it, or is considered like any other where the promise cannot be kept."""
    assert job.claim is not None
    held_by, promised = round_.holders[job.facts.job], round_.promised[job.facts.job]
    if claims.is_sound(job, round_.fleet, held_by, promised):
        if promised == job.claim and round_.fleet.has_cores(job.facts.shape, job.claim):
            return Start(job.facts.job, job.claim)
        if promised != job.claim or held_by:
            return Wait(job.facts.job, claims.making_room(job, held_by, promised), None)
    _give_up(job, round_)
    return _considered(job, round_)


def _give_up(job: PendingJob, round_: Round) -> None:
    """Its claim; others may have the devices from now on."""
    assert job.claim is not None
    round_.tree.drop(job.facts, round_.kept.kind_of(job.claim) or "", job.claim.world_size)
    round_.fleet.give_back(job.facts.shape, round_.promised[job.facts.job])
    round_.kept.gave_up(job.facts)
    round_.claims.append(Claim(job.facts.job, None))


def _considered(job: PendingJob, round_: Round, is_plain: bool = False) -> Decision:
    """What is known of jobs like it, or else what is found out now. is_plain: as of its sweep."""
    if round_.kept.homes is not None and (found_there := _at_home(job, round_.kept.homes, round_)) is not None:
        return found_there
    if round_.turns.of and (taken := take_turn(job, round_)) is not None:
        return taken if isinstance(taken, Start) else _making_room(job, taken, round_)
    round_.follow()
    known = round_.known
    rights = known.rights(job, round_.kept)
    is_like_others = is_plain or not (job.avoids or job.repair or job.claim or job.last)
    reason = known.latest = known.reason(rights, job, round_.kept) if is_like_others else None
    if reason is not None:
        return _waits(job, rights[0], reason, round_)
    reason = admit.refused_again(job, rights[0], round_)
    if reason is not None:
        if is_like_others:
            known.learn(rights, job, reason, None)
        return _waits(job, rights[0], reason, round_)
    found = _found_out(job, rights, round_)
    if isinstance(found, DECIDED):
        return found
    reason, is_kept = found
    if is_like_others and not round_.follow():  # else it has become a head, and the next one like it may be another
        known.learn(rights, job, reason, round_.kept if is_kept else None)
    return _waits(job, rights[0], reason, round_)


def _at_home(job: PendingJob, known: Homes, round_: Round) -> Decision | None:
    """In its queue's own cells, where it starts or has to wait; None for jobs that are decided among all."""
    home, number = known.of.get(job.facts.job), round_.known.number(job.facts.shape)
    if home is None or job.claim is not None:
        reason = known.must_stay(job, round_.snapshot.policy)
        return None if reason is None else _waits(job, number, reason, round_)
    found = move_in(job, home, known, round_)
    if isinstance(found, Claim):
        return _making_room(job, found, round_)
    return found if isinstance(found, Start) else _waits(job, number, found, round_)


def _found_out(job: PendingJob, rights: Rights, round_: Round) -> Decision | tuple[Reason, bool]:
    """It starts, or room is made for it; or why not, and whether that is since devices are kept from it."""
    shape = job.facts.shape
    impossible = round_.never_fits(shape)
    if impossible is not None:
        return impossible, False
    admitted, refusals = admit.admitted(job, shape, round_)
    if not admitted and (smaller := admit.smaller(job, round_)) is not None:
        return _found_out(smaller, round_.known.rights(smaller, round_.kept), round_)
    kept: list[str] = []
    started = _started(job, rights[0], admitted, round_, kept)
    if started is not None:
        return started
    claim = _room_made(job, rights, admitted, round_)
    if claim is not None:
        return _making_room(job, claim, round_)
    if refusals and not admitted:
        return admit.refused(job, rights[0], refusals, round_), False
    reason = _short(job, rights[0], admitted, kept, round_)
    round_.kept.reserve(job, rights[0], admitted, job.facts.job in round_.turns.place)
    return reason, bool(kept)


def _started(job: PendingJob, number: int, kinds: Sequence[str], round_: Round, kept: list[str]) -> Start | None:
    """On the first type that holds the whole gang now. Into `kept` go the types that would, were they not kept for others."""
    known = round_.known
    alike = None if job.avoids or all((number, kind) in known.full for kind in kinds) else round_.kept.alike(job)
    for kind in kinds:
        if (number, kind) in known.full:
            continue
        is_barred = (number, kind, alike) in known.barred
        for free in () if is_barred else _views(job, kind, round_):
            found = _placed(job, kind, kinds, free, round_)
            if found is not None:
                of_kind, placement = found
                round_.tree.use(job.facts, of_kind, placement.world_size)
                round_.kept.started(job, of_kind, placement)
                return Start(job.facts.job, placement)
        if _fits_all(job, number, kind, round_):
            kept.append(kind)
            if alike is not None:
                known.barred.add((number, kind, alike))
    return None


def _placed(job: PendingJob, kind: str, kinds: Sequence[str], free: Counts, round_: Round) -> tuple[str, Placement] | None:
    """Takes devices of the type for it; of any of `kinds`, where they are all the same to the job and the policy packs."""
    shape, fleet = job.facts.shape, round_.fleet
    rows: Sequence[int] | Rows | None = claims.on_former(job, kind, fleet, free)
    if rows is None and round_.packing is not None and packs(shape):
        others = () if shape.request.types or shape.spot == "prefer" else kinds
        found = round_.packing.place(shape, {**{other: round_.kept.free(job, other) for other in others}, kind: free}, job.avoids)
        if found is not None:
            fleet.hold(shape, found[1])
            return found
    if rows is None:
        rows = fit(shape, kind, fleet, free, job.avoids)
    return None if rows is None else (kind, fleet.take(shape, kind, [int(row) for row in rows]))


def _views(job: PendingJob, kind: str, round_: Round) -> Sequence[Counts]:
    """What it is tried on, where there are enough nodes that have room for a part of it."""
    shape = job.facts.shape
    enough = round_.fleet.num_roomy(shape, kind, round_.kept.free(job, kind)) >= shape.fewest_nodes
    return round_.kept.views(job, kind) if enough else ()


def _fits_all(job: PendingJob, number: int, kind: str, round_: Round) -> bool:
    """Whether it would fit, were nothing kept from it."""
    fleet, known = round_.fleet, round_.known
    if job.avoids:
        return fits(job.facts.shape, kind, fleet, fleet.free[kind], job.avoids)
    if (number, kind) not in known.fitting:
        if not fits(job.facts.shape, kind, fleet, fleet.free[kind]):
            known.full.add((number, kind))
            return False
        known.fitting.add((number, kind))
    return True


def _room_made(job: PendingJob, rights: Rights, kinds: tuple[str, ...], round_: Round) -> Claim | None:
    """By smaller or fewer gangs; of its own queue where that may have no more."""
    hopeless = round_.known.hopeless
    if (rights, kinds) in hopeless:
        return None
    if kinds:
        claim = elastic.shrink_others(job, kinds, round_) or preemption.make_room(job, kinds, round_)
    else:
        claim = handover.hand_over(job, round_)
    if claim is None and not (job.avoids or job.repair):
        hopeless.add((rights, kinds))
    return claim


def _making_room(job: PendingJob, claim: Claim, round_: Round) -> Wait:
    assert claim.placement is not None
    round_.claims.append(claim)
    victims = sorted(evicted.job for evicted in round_.evictions if evicted.claimant == job.facts.job)
    return Wait(job.facts.job, MakingRoom(tuple(victims), claim.placement.world_size), None)


def _short(job: PendingJob, number: int, kinds: tuple[str, ...], kept: Sequence[str], round_: Round) -> Reason:
    """Why it has to wait for devices."""
    if round_.no_nodes is not None:
        return round_.no_nodes
    if kept:
        if job.avoids:
            return round_.kept.why(job, kept[0], 0)
        key = (number, kept[0], round_.kept.alike(job))
        if key not in round_.known.why_kept:
            round_.known.why_kept[key] = round_.kept.why(job, kept[0], 0)
        return round_.known.why_kept[key]
    known = round_.known.short
    if (number, kinds) not in known:
        known[number, kinds] = no_room(job.facts.shape, kinds, round_.fleet)
    return known[number, kinds]


def _waits(job: PendingJob, number: int, reason: Reason, round_: Round) -> Wait:
    """In line, but for a job that never fits. number: of its shape."""
    if isinstance(reason, NeverFits):
        return Wait(job.facts.job, reason, None)
    facts, tree, queue = job.facts, round_.tree, job.facts.queue
    if not isinstance(reason, NOT_FOR_DEVICES):
        tree.waits(facts, number)
    tree.save(job, number, reason)
    round_.waiting[queue] = position = round_.waiting[queue] + 1
    return Wait(facts.job, replace(reason, position=position) if isinstance(reason, Behind) else reason, position)
