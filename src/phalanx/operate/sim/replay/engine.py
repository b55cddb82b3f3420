"""A trace on a simulated fleet under a virtual clock. Only the decisions are real: `schedule`, with the snapshots of a live control
plane. One seed is one history.

Decisions are made at multiples of `interval_ms`, when something has happened since the last one, and else every `heartbeat_ms`
while jobs wait, since waiting alone changes things: up to CALM_BEATS times as seldom the longer nothing happens, and at the times
that are known in advance (`wakes`).
What comes between two decisions is decided at the later one. A job like one that waits already (shape, queue, priority, about the
limit) changes nothing: it stands behind it.
"""

import heapq
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, Literal

from phalanx.core.ids import JobId, NodeId
from phalanx.core.policy import Policy
from phalanx.core.reasons import OverBudget
from phalanx.decide.scheduler import Evict, NodeFacts, PendingJob, Plan, RunningJob, Snapshot, Start, Wait
from phalanx.operate.sim.replay.account import Ledger, Tenants
from phalanx.operate.sim.replay.costs import HOUR_MS, Costs
from phalanx.operate.sim.replay.fleet import SimFleet
from phalanx.operate.sim.replay.forecast import Forecasts
from phalanx.operate.sim.replay.gang import Gang
from phalanx.operate.sim.replay.gangs import Estimates, Gangs, Limits, job_facts, limit_ms
from phalanx.operate.sim.replay.notes import Notes
from phalanx.operate.sim.replay.outcome import Life, Outcome
from phalanx.operate.sim.replay.wakes import Wakes
from phalanx.operate.sim.timeline import UNIX_START_MS
from phalanx.operate.sim.traces.trace import Trace
from phalanx.record.telemetry.ledger.categories import IDLE
from phalanx.record.telemetry.ledger.waiting import waits_as

Decide = Callable[[Snapshot], Plan]
Progress = Callable[[int, int], None]
"""Called with jobs that are over and all jobs."""

CALM_BEATS: Final = 12

STUCK_MS: Final = 40 * 24 * HOUR_MS
"""Nothing ran and nothing started for so long: what waits now waits for ever. Longer than any window or budget's period."""

_Kind = Literal["end", "released", "saved", "fails", "repaired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """interval_ms, heartbeat_ms: as above. known: the scheduler is told how long jobs run, as `shortest` needs. predicts: starts
    are predicted, and what came of it is learnt. start_ms: Unix time of time 0, by which bookings, windows and periods go."""

    policy: Policy = field(default_factory=Policy)
    costs: Costs = field(default_factory=Costs)
    limits: Limits = field(default_factory=Limits)
    interval_ms: int = 10_000
    heartbeat_ms: int = 5 * 60_000
    seed: int = 0
    known: bool = False
    predicts: bool = True
    start_ms: int = UNIX_START_MS


class Replay:
    """One run. `run` may be called once."""

    def __init__(self, trace: Trace, nodes: Sequence[NodeFacts], setup: Setup, decide: Decide, progress: Progress | None = None):
        self._trace, self._nodes, self._setup, self._decide = trace, tuple(nodes), setup, decide
        self._progress, self._start_ms = progress, setup.start_ms
        self._random = Random(setup.seed)  # noqa: S311 - histories, not secrets
        self._fleet = SimFleet(nodes)
        self._shapes = Gangs(nodes)
        self._estimates = Estimates()
        self._ledger = Ledger()
        self._tenants = Tenants(setup.policy, setup.start_ms)
        self._forecasts = Forecasts(setup.predicts)
        self._notes = Notes(trace, self._shapes)
        self._lives = [Life(job) for job in trace.jobs]
        self._gangs: dict[JobId, Gang] = {}
        self._pending: dict[JobId, PendingJob] = {}
        self._running: dict[JobId, RunningJob] = {}
        self._on_node: dict[NodeId, dict[JobId, None]] = {}
        self._events: list[tuple[int, int, _Kind, str, int]] = []
        self._numbered = 0
        self._arrived = 0
        self._over = 0
        self._now_ms = 0
        self._changed = False
        self._decided_ms = 0
        self._started_ms = 0
        self._alike: Counter[tuple[object, ...]] = Counter()
        self._beat_ms = setup.heartbeat_ms
        self._waiting_milli = 0
        self._held_submitting = 0
        self._limited = 0
        self._starts: list[tuple[int, int]] = []
        self._plan = Plan(())
        self._decisions = 0
        self._decide_s = 0.0
        self._evictions: Counter[str] = Counter()
        self._failures = 0
        self._told_every = max(1, len(trace.jobs) // 500)
        self._shares_in_time = setup.policy.shares_in_time
        self._tracks_saves = len({job.priority for job in trace.jobs}) > 1 or bool(setup.policy.queues)
        self._wakes = Wakes(setup.policy, setup.start_ms, evicts=self._tracks_saves or self._shares_in_time)

    def run(self) -> Outcome:
        """From the first submission until every job has ended or never will."""
        if self._setup.costs.mtbf_ms:
            for name in self._fleet.names:
                self._fails_later(name)
        while self._over < len(self._lives):
            due_ms = self._next_ms()
            if due_ms is None or (not self._running and due_ms - self._started_ms > STUCK_MS and self._arrived == len(self._lives)):
                self._give_up()
                break
            decide_ms = self._grid(due_ms)
            self._happen_until(decide_ms)
            self._move_to(decide_ms)
            if self._pending and (self._changed or decide_ms >= self._beat_at_ms()):
                self._round()
                if self._is_hopeless:
                    self._give_up()
            elif self._changed:
                self._note(None)
                self._changed = False
        return self._outcome()

    # Time

    def _grid(self, ms: int) -> int:
        step = self._setup.interval_ms
        return -(-ms // step) * step if step > 1 else ms

    def _next_ms(self) -> int | None:
        """When something happens next; None when nothing ever will."""
        times = []
        if self._arrived < len(self._lives):
            times.append(self._lives[self._arrived].job.submit_ms)
        if self._events:
            times.append(self._events[0][0])
        if self._pending:
            times.append(self._beat_at_ms())
        return max(self._now_ms, min(times)) if times else None

    def _beat_at_ms(self) -> int:
        """When is decided next, should nothing happen."""
        beat_ms, wake_ms = self._decided_ms + self._beat_ms, self._wakes.next_ms(self._decided_ms)
        return beat_ms if wake_ms is None else min(beat_ms, wake_ms)

    def _happen_until(self, until_ms: int) -> None:
        """Everything up to then, in order of time; submissions before what else happens in the same millisecond."""
        lives = self._lives
        while True:
            event_ms = self._events[0][0] if self._events else until_ms + 1
            submit_ms = lives[self._arrived].job.submit_ms if self._arrived < len(lives) else until_ms + 1
            if min(event_ms, submit_ms) > until_ms:
                return
            if submit_ms <= event_ms:
                self._move_to(submit_ms)
                self._submit(self._arrived)
                self._arrived += 1
            else:
                _, _, kind, name, attempt = heapq.heappop(self._events)
                self._move_to(event_ms)
                self._happen(kind, name, attempt)

    def _move_to(self, now_ms: int) -> None:
        if now_ms > self._now_ms:
            self._ledger.pass_time(now_ms, self._fleet.idle_milli, self._fleet.down_milli)
            if self._arrived < len(self._lives):
                self._held_submitting += self._fleet.held_milli * (now_ms - self._now_ms)
            self._now_ms = now_ms

    def _later(self, at_ms: int, kind: _Kind, name: str, attempt: int) -> None:
        self._numbered += 1
        heapq.heappush(self._events, (at_ms, self._numbered, kind, name, attempt))

    # Events

    def _happen(self, kind: _Kind, name: str, attempt: int) -> None:
        match kind:
            case "fails":
                self._fail(NodeId(name))
            case "repaired":
                self._fleet.back(NodeId(name))
                self._fails_later(NodeId(name))
                self._changed = True
            case _:
                gang = self._gangs.get(JobId(name))  # None when it is over
                if gang is not None and gang.running is not None and gang.life.attempts == attempt:
                    self._happen_to(gang, kind)

    def _happen_to(self, gang: Gang, kind: _Kind) -> None:
        if kind == "released":
            self._let_go(gang, failed=False)
            self._line_up(gang, repair=False)
        elif gang.stopped_ms is not None:
            return  # it was told to stop first
        elif kind == "end":
            self._end(gang)
        else:
            self._saved(gang)

    def _submit(self, index: int) -> None:
        life, setup = self._lives[index], self._setup
        shape = self._shapes.shape(life.job)
        limit = limit_ms(life.job, setup.limits, self._estimates, setup.costs.restart_ms)
        facts = job_facts(index, life.job, shape, limit, self._start_ms, setup.known)
        self._limited += limit is not None
        self._forecasts.submitted(facts)
        milli = shape.num_devices * shape.request.milli
        total = life.job.duration_ms - min(setup.costs.start_ms, life.job.duration_ms)
        gang = self._gangs[facts.job] = Gang(index, facts, life, milli, total)
        self._line_up(gang, repair=False)

    def _line_up(self, gang: Gang, repair: bool) -> None:
        claim, gang.keeps = gang.keeps, None
        gang.waits(self._now_ms, self._start_ms, repair, claim)
        assert gang.pending is not None
        self._pending[gang.facts.job] = gang.pending
        self._wakes.waits(gang.pending)
        self._tenants.want(gang.facts.queue, gang.milli)
        self._waiting_milli += gang.milli
        alike = _alike(gang)
        self._changed = self._changed or not self._alike[alike] or repair or claim is not None or self._shares_in_time
        self._alike[alike] += 1

    def _leave_line(self, gang: Gang) -> None:
        del self._pending[gang.facts.job]
        gang.life.queued_ms += self._now_ms - gang.since_ms
        self._alike[_alike(gang)] -= 1
        self._tenants.want(gang.facts.queue, -gang.milli)
        self._waiting_milli -= gang.milli

    def _end(self, gang: Gang) -> None:
        self._forecasts.ended(gang.facts, self._now_ms - gang.placed_ms)
        self._let_go(gang, failed=False)
        if self._shares_in_time:
            self._forecasts.finished(gang.facts, gang.served_ms)
        gang.life.ended_ms = self._now_ms
        gang.running = None
        self._estimates.learn(gang.life.job)
        del self._gangs[gang.facts.job]
        self._finished()

    def _finished(self) -> None:
        self._over += 1
        if self._progress is not None and (self._over % self._told_every == 0 or self._over == len(self._lives)):
            self._progress(self._over, len(self._lives))

    def _let_go(self, gang: Gang, failed: bool) -> None:
        """Of its devices."""
        assert gang.running is not None
        placement, shape = gang.running.placement, gang.facts.shape
        self._tenants.pass_time(self._now_ms)
        gang.settle(self._now_ms, self._setup.costs, self._ledger, failed)
        before = self._fleet.held_milli
        self._fleet.give(placement, shape.cpus, shape.memory_bytes)
        self._tenants.hold(gang.facts.queue, self._fleet.held_milli - before, -self._fleet.price(placement))
        for part in placement.slices:
            self._on_node[part.node].pop(gang.facts.job, None)
        del self._running[gang.facts.job]
        self._changed = True

    def _saved(self, gang: Gang) -> None:
        """It made a checkpoint: evicting it costs less from here on."""
        assert gang.running is not None
        gang.running = self._running[gang.facts.job] = replace(gang.running, saved_ms=self._start_ms + self._now_ms)
        self._later(self._now_ms + self._setup.costs.checkpoint_ms, "saved", gang.facts.job, gang.life.attempts)

    # Failures

    def _fails_later(self, name: NodeId) -> None:
        after_ms = round(self._random.expovariate(1 / self._setup.costs.mtbf_ms))
        self._later(self._now_ms + max(1, after_ms), "fails", name, 0)

    def _fail(self, name: NodeId) -> None:
        """Its gangs end whole and are repaired first; others' devices are not touched."""
        self._failures += 1
        for job in list(self._on_node.get(name, ())):
            gang = self._gangs[job]
            gang.life.failures += 1
            gang.keeps = None
            self._let_go(gang, failed=True)
            self._line_up(gang, repair=True)
        self._fleet.away(name)
        self._later(self._now_ms + self._setup.costs.repair_ms, "repaired", name, 0)
        self._changed = True

    # Decisions

    def _round(self) -> None:
        """What the control plane does in a tick."""
        snapshot = self._snapshot()
        began_s = time.process_time()
        plan = self._decide(snapshot)
        self._decide_s += time.process_time() - began_s
        self._decisions += 1
        self._slow_down()
        self._decided_ms, self._changed = self._now_ms, False
        self._plan = plan
        self._forecasts.decided(snapshot, plan, self._setup.heartbeat_ms)
        self._apply(plan)
        for evicted in plan.evictions:
            self._evict(evicted)
        for claim in plan.claims:
            if claim.job in self._pending:
                gang = self._gangs[claim.job]
                assert gang.pending is not None
                gang.pending = self._pending[claim.job] = replace(gang.pending, claim=claim.placement)
            elif claim.placement is not None:  # what it has it borrows no more
                self._gangs[claim.job].running = self._running[claim.job] = replace(
                    self._running[claim.job], placement=claim.placement
                )

    def _slow_down(self) -> None:
        """Where nothing but time passes, looking less often will do; not where the policy has times of its own."""
        setup, policy = self._setup, self._setup.policy
        timed = self._shares_in_time or policy.windows or policy.bookings
        woken = self._now_ms - self._decided_ms < self._beat_ms
        beat_ms = setup.heartbeat_ms if self._changed or timed else self._beat_ms if woken else 2 * self._beat_ms
        self._beat_ms = min(beat_ms, CALM_BEATS * setup.heartbeat_ms)

    def _snapshot(self) -> Snapshot:
        self._tenants.pass_time(self._now_ms)
        return Snapshot(
            now_ms=self._start_ms + self._now_ms,
            nodes=self._fleet.facts(),
            running=tuple(self._running.values()),
            pending=tuple(self._pending.values()),
            policy=self._setup.policy,
            usage=self._tenants.usage(),
            history=self._forecasts.history,
            service=self._forecasts.service,
        )

    def _apply(self, plan: Plan) -> None:
        first: Wait | None = None
        never: list[Wait] = []
        for decision in plan.decisions:
            if isinstance(decision, Start):  # three times as quick as a match
                self._start(decision)
            elif decision.reason.kind == "never_fits":
                never.append(decision)
            elif first is None and waits_as(decision.reason) is not None:
                first = decision
        for wait in never:
            self._never(self._gangs[wait.job], wait.reason.sentence(), fits=False)
        self._note(first)
        if self._notes.sample(self._now_ms, plan.decisions):
            self._tenants.sample(self._now_ms, self._fleet.capacity_milli - self._fleet.down_milli)

    def _start(self, start: Start) -> None:
        gang = self._gangs[start.job]
        shape, now_ms = gang.facts.shape, self._now_ms
        self._leave_line(gang)
        before = self._fleet.held_milli
        self._fleet.take(start.placement, shape.cpus, shape.memory_bytes)
        self._tenants.hold(gang.facts.queue, self._fleet.held_milli - before, self._fleet.price(start.placement))
        ends_ms = gang.begin(start.placement, now_ms, self._start_ms + now_ms, self._setup.costs)
        assert gang.running is not None
        self._running[start.job] = gang.running
        for part in start.placement.slices:
            self._on_node.setdefault(part.node, {})[start.job] = None
        told = self._forecasts.started(start.job, self._start_ms + now_ms, self._start_ms)
        if gang.life.started_ms is None:
            gang.life.started_ms, gang.life.eta = now_ms, told
        self._starts.append((now_ms, gang.index))
        self._started_ms = now_ms
        self._wakes.started(now_ms)
        self._later(ends_ms, "end", start.job, gang.life.attempts)
        if self._tracks_saves:
            self._later(now_ms + gang.start_ms + self._setup.costs.checkpoint_ms, "saved", start.job, gang.life.attempts)

    def _evict(self, evicted: Evict) -> None:
        gang = self._gangs[evicted.job]
        assert gang.running is not None
        gang.stopped_ms, gang.keeps = self._now_ms, evicted.keeps
        gang.life.evictions += 1
        if evicted.claimant != evicted.job and not gang.running.placement.borrowed:  # as the control plane counts
            gang.evicted_ms.append(self._now_ms)
        self._evictions[evicted.cause] += 1
        gang.running = self._running[evicted.job] = replace(gang.running, stopping=True, evicted_for=evicted.claimant)
        self._later(self._now_ms + self._setup.costs.release_ms, "released", evicted.job, gang.life.attempts)

    def _never(self, gang: Gang, why: str, fits: bool) -> None:
        """It is told so, and stands in nobody's way."""
        self._leave_line(gang)
        self._forecasts.forget(gang.facts.job)
        gang.life.never, gang.life.fits = why, fits
        del self._gangs[gang.facts.job]
        self._finished()

    @property
    def _is_hopeless(self) -> bool:
        """Whether what is left waits for money of a budget that is for all time, and nothing else happens."""
        idle = self._pending and not self._running and self._arrived == len(self._lives)
        return bool(idle) and all(is_for_ever(decision) for decision in self._plan.decisions)

    def _give_up(self) -> None:
        reasons = {wait.job: f": {wait.reason.sentence()}" for wait in self._plan.decisions if isinstance(wait, Wait)}
        for job in list(self._pending):
            self._never(self._gangs[job], f"did not start though nothing else ran{reasons.get(job, '')}", fits=True)
        self._over = len(self._lives)

    # What is written down

    def _note(self, first: Wait | None) -> None:
        """The fleet as it is after a decision; `first` is of the first job that waits for devices."""
        self._ledger.idle = (waits_as(first.reason) if first is not None else None) or IDLE
        needs = self._gangs[first.job].facts.shape.request.count if first is not None else 0
        self._notes.fleet(self._now_ms, self._fleet, needs, len(self._pending), self._waiting_milli)

    def _outcome(self) -> Outcome:
        self._note(None)
        self._tenants.pass_time(self._now_ms)
        return Outcome(
            trace=self._trace.name,
            nodes=self._nodes,
            lives=self._lives,
            starts=self._starts,
            series=self._notes.series,
            ledger=self._ledger.balanced(self._fleet.capacity_milli),
            capacity=self._fleet.capacity_milli * self._now_ms,
            held_submitting=self._held_submitting,
            ended_ms=self._now_ms,
            decisions=self._decisions,
            decide_s=self._decide_s,
            interval_ms=self._setup.interval_ms,
            shares=self._tenants.told(),
            blocked_by=self._notes.blocked_by,
            evictions=self._evictions,
            num_failures=self._failures,
            num_limited=self._limited,
            start_ms=self._start_ms,
        )


def is_for_ever(decision: Start | Wait) -> bool:
    """Whether the job waits for a budget that never begins anew."""
    reason = decision.reason if isinstance(decision, Wait) else None
    return isinstance(reason, OverBudget) and reason.resets_ms is None


def _alike(gang: Gang) -> tuple[object, ...]:
    """What jobs have in common of which the first one in line goes first. Shapes are one object each; a job whose limit is half as
    long may pass where others may not."""
    limit_ms = gang.facts.limit_ms
    return id(gang.facts.shape), gang.facts.queue, gang.facts.priority, -1 if limit_ms is None else limit_ms.bit_length()
