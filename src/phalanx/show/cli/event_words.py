"""What happened, in words: one sentence without a subject for each event of the log. Pure.

`told` and the functions below it name every kind; a new kind without words fails the type check and a test.
"""

from phalanx.core import wire
from phalanx.core.chaos import FaultMet
from phalanx.core.devices import NodeShape, Placement, devices_words
from phalanx.core.events import (
    AttemptEnded,
    AttemptPlaced,
    AttemptRunning,
    DevicesClaimed,
    EventBody,
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
from phalanx.core.health import Corruption, DamagedData, LossSpike, LostEvidence, ReadTrouble, SaveTrouble
from phalanx.core.records import CheckpointCommitted, ModelSaved, RankFact, Recovered, Resumed, ranks_text
from phalanx.core.trace_request import TraceMissed
from phalanx.core.units import show_duration, show_size
from phalanx.core.views import EventView
from phalanx.show.cli.pages import devices_text

OfNode = NodeUp | NodeAway | NodeDrained | NodeUndrained
OfAttempt = (
    AttemptPlaced
    | AttemptRunning
    | AttemptEnded
    | PartLost
    | PartReleased
    | RankSaid
    | StragglerFound
    | FaultPlanned
    | TracesRequested
    | IdleWarned
    | IdleOver
    | ModelRegistered
)
OfJob = JobSubmitted | JobWaits | StopRequested | JobResumed | JobRetried | JobCollected | DevicesClaimed | JobEvicted

_STOPS = {
    "cancel": "asked to end, by {by}",
    "pause": "asked to pause, by {by}",
    "max_duration": "asked to end: max_duration is over",
    "idle": "asked to end: it is idle ({why})",
    "drain": "asked to move: its node is drained, by {by}",
    "preempt": "asked to make room for another job",
    "down": "asked to end: the platform goes down, by {by}",
}

_EVICTED = {
    "priority": "asked to make room for {claimant}, which is of a higher class",
    "reclaim": "asked to make room for {claimant}, whose queue has less than its share",
    "target": "asked to make room for {claimant}, which has waited longer than it should",
    "order": "asked to make room for {claimant}, whose turn it is",
    "booking": "asked to make room for {claimant}, whose queue has booked its devices",
    "shrink": "asked to start again on fewer nodes, to make room for {claimant}",
    "grow": "asked to start again on more nodes, which are free",
    "spot": "asked to save and leave a node that goes away",
    "home": "asked to start again on nodes that its queue is guaranteed, where its turn has come",
}
"""By the cause in the plan."""


def words(view: EventView) -> tuple[str, str]:
    """(of what, what happened): an attempt, a job or a node, and a sentence. A kind that a newer server has is named at least."""
    try:
        body: EventBody = wire.build(EventBody, dict(view.body))
    except ValueError:
        return view.job or "-", view.kind.replace("_", " ")
    return subject(body), told(body)


def subject(body: EventBody) -> str:
    """What the event is about."""
    if isinstance(body, PolicySet):
        return "policy"
    if isinstance(body, OfNode):
        return f"node {body.shape.node if isinstance(body, NodeUp) else body.node}"
    return body.attempt if isinstance(body, OfAttempt) else body.job


def told(body: EventBody) -> str:
    """What happened."""
    if isinstance(body, PolicySet):
        return f"set by {body.by}"
    if isinstance(body, OfNode):
        return _of_node(body)
    return _of_attempt(body) if isinstance(body, OfAttempt) else _of_job(body)


def _of_job(body: OfJob) -> str:
    match body:
        case JobSubmitted(spec=spec, by=by):
            nodes = f" on each of {spec.num_nodes} nodes" if spec.num_nodes > 1 else ""
            return f"submitted by {by}: asks for {_count(spec.resources.gpus)}{nodes}, queue {spec.queue}"
        case JobWaits(reason=reason):
            return reason.sentence()
        case StopRequested(cause=cause, by=by, why=why):
            return _STOPS[cause].format(by=by, why=why)
        case JobResumed(by=by):
            return f"resumed by {by}"
        case DevicesClaimed(placement=placement):
            return f"kept for it: {_where(placement)}" if placement else "gave up the devices that were kept for it"
        case JobEvicted(claimant=claimant, cause=cause):
            return _EVICTED.get(cause, "asked to make room for {claimant}").format(claimant=claimant)
        case JobCollected(by=by):
            return f"its files were collected by {by}"
        case JobRetried(by=by):
            return f"opened again by {by}, with all its restarts before it"


def _of_attempt(body: OfAttempt) -> str:  # noqa: C901 (one flat line for each kind of event)
    match body:
        case AttemptPlaced(placement=placement):
            return f"placed on {_where(placement)}{', borrowed beyond the cells of its queue' if placement.borrowed else ''}"
        case AttemptRunning(ranks=ranks):
            return f"running: {_many(len(ranks), 'rank')} up"
        case AttemptEnded(ok=ok, again=again, detail=detail):
            end = "done" if ok else "ended, another attempt follows" if again else "ended"
            return f"{end}: {detail}"
        case PartLost(node=node, why=why):
            return f"lost its part on {node}: {why}"
        case PartReleased(node=node):
            return f"goes on without {node}, and holds nothing there any more"
        case RankSaid(fact=fact):
            return _fact(fact)
        case StragglerFound(straggler=straggler):
            return straggler.sentence()
        case FaultPlanned(fault=fault, by=by):
            return f"fault {fault.number} asked for by {by}: {fault.sentence()}"
        case TracesRequested(request=request, by=by):
            which = ranks_text(request.ranks) or "all ranks"
            return f"traces of {request.steps_text()} asked for by {by}, of {which} (request {request.number})"
        case IdleWarned(left_ms=left_ms, why=why):
            return f"idle: stopped in {show_duration(left_ms)} unless something is done in it; {why}"
        case IdleOver(because=because):
            return f"not idle any more: {because}"
        case ModelRegistered(name=name, version=version):
            return f"registered model {name}:{version}"


def _recovered(one: Recovered) -> str:
    again = f", {_many(one.steps_lost, 'step')} made again" if one.steps_lost else ""
    without = f" without {ranks_text(one.absent)}" if one.absent else ""
    how = "grew" if one.planned else "recovered"
    goes_on = f"generation {one.generation} goes on after step {one.step}{without}{again}"
    return f"{how} in {one.recovery_ms / 1000:.1f} s: {one.why}; {goes_on}"


def _fact(fact: RankFact) -> str:
    match fact:
        case Resumed(step=step, skipped=skipped):
            damaged = f"; skipped {_many(len(skipped), 'damaged checkpoint')}" if skipped else ""
            return f"resumed after step {step}{damaged}"
        case Recovered():
            return _recovered(fact)
        case CheckpointCommitted(step=step, size_bytes=size_bytes):
            return f"checkpoint at step {step}, {show_size(size_bytes)}"
        case ModelSaved(step=step):
            return f"saved its model at step {step}"
        case (
            LossSpike() | Corruption() | SaveTrouble() | ReadTrouble() | DamagedData() | LostEvidence() | FaultMet() | TraceMissed()
        ):
            return fact.sentence()


def _of_node(body: OfNode) -> str:
    match body:
        case NodeUp(shape):
            return f"up with {_offers(shape)}"
        case NodeAway():
            return "away: nothing was heard of it"
        case NodeDrained(reason=reason, by=by):
            return f"drained by {by}: {reason}"
        case NodeUndrained(by=by):
            return f"undrained by {by}"


def _offers(shape: NodeShape) -> str:
    return f"{devices_text(shape.devices)} at {shape.address}"


def _where(placement: Placement) -> str:
    return " and ".join(f"{part.node} ({devices_words(part.devices, part.milli)})" for part in placement.slices)


def _count(gpus: str) -> str:
    if gpus.isascii() and gpus.isdecimal():
        return _many(int(gpus), "device")
    return f"{gpus} of a device" if gpus.startswith("0.") else gpus


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
