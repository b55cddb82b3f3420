"""What the scheduler sees of the world. Pure but for `Snapshots`, which keeps facts that have not changed as the same objects: a
scheduler with a memory, and the line to its process, look at others only."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from phalanx.core import features
from phalanx.core.devices import WHOLE, Device
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.policy import Policy
from phalanx.core.spec import JobSpec
from phalanx.core.states import Pending, Stopping
from phalanx.decide.scheduler.line.attained import ServiceHistory
from phalanx.decide.scheduler.snapshot import (
    JobFacts,
    NodeFacts,
    PendingJob,
    PutOff,
    RunningJob,
    Shape,
    Share,
    Snapshot,
)
from phalanx.decide.scheduler.why.history import History
from phalanx.operate.control.fences import Fence, Fences
from phalanx.operate.control.node_rules import Known, known_of
from phalanx.operate.control.outcomes import Outcomes
from phalanx.operate.control.usage import Rate, RateKey, rate_key, usage
from phalanx.operate.control.world import AttemptRecord, Held, JobRecord, NodeRecord, Parts, World, add_hold

GONE_MS: Final = 600_000
"""A node that has been away for so long is no capacity that anybody should count on."""

RESTART_MS: Final = 60_000
"""What a restart costs where it was never measured."""

DAY_MS: Final = 86_400_000


def shape(spec: JobSpec) -> Shape:
    """What the job's gang needs."""
    placing = spec.placing
    return Shape(
        request=spec.resources.devices,
        num_nodes=spec.num_nodes,
        min_nodes=spec.min_nodes,
        cpus=spec.resources.cpus,
        memory_bytes=spec.resources.memory_bytes,
        needs=features.needed(spec),
        where=tuple(sorted(placing.where.items())),
        within=placing.within or None,
        group=placing.group,
        group_within=placing.group_within,
        spot=placing.spot,
    )


def job_facts(
    job: JobId, spec: JobSpec, submitted_ms: int, sequence: int, user: str = "", array: str = "", array_parallel: int = 0
) -> JobFacts:
    """A job as the scheduler sees it."""
    return JobFacts(
        job=job,
        shape=shape(spec),
        queue=spec.queue,
        priority=spec.priority,
        submitted_ms=submitted_ms,
        sequence=sequence,
        user=user,
        limit_ms=spec.max_duration_ms,
        deadline_ms=spec.deadline_ms(submitted_ms),
        preemptible=spec.preemptible,
        window=spec.window,
        after=tuple(JobId(name) for name in spec.after),
        array=array,
        array_parallel=array_parallel,
    )


def snapshot(world: World, ready: frozenset[NodeId], now_ms: int, fences: Fences) -> Snapshot:
    """One look at the world, of which nothing is kept."""
    return Snapshots().take(world, ready, now_ms, fences)


def node_facts(world: World, now_ms: int, policy: Policy | None = None) -> tuple[NodeFacts, ...]:
    """The nodes alone, as `policy`, or that of the world, describes them: what could ever be had of them."""
    return Snapshots().nodes(replace(world, policy=policy) if policy is not None else world, frozenset(), now_ms, {})


@dataclass(frozen=True, slots=True)
class _There:
    """All that a node's facts are made of, besides the policy. promised: thousandths of its devices."""

    record: NodeRecord
    attempts: tuple[AttemptId, ...]
    fence: Fence
    promised: Mapping[int, int]
    ready: bool
    gone: bool
    exposed: bool


_UNFENCED: Final = Fence()
_NOTHING: Final[Mapping[int, int]] = {}


@dataclass(slots=True)
class Snapshots:
    """Takes one after the other. Facts of nodes and jobs that say the same as in the one before are the same objects."""

    _jobs: dict[JobId, JobFacts] = field(default_factory=dict)
    _nodes: dict[NodeId, tuple[_There, NodeFacts]] = field(default_factory=dict)
    _rules: dict[NodeId, Known] = field(default_factory=dict)
    _policy: Policy | None = None
    _rates: dict[RateKey, Rate] = field(default_factory=dict)
    _pending: dict[JobId, tuple[JobRecord, PendingJob]] = field(default_factory=dict)
    _running: dict[JobId, tuple[JobRecord, AttemptRecord, RunningJob]] = field(default_factory=dict)

    def take(
        self,
        world: World,
        ready: frozenset[NodeId],
        now_ms: int,
        fences: Fences,
        history: History | None = None,
        service: ServiceHistory | None = None,
        exposed: frozenset[NodeId] = frozenset(),
    ) -> Snapshot:
        """The whole fleet, of which only `ready` nodes may be given work, and of those what is neither held nor fenced. exposed:
        those that are not ready since teams do not trust each other."""
        nodes = self.nodes(world, ready, now_ms, fences, exposed)
        self._jobs = {job: known for job in world.open_jobs if (known := self._jobs.get(job)) is not None}
        self._running = {job.id: (job, attempt, self._runs(job, attempt, now_ms)) for job, attempt in world.holding()}
        going = {rate_key(attempt) for _, attempt, _ in self._running.values()}
        self._rates = {key: rate for key, rate in self._rates.items() if key in going}
        avoided, outcomes = _avoided(fences), Outcomes(world)
        self._pending = {
            job.id: (job, self._waits(world, job, job.state, frozenset(avoided.get(job.id, ())), outcomes, now_ms))
            for job in world.open_jobs.values()
            if isinstance(job.state, Pending)
        }
        return Snapshot(
            now_ms=now_ms,
            nodes=nodes,
            running=tuple(facts for *_, facts in self._running.values()),
            pending=tuple(facts for _, facts in self._pending.values()),
            policy=world.policy,
            usage=usage(world, now_ms, self._rates),
            history=history or History(),
            service=service or ServiceHistory(),
        )

    # Nodes

    def nodes(
        self, world: World, ready: frozenset[NodeId], now_ms: int, fences: Fences, exposed: frozenset[NodeId] = frozenset()
    ) -> tuple[NodeFacts, ...]:
        """The part of a snapshot that is of nodes."""
        if world.policy != self._policy:
            self._rules, self._nodes, self._rates = {}, {}, {}
        self._policy = world.policy
        parts, promised = Parts(world), _promised(world)
        if len(self._nodes) > len(world.nodes):
            self._nodes = {node: known for node, known in self._nodes.items() if node in world.nodes}
        for node, record in world.nodes.items():
            there = _There(
                record,
                world.on_nodes.get(node, ()),
                fences.get(node, _UNFENCED),
                promised.get(node, _NOTHING),
                node in ready,
                not record.up and now_ms - record.since_ms > GONE_MS,
                node in exposed,
            )
            known = self._nodes.get(node)
            if known is None or known[0] != there:
                self._nodes[node] = (there, self._node(world, parts, there))
        return tuple(facts for _, facts in self._nodes.values())

    def _node(self, world: World, parts: Parts, there: _There) -> NodeFacts:
        record, shape = there.record, there.record.shape
        devices, rule = _devices(record), self._rule(shape.node)
        whole, shares, fenced = _free(there, _held(world, parts, there))
        cpus, memory_bytes = _used(world, there)
        return NodeFacts(
            node=shape.node,
            devices=tuple((index, device.type) for index, device in devices.items()),
            free=whole,
            cpus=shape.cpus,
            free_cpus=shape.cpus - cpus,
            memory_bytes=shape.memory_bytes,
            free_memory_bytes=shape.memory_bytes - memory_bytes,
            schedulable=there.ready,
            features=frozenset(shape.features),
            drained=record.up and (bool(record.drained) or there.exposed),
            fenced=fenced,
            shares=shares,
            device_memory_bytes=min((device.memory_bytes for device in devices.values()), default=0),
            labels=rule.labels,
            spot=rule.spot,
            price=max((rule.price_of(device.type) for device in devices.values()), default=0.0),
            gone=there.gone,
            exposed=record.up and there.exposed,
        )

    def _rule(self, node: NodeId) -> Known:
        assert self._policy is not None, "rules are of a policy"
        if node not in self._rules:
            self._rules[node] = known_of(self._policy, node)
        return self._rules[node]

    # Jobs

    def facts(self, job: JobRecord) -> JobFacts:
        """Of any job; a spec never changes."""
        known = self._jobs.get(job.id)
        if known is None:
            parallel = job.spec.array.parallel if job.spec.array else 0
            known = self._jobs[job.id] = job_facts(job.id, job.spec, job.submitted_ms, job.sequence, job.by, job.array, parallel)
        return known

    def _runs(self, job: JobRecord, attempt: AttemptRecord, now_ms: int) -> RunningJob:
        saved_ms, evictions = _saved_ms(attempt, now_ms), _evictions(job, now_ms)
        known = self._running.get(job.id)
        same = known is not None and known[0] is job and known[1] is attempt
        if known is not None and same and (known[2].saved_ms, known[2].evictions) == (saved_ms, evictions):
            return known[2]
        now = RunningJob(
            self.facts(job),
            attempt.id,
            attempt.held,
            attempt.placed_ms,
            saved_ms=saved_ms,
            restart_ms=_restart_ms(attempt),
            stopping=isinstance(job.state, Stopping),
            evicted_for=attempt.evicted_for,
            keeps=job.claim,
            evictions=evictions,
            served_ms=job.served_ms,
            since_ms=job.since_ms,
        )
        return known[2] if known is not None and known[2] == now else now

    def _waits(
        self, world: World, job: JobRecord, state: Pending, avoids: frozenset[NodeId], outcomes: Outcomes, now_ms: int
    ) -> PendingJob:
        unmet, failed = outcomes.of(job.spec.after) if job.spec.after else ((), ())
        evictions = _evictions(job, now_ms)
        known = self._pending.get(job.id)
        if known is not None and known[0] is job:
            was = known[1]
            if (was.avoids, was.evictions, was.unmet, was.failed) == (avoids, evictions, unmet, failed):
                return was
        now = PendingJob(
            self.facts(job),
            since_ms=job.since_ms,
            put_off=_put_off(world, job, state.not_before_ms),
            avoids=avoids,
            claim=job.claim,
            repair=job.repair,
            last=world.attempts[job.attempts[-1]].placement if job.repair and job.attempts else None,
            evictions=evictions,
            served_ms=job.served_ms,
            unmet=unmet,
            failed=failed,
        )
        return known[1] if known is not None and known[1] == now else now


def _devices(record: NodeRecord) -> dict[int, Device]:
    """By index: an agent that says one twice has one."""
    return {device.index: device for device in record.shape.devices}


def _held(world: World, parts: Parts, there: _There) -> dict[int, Held]:
    """What gangs have of the node's devices. More of one than there is, is a Bug."""
    held: dict[int, Held] = {}
    shape = there.record.shape
    for attempt in there.attempts:
        part = parts.of(attempt, shape.node)
        for index in part.devices:
            held[index] = add_hold(held.get(index), attempt, shape, index, part)
    return held


def _free(there: _There, held: Mapping[int, Held]) -> tuple[tuple[int, ...], tuple[Share, ...], tuple[int, ...]]:
    """Whole devices that nobody has, what is left of those held in part, and those on which only what is fenced lives."""
    whole, shares, fenced = [], [], []
    for index, device in _devices(there.record).items():
        of, kept = held.get(index), there.promised.get(index, 0)
        if index in there.fence.devices:
            if of is None:
                fenced.append(index)
        elif of is None and not kept:
            whole.append(index)
        else:
            milli = WHOLE - kept - (of.milli if of else 0)
            memory_bytes = device.memory_bytes * (WHOLE - kept) // WHOLE - (of.memory_bytes if of else 0)
            if milli > 0:
                shares.append(Share(index, milli, max(0, memory_bytes)))
    return tuple(whole), tuple(shares), tuple(fenced)


def _used(world: World, there: _There) -> tuple[float, int]:
    """CPU cores and host memory that gangs and what is fenced hold on the node."""
    asked = [world.jobs[world.attempts[attempt].job].spec.resources for attempt in there.attempts]
    cpus = sum((one.cpus for one in asked), there.fence.cpus)
    return cpus, sum((one.memory_bytes for one in asked), there.fence.memory_bytes)


def _promised(world: World) -> dict[NodeId, dict[int, int]]:
    """Thousandths of devices on which gangs that run now will start again, and which they do not hold yet. What is promised to
    jobs that wait, these say themselves."""
    found: dict[NodeId, dict[int, int]] = {}
    for job, attempt in world.holding():
        if job.claim is None:
            continue
        own = {(part.node, index) for part in attempt.held.slices for index in part.devices}
        for part in job.claim.slices:
            for index in part.devices:
                if (part.node, index) not in own:
                    of_node = found.setdefault(part.node, {})
                    of_node[index] = min(WHOLE, of_node.get(index, 0) + part.milli)
    return found


def _avoided(fences: Fences) -> dict[JobId, set[NodeId]]:
    """Nodes where ranks of each job live that nobody wants any more."""
    avoided: dict[JobId, set[NodeId]] = {}
    for node, fence in fences.items():
        for job in fence.jobs:
            avoided.setdefault(job, set()).add(node)
    return avoided


def _put_off(world: World, job: JobRecord, not_before_ms: int) -> PutOff | None:
    """What the job's last attempts did for its next one to be put off."""
    if not not_before_ms:
        return None
    quick = [world.attempts[attempt] for attempt in job.attempts[-job.quick_ends :]]
    within_ms = max((one.ended_ms or one.placed_ms) - one.placed_ms for one in quick)
    return PutOff(not_before_ms, job.quick_ends, max(0, within_ms), quick[-1].detail)


def _evictions(job: JobRecord, now_ms: int) -> int:
    """In the last day."""
    return sum(at_ms > now_ms - DAY_MS for at_ms in job.evicted_ms)


def _saved_ms(attempt: AttemptRecord, now_ms: int) -> int:
    """When the newest checkpoint of this attempt was committed, by its node's clock, which may be wrong."""
    newest = attempt.checkpoints[-1].at_ms if attempt.checkpoints else 0
    return min(now_ms, max(attempt.placed_ms, newest)) if newest else 0


def _restart_ms(attempt: AttemptRecord) -> int:
    """From its placement to its ranks' processes, and to where they went on from a checkpoint, if they did."""
    if attempt.running_ms is None:
        return RESTART_MS
    went_on_ms = attempt.resumed.at_ms if attempt.resumed else 0
    measured_ms = max(attempt.running_ms, went_on_ms) - attempt.placed_ms
    return measured_ms if 0 < measured_ms <= DAY_MS else RESTART_MS
