"""What each event makes of the records it is about. Pure, and the only place where records change."""

from dataclasses import replace

from phalanx.core.chaos import FaultMet
from phalanx.core.devices import Placement
from phalanx.core.errors import IllegalTransition
from phalanx.core.events import (
    AttemptEnded,
    AttemptPlaced,
    AttemptRunning,
    DevicesClaimed,
    Event,
    FaultPlanned,
    IdleOver,
    IdleWarned,
    JobCollected,
    JobEvicted,
    JobResumed,
    JobRetried,
    JobSubmitted,
    JobWaits,
    ModelRegistered,
    NodeAway,
    NodeDrained,
    NodeUndrained,
    NodeUp,
    PartLost,
    PartReleased,
    PolicySet,
    RankSaid,
    StopRequested,
    StragglerFound,
    TracesRequested,
)
from phalanx.core.health import Corruption, DamagedData, Finding, LossSpike, LostEvidence, ReadTrouble, SaveTrouble
from phalanx.core.ids import split_attempt
from phalanx.core.messages import RankProcess
from phalanx.core.policy import Policy
from phalanx.core.records import CheckpointCommitted, RankFact, Recovered, Resumed
from phalanx.core.states import (
    Finished,
    GangEnded,
    GangUp,
    JobMove,
    Paused,
    Pending,
    Placed,
    ResumeAsked,
    RetryAsked,
    Running,
    Starting,
    StopAsked,
    Stopping,
    advance,
)
from phalanx.core.trace_request import TraceMissed
from phalanx.operate.control import usage
from phalanx.operate.control.world import (
    ATTEMPTS_KEPT,
    CHECKPOINTS_KEPT,
    EVICTIONS_KEPT,
    FINDINGS_KEPT,
    NOTHING_SAVED,
    RECOVERIES_KEPT,
    TRACES_KEPT,
    AttemptRecord,
    FaultRecord,
    JobRecord,
    ModelRecord,
    NodeRecord,
    QueueUsage,
    TraceRecord,
    World,
)

Record = JobRecord | AttemptRecord | NodeRecord | ModelRecord | QueueUsage | Policy


def effect(world: World, event: Event) -> tuple[Record, ...]:  # noqa: C901 (one flat line for each kind of event)
    """The records that `event` puts in place of older ones. Raises IllegalTransition when it cannot happen in `world`."""
    at_ms = event.at_ms
    match event.body:
        case NodeUp(shape, boot):
            drained = world.nodes[shape.node].drained if shape.node in world.nodes else ""
            return (NodeRecord(shape=shape, boot=boot, up=True, since_ms=at_ms, drained=drained),)
        case NodeAway(node):
            return (replace(world.nodes[node], up=False, since_ms=at_ms),)
        case NodeDrained(node, reason):
            return (replace(world.nodes[node], drained=reason),)
        case NodeUndrained(node):
            return (replace(world.nodes[node], drained=""),)
        case PartLost(_, attempt, node, why):
            record = world.attempts[attempt]
            return (replace(record, lost={**record.lost, node: why}),)
        case PartReleased():
            return _released(world, event.body, at_ms)
        case PolicySet(policy):
            return (policy,)
        case RankSaid(_, attempt, fact):
            return (_said(world.attempts[attempt], fact),)
        case StragglerFound(_, attempt, straggler):
            return (_with_finding(world.attempts[attempt], straggler),)
        case FaultPlanned(_, attempt, fault, by):
            record = world.attempts[attempt]
            return (replace(record, faults=(*record.faults, FaultRecord(plan=fault, by=by, at_ms=at_ms))),)
        case TracesRequested(_, attempt, request, by):
            record = world.attempts[attempt]
            asked = TraceRecord(request=request, by=by, at_ms=at_ms)
            return (replace(record, traces=(*record.traces, asked)[-TRACES_KEPT:]),)
        case IdleWarned() | IdleOver():
            return ()  # how idle it is now is told by its node, again and again
        case ModelRegistered() as body:
            return _registered(world, body, at_ms)
        case body:
            return _effect_on_job(world, body, at_ms)


def _effect_on_job(  # noqa: C901 (one flat line for each kind of event)
    world: World,
    body: JobSubmitted
    | JobWaits
    | AttemptPlaced
    | AttemptRunning
    | StopRequested
    | AttemptEnded
    | DevicesClaimed
    | JobEvicted
    | JobResumed
    | JobRetried
    | JobCollected,
    at_ms: int,
) -> tuple[Record, ...]:
    match body:
        case JobSubmitted():
            return (_submitted(body, at_ms),)
        case JobWaits(job, reason):
            return (replace(world.jobs[job], reason=reason),)
        case AttemptPlaced():
            return _placed(world, body, at_ms)
        case AttemptRunning(job, attempt, ranks):
            moved = _moved(world.jobs[job], GangUp(), at_ms)
            return moved, replace(world.attempts[attempt], running_ms=at_ms, ranks=ranks)
        case StopRequested(job, cause, _, why):
            return (replace(_moved(world.jobs[job], StopAsked(cause, why), at_ms), stop=cause, claim=None),)
        case DevicesClaimed(job, placement):
            return (_claimed(world, world.jobs[job], placement),)
        case JobEvicted():
            return _evicted(world, body, at_ms)
        case AttemptEnded():
            return _ended(world, body, at_ms)
        case JobResumed(job):
            return (replace(_moved(world.jobs[job], ResumeAsked(), at_ms), stop=None, since_ms=at_ms),)
        case JobRetried(job):
            return (_retried(world.jobs[job], at_ms),)
        case JobCollected(job):
            return (_collected(world.jobs[job], at_ms),)


def _moved(job: JobRecord, move: JobMove, at_ms: int) -> JobRecord:
    """The only place where a job's state changes."""
    state = advance(job.id, job.state, move)
    over = isinstance(state, Finished)
    finished_ms = at_ms if over else job.finished_ms
    return replace(job, state=state, reason=None, finished_ms=finished_ms, claim=None if over else job.claim)


def _retried(job: JobRecord, at_ms: int) -> JobRecord:
    """Open again, with every restart before it: what it used up counts no more."""
    job = _moved(job, RetryAsked(), at_ms)
    job = replace(job, quick_ends=0, interruptions=job.state.attempt, saved_step=NOTHING_SAVED, fruitless=0)
    return replace(job, stop=None, finished_ms=None, since_ms=at_ms, repair=False)


def _collected(job: JobRecord, at_ms: int) -> JobRecord:
    """Only what is over for good: a job that runs needs its files."""
    if not isinstance(job.state, Finished) or job.collected_ms is not None:
        raise IllegalTransition(f"{job.id}: {job.state} cannot be collected, collected_ms is {job.collected_ms}")
    return replace(job, collected_ms=at_ms)


def _submitted(body: JobSubmitted, at_ms: int) -> JobRecord:
    return JobRecord(
        id=body.job,
        sequence=int(body.job.rpartition("-")[2]),
        spec=body.spec,
        code=body.code,
        config=body.config,
        by=body.by,
        submitted_ms=at_ms,
        state=Pending(0),
        since_ms=at_ms,
        array=body.array,
        array_index=body.array_index,
    )


def _placed(world: World, body: AttemptPlaced, at_ms: int) -> tuple[Record, ...]:
    number = split_attempt(body.attempt)[1]
    skipped = number - 1 - world.jobs[body.job].state.attempt
    job = _moved(world.jobs[body.job], Placed(body.placement, skipped), at_ms)
    job = replace(job, interruptions=job.interruptions + skipped)
    started_ms = at_ms if job.started_ms is None else job.started_ms
    attempt = AttemptRecord(
        id=body.attempt,
        job=body.job,
        number=number,
        placement=body.placement,
        master_port=body.master_port,
        gang_port=body.gang_port,
        epoch=body.epoch,
        placed_ms=at_ms,
    )
    return replace(job, attempts=(*job.attempts, body.attempt)[-ATTEMPTS_KEPT:], started_ms=started_ms, claim=None), attempt


def _claimed(world: World, job: JobRecord, placement: Placement | None) -> JobRecord | AttemptRecord:
    """Only by what may start on it: a job that waits, or a gang that goes on in another size or place. A gang that claims what it
    has borrows it no more."""
    if placement is not None and isinstance(job.state, Paused | Finished | Stopping):
        raise IllegalTransition(f"{job.id}: {job.state} cannot claim {placement}")
    if placement is not None and isinstance(job.state, Starting | Running):
        attempt = world.attempts[job.attempts[-1]]
        if attempt.held.slices == placement.slices:
            return replace(attempt, placement=replace(attempt.placement, borrowed=placement.borrowed))
    return replace(job, claim=placement)


def _evicted(world: World, body: JobEvicted, at_ms: int) -> tuple[Record, ...]:
    """What it is to start again on, if anything, it claimed before. How often it was ended while it borrowed is not counted: that
    must not protect it from its own queue."""
    job = _moved(world.jobs[body.job], StopAsked("preempt"), at_ms)
    uncounted = body.claimant == body.job or world.attempts[body.attempt].placement.borrowed
    times = job.evicted_ms if uncounted else (*job.evicted_ms, at_ms)[-EVICTIONS_KEPT:]
    attempt = replace(world.attempts[body.attempt], evicted_for=body.claimant, evicted_why=body.cause)
    return replace(job, stop="preempt", evicted_ms=times), attempt


def _ended(world: World, body: AttemptEnded, at_ms: int) -> tuple[Record, ...]:
    job = _moved(world.jobs[body.job], GangEnded(body.ok, body.again, body.detail, body.not_before_ms), at_ms)
    quick_ends = job.quick_ends + 1 if body.not_before_ms else 0
    job = _further(replace(job, quick_ends=quick_ends, interruptions=job.interruptions + body.interrupted), world, body)
    match job.state:
        case Pending() | Finished(outcome="succeeded"):
            job = replace(job, stop=None)
    attempt, ended_ms = world.attempts[body.attempt], body.ended_ms or at_ms
    running_ms = attempt.running_ms if attempt.running_ms is None else min(attempt.running_ms, ended_ms)
    served_ms = job.served_ms + usage.device_ms(attempt.held, ended_ms - attempt.placed_ms)
    since_ms = job.since_ms if attempt.placement.borrowed else at_ms  # it waited for its turn all along
    job = replace(job, since_ms=since_ms, repair=body.again and bool(attempt.missed), served_ms=served_ms)
    ended = replace(attempt, running_ms=running_ms, ended_ms=ended_ms, ok=body.ok, detail=body.detail, exits=body.exits)
    return job, ended, usage.after(world, job.spec.queue, ended)


def _further(job: JobRecord, world: World, body: AttemptEnded) -> JobRecord:
    """What was fruitless counts until some attempt has come further than any before it."""
    saved_step = world.attempts[body.attempt].saved_step
    if saved_step > job.saved_step:
        return replace(job, saved_step=saved_step, fruitless=0)
    return replace(job, fruitless=job.fruitless + body.fruitless)


def _released(world: World, body: PartReleased, at_ms: int) -> tuple[Record, ...]:
    """What it had of the node until now counts as used, as if it had ended there."""
    attempt, job = world.attempts[body.attempt], world.jobs[body.job]
    part = replace(attempt.held, slices=tuple(one for one in attempt.held.slices if one.node == body.node))
    if not part.slices or len(part.slices) == len(attempt.held.slices) or attempt.ended_ms is not None:
        raise IllegalTransition(f"{body.attempt}: {attempt.held} cannot do without {body.node}")
    used = usage.after_part(world, job.spec.queue, replace(attempt, placement=part, released=(), ended_ms=at_ms))
    served_ms = job.served_ms + usage.device_ms(part, at_ms - attempt.placed_ms)
    return replace(job, served_ms=served_ms), replace(attempt, released=(*attempt.released, body.node)), used


def _said(attempt: AttemptRecord, fact: RankFact) -> AttemptRecord:
    """A fact said twice changes nothing but the count. What ranks say of traces was asked of them and does not count."""
    attempt = replace(attempt, facts=attempt.facts + (not isinstance(fact, TraceMissed)))
    match fact:
        case Resumed() if attempt.resumed is None or fact.rank < attempt.resumed.rank:
            return replace(attempt, resumed=fact)
        case Recovered() if all(known.generation != fact.generation for known in attempt.recoveries):
            return _recovered(attempt, _of_gang(fact, attempt.placement.world_size))
        case CheckpointCommitted() if all(known.digest != fact.digest for known in attempt.checkpoints):
            return replace(attempt, checkpoints=(*attempt.checkpoints, fact)[-CHECKPOINTS_KEPT:])
        case LossSpike() | Corruption() | SaveTrouble() | ReadTrouble() | DamagedData() | LostEvidence() if (
            fact not in attempt.findings
        ):
            return _with_finding(attempt, fact)
        case FaultMet():
            return replace(attempt, faults=tuple(_with_met(fault, fact) for fault in attempt.faults))
        case TraceMissed() if 0 <= fact.rank < attempt.placement.world_size:
            return replace(attempt, traces=tuple(_with_missed(traces, fact) for traces in attempt.traces))
        case _:
            return attempt


def _recovered(attempt: AttemptRecord, fact: Recovered) -> AttemptRecord:
    """Facts of several ranks come in any order: of an older generation nothing is true any more but that there was one."""
    recoveries = tuple(sorted((*attempt.recoveries, fact), key=lambda one: one.generation))[-RECOVERIES_KEPT:]
    if recoveries[-1] is not fact:
        return replace(attempt, recoveries=recoveries)
    pids = dict(zip(fact.replaced, fact.pids, strict=False))
    known = {process.rank: process.pid for process in attempt.ranks} | pids
    ranks = tuple(RankProcess(rank, pid) for rank, pid in sorted(known.items()) if rank not in fact.absent)
    return replace(attempt, ranks=ranks, recoveries=recoveries)


def _of_gang(fact: Recovered, world_size: int) -> Recovered:
    """Without ranks that the gang does not have: what a rank writes is not trusted."""
    there = range(world_size)
    replaced = [(rank, pid) for rank, pid in zip(fact.replaced, fact.pids, strict=False) if rank in there]
    absent = tuple(rank for rank in fact.absent if rank in there)
    return replace(fact, replaced=tuple(rank for rank, _ in replaced), pids=tuple(pid for _, pid in replaced), absent=absent)


def _with_met(fault: FaultRecord, met: FaultMet) -> FaultRecord:
    known = {one.rank for one in fault.met}
    return replace(fault, met=(*fault.met, met)) if met.number == fault.plan.number and met.rank not in known else fault


def _with_missed(traces: TraceRecord, missed: TraceMissed) -> TraceRecord:
    known = missed.number != traces.request.number or any(one.rank == missed.rank for one in traces.missed)
    return traces if known else replace(traces, missed=(*traces.missed, missed))


def _with_finding(attempt: AttemptRecord, finding: Finding) -> AttemptRecord:
    """What is set aside of the data holds to the run's end, so findings of other kinds do not push it out."""
    alike = [one for one in attempt.findings if isinstance(one, DamagedData) == isinstance(finding, DamagedData)]
    oldest = alike[0] if len(alike) >= FINDINGS_KEPT else None
    return replace(attempt, findings=(*(one for one in attempt.findings if one is not oldest), finding))


def _registered(world: World, body: ModelRegistered, at_ms: int) -> tuple[Record, ...]:
    model = ModelRecord(
        name=body.name,
        version=body.version,
        job=body.job,
        attempt=body.attempt,
        saved=body.saved,
        lineage=body.lineage,
        created_ms=at_ms,
    )
    return replace(world.jobs[body.job], model=f"{body.name}:{body.version}"), model
