"""A fleet that does what plans say, round after round, so that what only shows over time can be tested."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from phalanx.core.devices import WHOLE, DeviceRequest, NodeSlice, Placement
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.policy import Policy
from phalanx.decide.scheduler import Plan, schedule
from phalanx.decide.scheduler.snapshot import JobFacts, NodeFacts, PendingJob, RunningJob, Shape, Share, Snapshot

MINUTE = 60_000
HOUR = 60 * MINUTE
NOW = 100 * HOUR
LOW, STANDARD, HIGH = 0, 50, 75
ALL = range(8)


def name_of(number: int) -> NodeId:
    return NodeId(f"n{number:02}")


def fleet(num_nodes: int, count: int = 8, held: Iterable[RunningJob] = (), kind: str = "H100") -> tuple[NodeFacts, ...]:
    """Nodes n00, n01, ... with what `held` leaves free."""
    taken = {(part.node, index) for gang in held for part in gang.placement.slices for index in part.devices}
    return tuple(
        NodeFacts(
            name_of(number),
            tuple((index, kind) for index in range(count)),
            tuple(index for index in range(count) if (name_of(number), index) not in taken),
            64.0,
            64.0,
            2**39,
            2**39,
            True,
        )
        for number in range(num_nodes)
    )


def facts(name: str, count: int = 8, num_nodes: int = 1, priority: int = STANDARD, queue: str = "default", **more: Any) -> JobFacts:
    found = JobFacts(JobId(name), Shape(DeviceRequest(("H100",), count), num_nodes), queue=queue, priority=priority)
    return replace(replace(found, submitted_ms=NOW - MINUTE), **more)


def gang(name: str, *slices: tuple[int, Sequence[int]], priority: int = LOW, queue: str = "default", **more: Any) -> RunningJob:
    """Of `slices` as (node's number, devices); it started an hour ago and saved nothing since."""
    placement = Placement(tuple(NodeSlice(name_of(node), tuple(devices)) for node, devices in slices))
    asks = facts(name, len(slices[0][1]), len(slices), priority, queue)
    return replace(RunningJob(asks, AttemptId(f"{name}.1"), placement, NOW - HOUR), **more)


def elastic(running: RunningJob, min_nodes: int, num_nodes: int) -> RunningJob:
    shape = replace(running.facts.shape, min_nodes=min_nodes, num_nodes=num_nodes)
    return replace(running, facts=replace(running.facts, shape=shape))


@dataclass
class Loop:
    """runs_ms: how long a job runs in all, for ever if it is not there; evictions lose nothing of it. stops_ms: how long
    a gang takes to let go. saves_ms: how old the newest checkpoint of each gang is; None saves none."""

    nodes: tuple[NodeFacts, ...]
    policy: Policy = field(default_factory=Policy)
    runs_ms: dict[str, int] = field(default_factory=dict)
    stops_ms: Callable[[str], int] = lambda _: MINUTE
    saves_ms: int | None = None
    now_ms: int = NOW
    running: list[RunningJob] = field(default_factory=list)
    pending: list[PendingJob] = field(default_factory=list)
    stopping: dict[str, int] = field(default_factory=dict)
    evicted: list[tuple[int, str, str]] = field(default_factory=list)
    ended_for: set[tuple[str, str]] = field(default_factory=set)
    started: dict[str, list[int]] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)

    def submit(self, *jobs: JobFacts) -> None:
        self.pending += [
            PendingJob(replace(job, submitted_ms=self.now_ms, sequence=len(self.started) + number))
            for number, job in enumerate(jobs)
        ]

    def step(self, after_ms: int = MINUTE) -> Plan:
        """Lets time pass, then decides and does what the plan says."""
        self.now_ms += after_ms
        self._let_go()
        snapshot = self.snapshot()
        plan = schedule(snapshot)
        self._check(snapshot, plan)
        for decision in plan.decisions:
            if decision.kind == "start":
                self._start(decision.job, decision.placement)
        for claim in plan.claims:
            self.pending = [replace(job, claim=claim.placement) if job.facts.job == claim.job else job for job in self.pending]
            self.running = [
                replace(one, placement=claim.placement) if one.facts.job == claim.job and claim.placement else one
                for one in self.running
            ]
        for evicted in plan.evictions:
            self.evicted.append((self.now_ms, evicted.job, evicted.cause))
            self.ended_for.add((evicted.job, evicted.claimant))
            self.stopping[evicted.job] = self.now_ms + self.stops_ms(evicted.job)
            change: dict[str, Any] = {"stopping": True, "evicted_for": evicted.claimant, "keeps": evicted.keeps}
            self.running = [replace(one, **change) if one.facts.job == evicted.job else one for one in self.running]
        return plan

    def steps(self, number: int, after_ms: int = MINUTE) -> list[Plan]:
        return [self.step(after_ms) for _ in range(number)]

    def snapshot(self) -> Snapshot:
        running = self.running
        if self.saves_ms is not None:
            running = [replace(one, saved_ms=max(0, self.now_ms - self.saves_ms)) for one in running]
        return Snapshot(self.now_ms, tuple(self._nodes()), tuple(running), tuple(self.pending), self.policy)

    def _nodes(self) -> Iterable[NodeFacts]:
        """With what is free of them: neither held nor kept by a gang that changes its size."""
        milli, cpus = Counter[tuple[NodeId, int]](), Counter[NodeId]()
        for one in self.running:
            own = {part.node for part in one.placement.slices}
            more = [part for part in one.keeps.slices if part.node not in own] if one.keeps else []
            for part in (*one.placement.slices, *more):
                cpus[part.node] += int(one.facts.shape.cpus)
                milli.update({(part.node, index): part.milli for index in part.devices})
        for node in self.nodes:
            held = {index: milli[node.node, index] for index, _ in node.devices}
            shares = tuple(Share(index, WHOLE - part, 0) for index, part in held.items() if 0 < part < WHOLE)
            free = tuple(index for index, part in held.items() if not part)
            yield replace(node, free=free, shares=shares, free_cpus=node.cpus - cpus[node.node])

    def where(self, job: str) -> list[NodeId]:
        return [part.node for one in self.running if one.facts.job == job for part in one.placement.slices]

    def _start(self, job: JobId, placement: Placement) -> None:
        waited = next(one for one in self.pending if one.facts.job == job)
        self.pending.remove(waited)
        attempts = self.started.setdefault(job, [])
        attempts.append(self.now_ms)
        self.running.append(
            RunningJob(waited.facts, AttemptId(f"{job}.{len(attempts)}"), placement, self.now_ms, evictions=waited.evictions)
        )

    def _let_go(self) -> None:
        for one in list(self.running):
            job, ran_ms = one.facts.job, self.now_ms - one.placed_ms
            if job in self.runs_ms and self.done.get(job, 0) + ran_ms >= self.runs_ms[job]:
                self.running.remove(one)
                self.stopping.pop(job, None)
            elif self.stopping.get(job, self.now_ms + 1) <= self.now_ms:
                del self.stopping[job]
                self.running.remove(one)
                self.done[job] = self.done.get(job, 0) + ran_ms
                self.pending.append(PendingJob(one.facts, since_ms=self.now_ms, claim=one.keeps, evictions=one.evictions + 1))

    def _check(self, snapshot: Snapshot, plan: Plan) -> None:
        """No device is given twice, and none that somebody has."""
        held = Counter[tuple[NodeId, int]]()
        starts = [one.placement for one in plan.decisions if one.kind == "start"]
        for placement in (*(one.placement for one in snapshot.running), *starts):
            for part in placement.slices:
                held.update({(part.node, index): part.milli for index in part.devices})
        assert all(milli <= WHOLE for milli in held.values())
