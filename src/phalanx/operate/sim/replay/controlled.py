"""A trace through the whole control plane: the real controller, store and ledger; agents and shims that are simulated on calm
machines. Every message is one of the real protocol, so it is a thousand times slower than `engine`, for small traces: it shows
that both decide alike, and what the control plane adds."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from phalanx.core.devices import CPU_SLOT, Device, NodeShape
from phalanx.core.errors import Bug, UserError
from phalanx.core.events import AttemptEnded, AttemptPlaced, Event, JobEvicted
from phalanx.core.ids import NAME, JobId
from phalanx.core.messages import Launch
from phalanx.core.policy import NodeRule, Policy
from phalanx.core.spec import JobSpec, Placing, Resources
from phalanx.decide.scheduler import NodeFacts, Plan, Snapshot, schedule
from phalanx.decide.scheduler.memory import Memory
from phalanx.operate.control.controller import Settings
from phalanx.operate.control.node_rules import known_of
from phalanx.operate.control.tracked import lineage_of, outbox_entries
from phalanx.operate.sim.agent import SimAgent
from phalanx.operate.sim.control import ControlWitness, Life, SimServer
from phalanx.operate.sim.database import Database
from phalanx.operate.sim.faults import CALM, Faults
from phalanx.operate.sim.machine import PORTS, Machine, Program, Witness
from phalanx.operate.sim.network import Line, LineEnd, Network
from phalanx.operate.sim.replay import outcome as replayed
from phalanx.operate.sim.replay.engine import Progress, Setup, is_for_ever
from phalanx.operate.sim.replay.gangs import Estimates, Gangs, limit_ms
from phalanx.operate.sim.timeline import UNIX_START_MS, SimClock, Timeline
from phalanx.operate.sim.traces.trace import Trace, TraceJob
from phalanx.record.telemetry.ledger.account import account

RUN_MS: Final = "RUN_MS"
LEASE_MS: Final = 60_000
UP_WITHIN_MS: Final = 120_000
STEP_MS: Final = 10_000
STUCK_MS: Final = 40 * 24 * 3_600_000
EVENTS_MAX: Final = 10**9
BY_POLICY: Final = ("queue", "window", "placing.regions")
"""Fields for which a job is refused that this cluster could hold."""

_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9-]+")


def through_control(trace: Trace, nodes: Sequence[NodeFacts], setup: Setup, progress: Progress) -> replayed.Outcome:
    """Until every job has ended. Nodes do not fail here, and jobs' durations begin once they run."""
    cluster = _Cluster(nodes, setup)
    try:
        cluster.come_up()
        cluster.submit_all(trace)
        cluster.run(progress, len(trace.jobs))
        return cluster.outcome(trace)
    finally:
        cluster.close()


class _Machine(Machine):
    """One of the simulated cluster's nodes, with the devices that it has there."""

    def __init__(self, facts: NodeFacts, timeline: Timeline, random: Random, skew_ms: int) -> None:
        super().__init__(facts.node, len(facts.devices), timeline, random, _program, Witness(), skew_ms)
        self._facts = facts

    @property
    def shape(self) -> NodeShape:
        facts = self._facts
        memory = facts.device_memory_bytes
        devices = tuple(Device(index, kind, kind, 0 if kind == CPU_SLOT else memory) for index, kind in facts.devices)
        return NodeShape(self.node, f"{self.node}.test", devices, facts.cpus, facts.memory_bytes, PORTS, self.features)


def _program(launch: Launch, rank: int) -> Program:
    """It runs as long as the trace says, and well."""
    return Program(run_ms=int(launch.env[RUN_MS]))


class _Cluster:
    """One control plane and its machines. Nothing goes wrong here."""

    def __init__(self, nodes: Sequence[NodeFacts], setup: Setup) -> None:
        self._nodes, self._setup = tuple(nodes), setup
        self._shapes, self._estimates = Gangs(nodes), Estimates()
        self._random = Random(setup.seed)  # noqa: S311 - histories, not secrets
        self._faults = Faults(self._random, CALM)
        self._timeline = Timeline()
        self._clock = SimClock(self._timeline, setup.start_ms - UNIX_START_MS)
        self._database = Database(lambda _: None, lambda: None)
        self._failed: BaseException | None = None
        self._index: dict[JobId, int] = {}
        self._refused: dict[int, UserError] = {}
        self._decisions, self._decide_s = 0, 0.0
        self._began_ms = 0
        settings = Settings(home=Path("/phalanx"), lineage=lineage_of, outbox_for=outbox_entries, lease_ms=LEASE_MS)
        life = Life(
            store=self._database.store,
            clock=self._clock,
            timeline=self._timeline,
            faults=self._faults,
            settings=settings,
            decide=self._decide,
            witness=ControlWitness(),
        )
        self._server = SimServer(1, life, self._ended)

    def come_up(self) -> None:
        """The control plane leads, every node is there, and the policy is in force."""
        self._server.start()
        for facts in self._nodes:
            machine = _Machine(facts, self._timeline, self._random, self._setup.start_ms - UNIX_START_MS)
            network = Network(self._timeline, self._faults, slow_ms=0)
            SimAgent(machine, self._dialling(network)).start()
        while len(self._server.world.nodes) < len(self._nodes):
            self._pass_time(1_000)
            if self._timeline.now_ms > UP_WITHIN_MS:
                raise Bug("simulated nodes did not come up")
        policy = self._setup.policy
        self._server.controller.set_policy(replace(policy, nodes=tuple(_rules(self._nodes, policy))), "sim")
        self._began_ms = self._clock.now_ms()

    def submit_all(self, trace: Trace) -> None:
        """At the times of the trace, from now on."""
        for index, job in enumerate(trace.jobs):
            self._timeline.after(job.submit_ms, partial(self._submit, index, job))

    def run(self, progress: Progress, jobs: int) -> None:
        """Until every job has ended, or nothing more can happen."""
        last, changed_ms = -1, self._timeline.now_ms
        while (over := self._over()) < jobs:
            if over != last:
                last, changed_ms = over, self._timeline.now_ms
                progress(over, jobs)
            nothing_held = not any(self._server.world.holding())
            if nothing_held and (self._timeline.now_ms - changed_ms > STUCK_MS or self._is_hopeless(jobs)):
                return
            self._pass_time(STEP_MS)
        progress(jobs, jobs)

    def outcome(self, trace: Trace) -> replayed.Outcome:
        """From the log, as the ledger reads it."""
        log = [event for event in self._database.store.events(limit=EVENTS_MAX) if event.at_ms >= self._began_ms]
        lives = self._lives(trace, log)
        ended_ms = max((event.at_ms for event in log if isinstance(event.body, AttemptEnded)), default=self._began_ms)
        whole = account(self._database.store.events(limit=EVENTS_MAX), {}, self._began_ms, ended_ms)
        if not whole.balanced:
            raise Bug("the ledger does not sum to capacity")
        return replayed.Outcome(
            trace=trace.name,
            nodes=self._nodes,
            lives=lives,
            starts=[(at_ms, self._index[body.job]) for at_ms, body in self._placed(log)],
            series=self._series(log, lives),
            ledger={name: amount for name, amount in whole.categories.items() if amount},
            capacity=whole.capacity,
            held_submitting=_held_until(self._series(log, lives), trace.jobs[-1].submit_ms),
            ended_ms=ended_ms - self._began_ms,
            decisions=self._decisions,
            decide_s=self._decide_s,
            interval_ms=1_000,
            shares={},
            blocked_by={},
            evictions=Counter(event.body.cause for event in log if isinstance(event.body, JobEvicted)),
            num_limited=sum(self._server.world.jobs[job].spec.max_duration_ms is not None for job in self._index),
            start_ms=self._began_ms,
        )

    def close(self) -> None:
        self._database.close()

    # Its parts

    def _dialling(self, network: Network) -> Callable[[LineEnd], Line | None]:
        def dial(at_agent: LineEnd) -> Line | None:
            line = network.open(at_agent, LineEnd(self._server.hear, lambda line, _: self._server.closed(line)))
            self._server.accepted(line)
            return line

        return dial

    def _decide(self, snapshot: Snapshot, memory: Memory) -> Plan:
        began_s = time.process_time()
        plan = schedule(snapshot, memory)
        self._decide_s += time.process_time() - began_s
        self._decisions += 1
        return plan

    def _ended(self, server: SimServer, why: BaseException) -> None:
        self._failed = why

    def _pass_time(self, ms: int) -> None:
        until_ms = self._timeline.now_ms + ms
        while self._timeline.step(until_ms):
            if self._failed is not None:
                raise self._failed

    def _submit(self, index: int, job: TraceJob) -> None:
        spec = self._spec(job)
        try:
            self._index[self._server.controller.submit(spec, "", "", "sim")] = index
        except UserError as error:
            self._refused[index] = error
        self._server.wake()

    def _spec(self, job: TraceJob) -> JobSpec:
        shape, setup = self._shapes.shape(job), self._setup
        limit = None if setup.limits.kind == "estimate" else limit_ms(job, setup.limits, self._estimates, setup.costs.restart_ms)
        kinds = "|".join(shape.request.types)
        count = f"{shape.request.milli / 1000:g}" if shape.request.is_share else str(shape.request.count)
        return JobSpec(
            name="job",
            entrypoint="python train.py",
            env={RUN_MS: str(job.duration_ms)},
            num_nodes=shape.num_nodes,
            resources=Resources(gpus=f"{kinds}:{count}" if kinds else count, cpus=shape.cpus, memory=str(shape.memory_bytes)),
            queue=queue_name(job.tenant),
            priority=job.priority,
            placing=Placing(spot=job.spot),
            max_duration=f"{limit}ms" if limit is not None and limit >= job.duration_ms else "",
        )

    # What came of it

    def _is_hopeless(self, jobs: int) -> bool:
        """Whether all that is left waits for a budget that never begins anew."""
        left, waits = self._server.world.open_jobs, self._server.controller.waiting
        submitted = len(self._index) + len(self._refused) == jobs
        return submitted and all(job in waits and is_for_ever(waits[job]) for job in left)

    def _over(self) -> int:
        world = self._server.world
        return len(world.jobs) - len(world.open_jobs) + len(self._refused)

    def _placed(self, log: Sequence[Event]) -> Iterator[tuple[int, AttemptPlaced]]:
        for event in log:
            if isinstance(event.body, AttemptPlaced):
                yield event.at_ms - self._began_ms, event.body

    def _lives(self, trace: Trace, log: Sequence[Event]) -> list[replayed.Life]:
        lives = [replayed.Life(job) for job in trace.jobs]
        for index, error in self._refused.items():
            lives[index].never, lives[index].fits = error.sentence(), error.field in BY_POLICY
        for job, index in self._index.items():
            if (wait := self._server.controller.waiting.get(job)) is not None and not self._server.world.jobs[job].attempts:
                lives[index].never = f"did not start though nothing else ran: {wait.reason.sentence()}"
        for at_ms, body in self._placed(log):
            life = lives[self._index[body.job]]
            life.started_ms = at_ms if life.started_ms is None else life.started_ms
            life.attempts += 1
        for event in log:
            if isinstance(event.body, JobEvicted):
                lives[self._index[event.body.job]].evictions += 1
        for job, index in self._index.items():
            finished_ms = self._server.world.jobs[job].finished_ms
            lives[index].ended_ms = None if finished_ms is None else finished_ms - self._began_ms
        return lives

    def _series(self, log: Sequence[Event], lives: Sequence[replayed.Life]) -> replayed.Series:
        capacity = 1000 * sum(len(node.devices) for node in self._nodes)
        changes = [(life.job.submit_ms, 0, 1, life.job.devices) for life in lives if not life.never]
        sizes: dict[str, int] = {}
        for event in log:
            if isinstance(event.body, AttemptPlaced):
                sizes[event.body.attempt] = size = event.body.placement.world_size
                changes.append((event.at_ms - self._began_ms, size, -1, -lives[self._index[event.body.job]].job.devices))
            elif isinstance(event.body, AttemptEnded):
                changes.append((event.at_ms - self._began_ms, -sizes[event.body.attempt], 0, 0))
        series, held, waiting, devices = replayed.Series(), 0, 0, 0
        for at_ms, holds, waits, asked in sorted(changes):
            held, waiting, devices = held + 1000 * holds, waiting + waits, devices + 1000 * asked
            series.add(at_ms, held, capacity - held, 0, 0, waiting, devices)
        return series


def _held_until(series: replayed.Series, until_ms: int) -> int:
    ends = [*series.at_ms[1:], until_ms]
    return sum(held * max(0, min(end, until_ms) - at) for at, end, held in zip(series.at_ms, ends, series.held_milli, strict=True))


def _rules(nodes: Sequence[NodeFacts], policy: Policy) -> Iterator[NodeRule]:
    """The policy's, and what its cluster's file says of nodes that no agent tells."""
    yield from policy.nodes
    for node in nodes:
        known = known_of(policy, node.node)
        types = dict(node.devices).values()
        if (known.labels, known.spot) != (node.labels, node.spot) or any(known.price_of(kind) != node.price for kind in types):
            yield NodeRule(match=node.node, labels=node.labels, spot=node.spot, price=node.price)


def queue_name(tenant: str) -> str:
    """A tenant of a trace as a queue's name may be."""
    plain = _NOT_IN_NAMES.sub("-", tenant.lower()).strip("-")[:63].strip("-")
    return plain if NAME.fullmatch(plain) else "default"
