"""The tick: observe, fold, decide, commit, then apply the difference between wanted and seen. Called from ONE thread.

The live server and the simulator drive the same object; clock, links, store and decider come in as arguments. May not import
the HTTP side, an engine, or `time`.
"""

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import structlog

from phalanx.core.chaos import Asked
from phalanx.core.events import EventBody, PolicySet
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.messages import Activity, Forget, Hello, Renew, Report, StartRanks
from phalanx.core.policy import Policy
from phalanx.core.records import RankFact, StepRecord
from phalanx.core.spec import JobSpec
from phalanx.core.trace_request import TracesAsked
from phalanx.core.views import HaltView
from phalanx.decide.scheduler.plan import Plan, Wait
from phalanx.decide.scheduler.snapshot import Snapshot
from phalanx.operate.control import (
    asked,
    chaos,
    idling,
    leases,
    names,
    observed,
    planned,
    refused,
    stragglers,
    trace_requests,
    wanted,
)
from phalanx.operate.control import facts as said
from phalanx.operate.control.committed import Committed
from phalanx.operate.control.dispatch import Dispatch
from phalanx.operate.control.fences import fences
from phalanx.operate.control.fold import Draft
from phalanx.operate.control.learning import Learning
from phalanx.operate.control.people.notes import Note
from phalanx.operate.control.ports import Clock, Decide, Links
from phalanx.operate.control.saving_places import with_store
from phalanx.operate.control.snapshots import Snapshots
from phalanx.operate.control.stopwatch import Stopwatch
from phalanx.operate.control.store import OutboxRow, Store
from phalanx.operate.control.trace_requests import Pace
from phalanx.operate.control.world import Lineage, OutboxFor, World, slice_of
from phalanx.record.telemetry.health.stragglers import Outlier

T = TypeVar("T")
log = structlog.get_logger(__name__)

HALT_MS: Final = 10_000
"""So long nothing is started after somebody said that the platform goes down: should it stay up, it goes on by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """home: of the platform; jobs keep their files under home/jobs. lease_ms: silence after which a node counts as away.
    kill_grace_ms: from SIGTERM to SIGKILL. resend_ms: a command not answered in this time is sent again. lineage: of a model
    version. outbox_for: what the tracker is told of an event. gang_key: as in `wanted.Terms`; the same for all who lead this home,
    since one may send a gang's first command and the next its last. strangers: whether there are teams that do not trust each
    other, asked in every tick."""

    home: Path
    lineage: Lineage
    outbox_for: OutboxFor
    lease_ms: int = 15_000
    kill_grace_ms: int = 10_000
    resend_ms: int = 2_000
    strangers: Callable[[], bool] = lambda: False
    gang_key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    @property
    def loss_ms(self) -> int:
        """Silence after which what a node has is given up, where other nodes are heard."""
        return self.lease_ms + self.kill_grace_ms + leases.LOSS_MARGIN_MS


class Controller:
    """One control plane over one home.

    waiting: why each pending job waits, with numbers of the newest decision; replaced, never changed.
    """

    def __init__(self, store: Store, clock: Clock, links: Links, settings: Settings, epoch: int | None = None) -> None:
        """Takes the lead over the store, unless it was taken already as `epoch`. Raises StoreUnavailable."""
        self.waiting: Mapping[JobId, Wait] = {}
        self._committed = Committed(store, epoch)
        self._store = store
        self._clock = clock
        self._settings = settings
        self._heard: list[observed.Heard] = []
        self._seen = observed.Sightings.since(clock.monotonic_ms())
        self._dispatch = Dispatch(links, settings.resend_ms)
        self._held = Stopwatch()
        self._held.look(self.world, clock.now_ms(), clock.monotonic_ms())
        self._snapshots = Snapshots()
        self._learning = Learning(self.world, self._snapshots.facts)
        self._observed: Snapshot | None = None
        self._talkers: set[AttemptId] = set()
        self._halted_until_ms = 0

    @property
    def world(self) -> World:
        """The committed state; replaced, never changed, so any thread may read the one it got."""
        return self._committed.world

    @property
    def epoch(self) -> int:
        """Grows with each controller of the home, and past what any node has seen; an older one's writes are refused."""
        return self._committed.epoch

    # What people ask for

    def noted(self, note: Note, act: Callable[["Controller"], T]) -> T:
        """What `act` returns or raises. What it changes is committed with the note; what changes nothing leaves none."""
        self._committed.note = note
        try:
            return act(self)
        finally:
            self._committed.note = None

    def submit(self, spec: JobSpec, code: str, key: str, by: str) -> JobId:
        """Accepts a checked spec. `code` is the SHA-256 of the packed workdir, or ''. The same non-empty `key` again returns
        the first job. Of an array it is the first of its jobs, all of which were accepted.

        Raises SpecError when no known node could ever hold it or a job that it waits for is not known, Conflict when `key` came
        with another job, StoreUnavailable.
        """
        refused.refuse_unwritable(spec, key)
        self._committed.find_out()
        if key and (known := self._store.job_of_key(key)) is not None:
            return asked.same_job(self.world, known, spec, code, key)
        spec = with_store(self.world.policy, spec)
        refused.refuse_unmeetable(self.world, spec, self._clock.now_ms())
        refused.refuse_never_fitting(self.world, spec, self._clock.now_ms())
        jobs = names.next_jobs(self.world, self._seen, spec.name, spec.array.count if spec.array else 1)
        self._commit_all(asked.submit(jobs, spec, code, by), key=(key, jobs[0]) if key else None)
        return jobs[0]

    def cancel(self, job: JobId, by: str, array: bool = False) -> None:
        """Asks the job to end: at once when it waits, else once its ranks are gone. Asking twice is asking once. `array`: it and
        all jobs of its array that have not finished.

        Raises NotFound, Conflict when it is finished, StoreUnavailable.
        """
        self._committed.find_out()
        self._commit_all((asked.cancel_array if array else asked.cancel)(self.world, job, by))

    def pause(self, job: JobId, by: str) -> None:
        """Asks the job to let go of its devices until it is resumed; what its last checkpoint holds stays. Twice is once.

        Raises NotFound, Conflict when it is finished, done or ends already, StoreUnavailable.
        """
        self._committed.find_out()
        self._commit_all(asked.pause(self.world, self._seen, job, by))

    def resume(self, job: JobId, by: str) -> None:
        """A paused job waits for devices again. A job that goes on anyway is left alone.

        Raises NotFound, Conflict while it still lets go of its devices or when it ends or is finished, StoreUnavailable.
        """
        self._committed.find_out()
        self._commit_all(asked.resume(self.world, job, by))

    def retry(self, job: JobId, by: str) -> None:
        """Opens a job that failed or was cancelled again: it waits for devices, resumes from its last checkpoint and has all its
        restarts before it. Raises NotFound, Conflict when it succeeded or has not finished, SpecError, StoreUnavailable."""
        self._committed.find_out()
        self._commit_all(asked.retry(self.world, job, by, self._clock.now_ms()))

    def chaos(self, job: JobId, fault: Asked, newest: tuple[AttemptId, StepRecord] | None, by: str) -> None:
        """Plans a fault in the job's running attempt. newest: an attempt of the job's, and the newest step of that.

        Raises NotFound, Conflict when the job does not allow it, does not run or is beyond that step, SpecError, StoreUnavailable.
        """
        self._committed.find_out()
        self._commit_all(chaos.planned(self.world, job, fault, newest, by, self._settings.lease_ms))

    def request_traces(self, job: JobId, traces: TracesAsked, pace: Pace | None, by: str) -> AttemptId:
        """Asks the job's running attempt for traces of its next steps. pace: of an attempt of the job's. The attempt that is asked.

        Raises NotFound, Conflict when the job cannot make them now, SpecError, StoreUnavailable.
        """
        self._committed.find_out()
        event = trace_requests.requested(self.world, self._seen, job, traces, pace, by, self._clock.now_ms())
        self._commit_all([event])
        return event.attempt

    def drain(self, node: NodeId, reason: str, by: str, now: bool = False) -> None:
        """Places nothing new on the node. `now`: gangs that run there are stopped and start again elsewhere, and no restart is
        used up; otherwise they run to their end. Twice is once. Raises NotFound, SpecError, StoreUnavailable."""
        self._committed.find_out()
        self._commit_all(asked.drain(self.world, self._seen, node, reason, by, now))

    def halt(self, but: NodeId, by: str) -> HaltView:
        """Before the platform goes down: gangs that have a part on another node than `but` are stopped, and start again when it is
        up; no restart is used up. For HALT_MS nothing is started; ask again while it is `busy`. Raises StoreUnavailable."""
        self._committed.find_out()
        if self._is_open():  # what is stopped has an event each; that nothing starts has none
            log.warning("halted", by=by, but=but, for_ms=HALT_MS)
        self._halted_until_ms = self._clock.monotonic_ms() + HALT_MS
        self._commit_all(asked.halt(self.world, self._seen, but, by))
        left = observed.alive(self.world, self._seen) - {but}
        return HaltView(left=tuple(sorted(left)), busy=asked.is_halting(self.world, left, but))

    def undrain(self, node: NodeId, by: str) -> None:
        """The node may be given work again. Raises NotFound, StoreUnavailable."""
        self._committed.find_out()
        self._commit_all(asked.undrain(self.world, node, by))

    def collect(self, jobs: Collection[JobId], before_ms: int, by: str) -> World:
        """What those of `jobs` left that finished before `before_ms` is garbage from now on. The world after it, in which nothing
        is in doubt. Raises StoreUnavailable."""
        self._committed.find_out()
        self._commit_all(asked.collect(self.world, jobs, before_ms, by))
        return self.world

    def set_policy(self, policy: Policy, by: str) -> Sequence[str]:
        """How the fleet is shared from now on; a second time the same is nothing new. Answers with what may be a mistake in it.
        Raises SpecError for what this fleet cannot keep, StoreUnavailable."""
        self._committed.find_out()
        doubts = self.check_policy(policy)
        self._commit_all([PolicySet(policy, by)] if policy != self.world.policy else [])
        return doubts

    def part_policy(self, policy: Policy, by: str) -> None:
        """As `set_policy` one that promises no more than the one in force: what this fleet cannot keep of that is not to be
        mended by who parts a share of it. Raises StoreUnavailable."""
        self._committed.find_out()
        self._commit_all([PolicySet(policy, by)] if policy != self.world.policy else [])

    def check_policy(self, policy: Policy) -> Sequence[str]:
        """What may be a mistake in it. Raises SpecError for the first promise in it that this fleet cannot keep."""
        return refused.policy_doubts(self.world, policy, self._clock.now_ms())

    # What agents say

    def heard(self, node: NodeId, message: Hello | Report | Renew | Activity) -> None:
        """Queues a message of a node's agent, in order; the next `observe` folds and commits it."""
        self._heard.append(observed.Heard(node, message, self._clock.monotonic_ms()))

    def idle_left_ms(self, attempt: AttemptId) -> int | None:
        """In how long it is stopped for being idle; None where it is not."""
        return idling.left_ms(self.world, self._seen, attempt, self._clock.monotonic_ms())

    def facts(self, node: NodeId, attempt: AttemptId, rank: int, offset: int, facts: Sequence[RankFact]) -> None:
        """Commits what a rank said. `offset` is where its record file was read up to: the end of the last line taken in.

        Idempotent: an `offset` not beyond `records_offset` changes nothing, so read from there on. Facts of an attempt or rank
        that was never on `node` are ignored, and so are those beyond FACTS_MAX, and of missed traces those that nobody waits for.
        Raises StoreUnavailable; then call again.
        """
        self._committed.find_out()
        record = self.world.attempts.get(attempt)
        part = slice_of(record.placement, node) if record else None
        if record is None or part is None or offset <= self.records_offset(attempt, rank):
            return
        if not part[1] <= rank < part[1] + len(part[2].devices):
            return
        draft = self._draft()
        ignored = said.add_all(draft, attempt, facts, self._settings.lineage, self._clock.now_ms())
        if ignored and attempt not in self._talkers:
            self._talkers.add(attempt)
            log.warning("facts_ignored", attempt=attempt, rank=rank, limit=said.FACTS_MAX)
        if draft.events:  # an offset without facts need not be durable: reading the same lines again finds none again
            self._commit(draft, offset=(attempt, rank, offset))
        self._committed.offsets[attempt, rank] = offset

    def outliers(self, attempt: AttemptId, outliers: Sequence[Outlier]) -> None:
        """Commits what follows from ranks that are slower than their peers; a second time nothing does. Raises StoreUnavailable."""
        self._committed.find_out()
        for outlier in outliers:
            self._commit_all(stragglers.found(self.world, attempt, outlier, self._clock.now_ms()))

    def lead_above(self, epoch_seen: int) -> int:
        """The epoch to welcome a node with that has seen `epoch_seen`: the own one, raised above that where it was lower.

        Raises ValueError for what no honest node can have seen, StoreUnavailable, and Bug when another took over.
        """
        if not observed.is_believable(epoch_seen, self.epoch):
            raise ValueError(f"epoch_seen {epoch_seen} cannot be, this is {self.epoch}; delete the epoch.json of this node's agent")
        self._committed.find_out()
        self._committed.lead_above(epoch_seen)
        return self.epoch

    def records_offset(self, attempt: AttemptId, rank: int) -> int:
        """Bytes of the rank's record file whose facts are committed."""
        return self._committed.offsets.get((attempt, rank), 0)

    # The tick

    def tick(self, decide: Decide) -> None:
        """One round. Raises StoreUnavailable (tick again) and what `decide` raises."""
        self.carry_out(decide(self.observe()))

    def observe(self) -> Snapshot:
        """Folds and commits what was heard and what time did; answers with the scheduler's input. Raises StoreUnavailable, and Bug
        when another took the lead."""
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        self._committed.find_out()
        self._committed.check_lead()
        self._held.look(self.world, now_ms, monotonic_ms)
        heard, seen, draft = list(self._heard), self._seen.copy(), self._draft()
        for item in heard:
            if isinstance(item.message, Hello):
                if not observed.is_believable(item.message.epoch_seen, self.epoch):
                    continue
                self.lead_above(item.message.epoch_seen)
            observed.take_in(draft, seen, item, now_ms)
        leases.note_tick(seen, monotonic_ms)
        leases.note_away(draft, seen, monotonic_ms, self._settings.lease_ms, now_ms)
        leases.note_lost(draft, seen, monotonic_ms, self._settings.lease_ms, self._settings.loss_ms, now_ms)
        observed.note_released(draft, seen, now_ms)
        idling.note_idle(draft, seen, monotonic_ms, now_ms)
        observed.note_overdue(draft, seen, self._held, monotonic_ms, now_ms)
        self._commit(draft)
        self._seen = seen
        del self._heard[: len(heard)]
        self._dispatch.forget({item.node for item in heard if isinstance(item.message, Hello)})
        strangers = self._settings.strangers()
        ready, fenced = observed.ready(self.world, seen, strangers), fences(self.world, seen)
        exposed = observed.exposed(self.world) if strangers else frozenset[NodeId]()
        history, service = self._learning.history, self._learning.service
        self._observed = self._snapshots.take(self.world, ready, now_ms, fenced, history, service, exposed)
        return self._observed

    def carry_out(self, plan: Plan) -> None:
        """Commits what of the plan still holds, then sends every node the difference. Raises StoreUnavailable."""
        self._committed.find_out()
        if self._observed is not None:
            self._learning.decided(self._observed, plan)
        draft = self._draft()
        if self._is_open():
            fenced, strangers = fences(self.world, self._seen), self._settings.strangers()
            planned.carry(draft, self._seen, fenced, plan, self.epoch, self._clock.now_ms(), strangers)
        self._commit(draft)
        self._held.look(self.world, self._clock.now_ms(), self._clock.monotonic_ms())
        self.waiting = planned.waiting(self.world, plan, self.waiting)
        self._send()

    def pending_outbox(self, limit: int) -> list[OutboxRow]:
        """The oldest entries not yet taken over by the tracker. Raises StoreUnavailable."""
        return self._store.pending_outbox(limit)

    def outbox_done(self, seq: int) -> None:
        """The tracker has the entry. Raises StoreUnavailable."""
        self._store.outbox_done(self.epoch, seq)

    # Inside

    def _is_open(self) -> bool:
        """Whether anything may be started: nobody has said of late that the platform goes down."""
        return self._clock.monotonic_ms() >= self._halted_until_ms

    def _draft(self) -> Draft:
        return Draft(self.world, self._settings.outbox_for)

    def _commit(self, draft: Draft, key: tuple[str, JobId] | None = None, offset: tuple[AttemptId, int, int] | None = None) -> None:
        self._committed.commit(draft, key, offset)
        self._learning.committed(draft.events, draft.world)

    def _commit_all(self, bodies: Sequence[EventBody], key: tuple[str, JobId] | None = None) -> None:
        draft = self._draft()
        for body in bodies:
            draft.add(body, self._clock.now_ms())
        self._commit(draft, key=key)

    def _send(self) -> None:
        """Sends the difference between wanted and seen."""
        terms = wanted.Terms(
            epoch=self.epoch,
            jobs_folder=self._settings.home / "jobs",
            grace_ms=self._settings.kill_grace_ms,
            gang_key=self._settings.gang_key,
        )
        commands = wanted.commands(self.world, self._seen, terms)
        for node, command in self._dispatch.send(commands, self._clock.monotonic_ms()):
            match command:
                case StartRanks(launch):
                    self._seen.started.add((node, launch.attempt))
                case Forget(attempt):  # needs no answer; should it get lost, the node's next Hello brings the report back
                    self._seen.reports.pop((node, attempt), None)
