"""Queues, gangs and lines in few words, for tests of who comes first and who may."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from phalanx.core.devices import DeviceRequest, NodeSlice, Placement
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.policy_parse import parse_policy
from phalanx.core.reasons import Reason
from phalanx.decide.scheduler import schedule
from phalanx.decide.scheduler.known import Shapes
from phalanx.decide.scheduler.line.order import in_order
from phalanx.decide.scheduler.line.sweeps import Batch, Sweeps
from phalanx.decide.scheduler.plan import Plan, Start, Wait
from phalanx.decide.scheduler.quotas.deserved import Deserts
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.room.gangs import Gangs
from phalanx.decide.scheduler.snapshot import JobFacts, NodeFacts, PendingJob, RunningJob, Shape, Snapshot, Usage
from phalanx.decide.scheduler.where.ground import survey

MINUTE = 60_000
HOUR = 60 * MINUTE
NOW = 1000 * HOUR


def facts(
    name: str, queue: str = "default", count: int = 1, num_nodes: int = 1, kind: str | None = "H100", **more: Any
) -> JobFacts:
    """`name` ends in its sequence number, such as j-7; it was submitted that many milliseconds before a minute ago."""
    shape = Shape(DeviceRequest((kind,) if kind else (), count), num_nodes)
    sequence = int(name.rsplit("-", 1)[1])
    return replace(JobFacts(JobId(name), shape, queue, submitted_ms=NOW - MINUTE + sequence, sequence=sequence), **more)


def job(name: str, queue: str = "default", count: int = 1, num_nodes: int = 1, **more: Any) -> PendingJob:
    """Fields of `PendingJob` and of its facts."""
    own = {key: more.pop(key) for key in list(more) if key in PendingJob.__dataclass_fields__}
    return PendingJob(facts(name, queue, count, num_nodes, **more), **own)


def gang(name: str, queue: str = "default", count: int = 1, num_nodes: int = 1, **more: Any) -> RunningJob:
    """It runs since an hour ago; `world` places it."""
    own = {key: more.pop(key) for key in list(more) if key in RunningJob.__dataclass_fields__}
    fields = {"placed_ms": NOW - HOUR, **own}
    return RunningJob(facts(name, queue, count, num_nodes, **more), AttemptId(f"{name}.1"), Placement(()), **fields)


def world(
    policy: Mapping[str, Any],
    running: Iterable[RunningJob] = (),
    pending: Iterable[PendingJob] = (),
    nodes: int = 1,
    devices: int = 8,
    kinds: Iterable[str] = ("H100",),
    usage: Mapping[str, Usage] | None = None,
) -> Snapshot:
    """`nodes` nodes of each kind with `devices` devices; gangs lie on the first that are free."""
    free = {NodeId(f"{kind.lower()}-{number}"): (kind, list(range(devices))) for kind in kinds for number in range(nodes)}
    placed = tuple(_placed(one, free) for one in running)
    fleet = tuple(
        NodeFacts(name, tuple((index, kind) for index in range(devices)), tuple(left), 64.0, 64.0, 2**39, 2**39, True)
        for name, (kind, left) in free.items()
    )
    return Snapshot(NOW, fleet, placed, tuple(pending), parse_policy(dict(policy)), usage or {})


def _placed(one: RunningJob, free: dict[NodeId, tuple[str, list[int]]]) -> RunningJob:
    """On as few nodes of a type as it asks for; a gang that has a placement keeps it."""
    if one.placement.slices:
        for part in one.placement.slices:
            for index in part.devices:
                free[part.node][1].remove(index)
        return one
    request, slices = one.facts.shape.request, list[NodeSlice]()
    for name, (kind, left) in free.items():
        if len(slices) < one.facts.shape.num_nodes and len(left) >= request.count and kind in (request.types or (kind,)):
            slices.append(NodeSlice(name, tuple(left[: request.count])))
            del left[: request.count]
    assert len(slices) == one.facts.shape.num_nodes, f"{one.facts.job} does not fit"
    return replace(one, placement=Placement(tuple(slices)))


def tree_of(snapshot: Snapshot) -> Tree:
    return Tree(snapshot, survey(snapshot.nodes))


def deserts_of(snapshot: Snapshot) -> Deserts:
    gangs = Gangs.of(snapshot.running, survey(snapshot.nodes))
    return Deserts(snapshot, tree_of(snapshot), gangs, lambda: Sweeps().asked(snapshot, Shapes().number))


def batches_of(snapshot: Snapshot) -> list[Batch]:
    return Sweeps().batches(snapshot, Shapes().number)


def order(snapshot: Snapshot) -> list[str]:
    """In which order jobs are considered when none of them starts."""
    return [job.facts.job for batch in in_order(snapshot, tree_of(snapshot), batches_of(snapshot)) for job in batch.rest().jobs]


def order_of_starts(snapshot: Snapshot) -> list[str]:
    """The same when all of them start."""
    tree, found = tree_of(snapshot), list[str]()
    for batch in in_order(snapshot, tree, batches_of(snapshot)):
        one = batch.first
        batch.at += 1
        found.append(one.facts.job)
        tree.use(one.facts, (one.facts.shape.request.types or ("H100",))[0], one.facts.shape.num_devices)
    return found


def started(plan: Plan) -> list[str]:
    return [decision.job for decision in plan.decisions if isinstance(decision, Start)]


def evicted(plan: Plan) -> list[str]:
    return sorted(evict.job for evict in plan.evictions)


def reasons(plan: Plan) -> dict[str, Reason]:
    return {decision.job: decision.reason for decision in plan.decisions if isinstance(decision, Wait)}


def after(snapshot: Snapshot, plan: Plan, passed_ms: int = 1000) -> Snapshot:
    """What the plan makes of the world: who was evicted is gone and waits again, for what it keeps if anything; who has a claim
    keeps it."""
    gone = {evict.job: evict for evict in plan.evictions}
    starts = {decision.job: decision.placement for decision in plan.decisions if isinstance(decision, Start)}
    claims = {claim.job: claim.placement for claim in plan.claims}
    now = snapshot.now_ms + passed_ms
    running = [one for one in snapshot.running if one.facts.job not in gone]
    pending = [
        PendingJob(
            one.facts,
            since_ms=one.since_ms if one.placement.borrowed else now,
            claim=gone[one.facts.job].keeps,
            evictions=one.evictions + (not one.placement.borrowed),
        )
        for one in snapshot.running
        if one.facts.job in gone
    ]
    running = [replace(one, placement=claims.get(one.facts.job) or one.placement) for one in running]
    for one in snapshot.pending:
        if one.facts.job in starts:
            attempt = AttemptId(f"{one.facts.job}.1")
            running.append(
                RunningJob(one.facts, attempt, starts[one.facts.job], now, evictions=one.evictions, since_ms=one.since_ms)
            )
        else:
            pending.append(replace(one, claim=claims.get(one.facts.job, one.claim)))
    held = {(part.node, index) for one in running for part in one.placement.slices for index in part.devices}
    nodes = tuple(
        replace(node, free=tuple(index for index, _ in node.devices if (node.node, index) not in held)) for node in snapshot.nodes
    )
    return replace(snapshot, now_ms=now, nodes=nodes, running=tuple(running), pending=tuple(pending))


def settled(snapshot: Snapshot, rounds: int = 10) -> tuple[Snapshot, list[Plan]]:
    """Decided again and again, until a decision changes nothing; and the plans."""
    plans = []
    for _ in range(rounds):
        plan = schedule(snapshot)
        plans.append(plan)
        if not started(plan) and not plan.evictions and not plan.claims:
            return snapshot, plans
        snapshot = after(snapshot, plan)
    raise AssertionError(f"not settled after {rounds} rounds: {plans[-1]}")
