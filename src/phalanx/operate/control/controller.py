"""The tick: observe, fold, decide, commit, then apply the difference between wanted and seen. Called from ONE thread.

The live server and the simulator drive the same object; clock, links, store and decider come in as arguments. May not import
the HTTP side, an engine, or `time`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from phalanx.core import wire
from phalanx.core.devices import Placement
from phalanx.core.errors import Conflict, NotFound, SpecError, StoreUnavailable
from phalanx.core.events import AttemptPlaced, EventBody, JobSubmitted, JobWaits, StopRequested
from phalanx.core.ids import AttemptId, JobId, NodeId, attempt_id, job_id
from phalanx.core.messages import Hello, Renew, Report
from phalanx.core.reasons import Reason
from phalanx.core.records import RankFact
from phalanx.core.spec import JobSpec
from phalanx.core.states import Finished, Pending, Stopping
from phalanx.decide.scheduler.explain import never_fits
from phalanx.decide.scheduler.plan import Plan, Start, Wait
from phalanx.decide.scheduler.snapshot import Snapshot
from phalanx.operate.control import facts as said
from phalanx.operate.control import observed, wanted
from phalanx.operate.control.dispatch import Dispatch
from phalanx.operate.control.fold import Draft
from phalanx.operate.control.ports import Clock, Decide, Links
from phalanx.operate.control.stopwatch import Stopwatch
from phalanx.operate.control.store import Commit, OutboxRow, Store
from phalanx.operate.control.world import JobRecord, Lineage, OutboxFor, slice_of

KEY_CHARS_MAX: Final = 255
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """home: of the platform; jobs keep their files under home/jobs. lease_ms: silence after which a node counts as away.
    kill_grace_ms: from SIGTERM to SIGKILL. resend_ms: a command not answered in this time is sent again. lineage: of a model
    version. outbox_for: what the tracker is told of an event."""

    home: Path
    lineage: Lineage
    outbox_for: OutboxFor
    lease_ms: int = 15_000
    kill_grace_ms: int = 10_000
    resend_ms: int = 2_000


class Controller:
    """One control plane over one home.

    world: the committed state; replaced, never changed, so any thread may read the one it got.
    waiting: why each pending job waits, with numbers of the newest decision; replaced likewise.
    epoch: grows by one with each controller of the home; an older one's writes are refused.
    """

    def __init__(self, store: Store, clock: Clock, links: Links, settings: Settings) -> None:
        """Takes the lead over the store. Raises StoreUnavailable."""
        self.epoch = store.take_lead()
        self.world = store.load()
        self.waiting: Mapping[JobId, Wait] = {}
        self._in_doubt = False
        self._store = store
        self._clock = clock
        self._settings = settings
        self._start_ms = clock.monotonic_ms()
        self._heard: list[observed.Heard] = []
        self._seen = observed.Sightings()
        self._offsets = dict(store.records_offsets())
        self._dispatch = Dispatch(links, settings.resend_ms)
        self._held = Stopwatch()
        self._held.look(self.world, clock.now_ms(), self._start_ms)
        self._talkers: set[AttemptId] = set()

    # What people ask for

    def submit(self, spec: JobSpec, code: str, key: str, by: str) -> JobId:
        """Accepts a checked spec. `code` is the SHA-256 of the packed workdir, or ''. The same non-empty `key` again returns
        the first job.

        Raises SpecError when no known node could ever hold it, Conflict when `key` came with another job, StoreUnavailable.
        """
        _refuse_unwritable(spec, key)
        self._find_out()
        config = config_hash(spec)
        if key and (known := self._store.job_of_key(key)) is not None:
            return self._same_job(known, config, code, key)
        self._refuse_never_fitting(spec)
        draft = self._draft()
        job = job_id(spec.name, self.world.sequence + 1)
        self._add(draft, JobSubmitted(job, spec, code, config, by))
        self._commit(draft, key=(key, job) if key else None)
        return job

    def cancel(self, job: JobId, by: str) -> None:
        """Asks the job to end: at once when it waits, else once its ranks are gone. Asking twice is asking once.

        Raises NotFound, Conflict when it is finished, StoreUnavailable.
        """
        self._find_out()
        record = self._job(job)
        if isinstance(record.state, Finished):
            raise Conflict("job", job, f"it has already finished ({record.state.outcome})")
        if isinstance(record.state, Stopping) and record.state.cause == "cancel":
            return
        draft = self._draft()
        self._add(draft, StopRequested(job, "cancel", by))
        self._commit(draft)

    # What agents say

    def heard(self, node: NodeId, message: Hello | Report | Renew) -> None:
        """Queues a message of a node's agent, in order; the next `observe` folds and commits it."""
        self._heard.append(observed.Heard(node, message, self._clock.monotonic_ms()))

    def facts(self, node: NodeId, attempt: AttemptId, rank: int, offset: int, facts: Sequence[RankFact]) -> None:
        """Commits what a rank said. `offset` is where its record file was read up to: the end of the last line taken in.

        Idempotent: an `offset` not beyond `records_offset` changes nothing, so read from there on. Facts of an attempt or rank
        that was never on `node` are ignored, and so are those beyond FACTS_MAX. Raises StoreUnavailable; then call again.
        """
        self._find_out()
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
        self._offsets[attempt, rank] = offset

    def records_offset(self, attempt: AttemptId, rank: int) -> int:
        """Bytes of the rank's record file whose facts are committed."""
        return self._offsets.get((attempt, rank), 0)

    # The tick

    def tick(self, decide: Decide) -> None:
        """One round. Raises StoreUnavailable (tick again) and what `decide` raises."""
        self.carry_out(decide(self.observe()))

    def observe(self) -> Snapshot:
        """Folds and commits what was heard and what time did; answers with the scheduler's input. Raises StoreUnavailable."""
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        self._find_out()
        self._held.look(self.world, now_ms, monotonic_ms)
        heard, seen, draft = list(self._heard), self._seen.copy(), self._draft()
        for item in heard:
            observed.take_in(draft, seen, item, now_ms)
        observed.note_away(draft, seen, monotonic_ms, self._start_ms, self._settings.lease_ms, now_ms)
        observed.note_overdue(draft, seen, self._held, monotonic_ms, now_ms)
        self._commit(draft)
        self._seen = seen
        del self._heard[: len(heard)]
        self._dispatch.forget({item.node for item in heard if isinstance(item.message, Hello)})
        return wanted.snapshot(self.world, observed.ready(self.world, seen), now_ms)

    def carry_out(self, plan: Plan) -> None:
        """Commits what of the plan still holds, then sends every node the difference. Raises StoreUnavailable."""
        self._find_out()
        draft = self._draft()
        for decision in plan.decisions:
            match decision:
                case Start(job, placement):
                    self._place(draft, job, placement)
                case Wait(job, reason):
                    self._wait(draft, job, reason)
        self._commit(draft)
        self._held.look(self.world, self._clock.now_ms(), self._clock.monotonic_ms())
        self._note_waiting(plan)
        self._send()

    def pending_outbox(self, limit: int) -> list[OutboxRow]:
        """The oldest entries not yet taken over by the tracker. Raises StoreUnavailable."""
        return self._store.pending_outbox(limit)

    def outbox_done(self, seq: int) -> None:
        """The tracker has the entry. Raises StoreUnavailable."""
        self._store.outbox_done(self.epoch, seq)

    # Inside

    def _job(self, job: JobId) -> JobRecord:
        record = self.world.jobs.get(job)
        if record is None:
            raise NotFound("job", job, "no such job; `phalanx ls` shows them all")
        return record

    def _same_job(self, job: JobId, config: str, code: str, key: str) -> JobId:
        record = self._job(job)
        if (record.config, record.code) != (config, code):
            raise Conflict("key", key, f"was used for {job}, another job; use a new key for each job")
        return job

    def _refuse_never_fitting(self, spec: JobSpec) -> None:
        asked = wanted.pending_job(JobId(spec.name), spec, 0, 0)
        reason = never_fits(asked, wanted.snapshot(self.world, frozenset(), 0).nodes)
        if reason is not None:
            raise SpecError("resources", reason.asked, reason.sentence())

    def _draft(self) -> Draft:
        return Draft(self.world, self._settings.outbox_for)

    def _add(self, draft: Draft, body: EventBody) -> None:
        draft.add(body, self._clock.now_ms())

    def _commit(self, draft: Draft, key: tuple[str, JobId] | None = None, offset: tuple[AttemptId, int, int] | None = None) -> None:
        """One transaction; the world moves only once it is durable. One that fails in its last moment may be done all the same:
        if so it counts as done, if not or if nobody knows now it raises, and nothing follows before that is known."""
        if not draft.events:
            return
        world = draft.world
        commit = Commit(draft.events, draft.changes, draft.outbox, world.sequence, key, offset)
        self._in_doubt = True
        try:
            self._store.commit(self.epoch, commit)
        except StoreUnavailable as error:
            self._find_out_after(error)
            if self.world.seq < world.seq:
                raise
        else:
            self.world, self._in_doubt = world, False

    def _find_out_after(self, error: StoreUnavailable) -> None:
        try:
            self._find_out()
        except StoreUnavailable as still:
            unknown = f"{error}; whether it was done is known once the database answers again"
            raise StoreUnavailable(unknown) from still

    def _find_out(self) -> None:
        """After a commit that failed: whether the database has it, and then the world as the database has it. Else everything
        built on the older world would be refused for ever."""
        if not self._in_doubt:
            return
        if self._store.last_seq() != self.world.seq:
            world, offsets = self._store.load(), self._store.records_offsets()
            self.world, self._offsets = world, {**self._offsets, **offsets}
        self._in_doubt = False

    def _place(self, draft: Draft, job: JobId, placement: Placement) -> None:
        if not wanted.still_holds(draft.world, observed.ready(draft.world, self._seen), job, placement):
            return
        record = draft.world.jobs[job]
        port = wanted.master_port(draft.world, record, placement)
        if port is not None:
            attempt = attempt_id(job, record.state.attempt + 1)
            self._add(draft, AttemptPlaced(job, attempt, placement, port, self.epoch))

    def _wait(self, draft: Draft, job: JobId, reason: Reason) -> None:
        """Only a change of kind is worth a line in the log; the numbers move with every tick."""
        record = draft.world.open_jobs.get(job)
        if record is None or not isinstance(record.state, Pending):
            return
        if record.reason is None or record.reason.kind != reason.kind:
            self._add(draft, JobWaits(job, reason))

    def _note_waiting(self, plan: Plan) -> None:
        waits = {decision.job: decision for decision in plan.decisions if isinstance(decision, Wait)}
        pending = (job.id for job in self.world.open_jobs.values() if isinstance(job.state, Pending))
        self.waiting = {job: wait for job in pending if (wait := waits.get(job) or self.waiting.get(job)) is not None}

    def _send(self) -> None:
        """Sends the difference between wanted and seen."""
        terms = wanted.Terms(epoch=self.epoch, jobs_folder=self._settings.home / "jobs", grace_ms=self._settings.kill_grace_ms)
        commands = wanted.commands(self.world, self._seen, terms)
        for node, attempt in self._dispatch.send(commands, self._clock.monotonic_ms()):
            self._seen.reports.pop((node, attempt), None)


def config_hash(spec: JobSpec) -> str:
    """SHA-256 of the spec as canonical JSON: equal for equal specs, whatever order their keys were written in."""
    text = json.dumps(wire.plain(JobSpec, spec), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _refuse_unwritable(spec: JobSpec, key: str) -> None:
    """What the log could not give back as it was, such as NaN, must not get in, whatever way it came: every later start would
    fail on it."""
    if len(key) > KEY_CHARS_MAX:
        raise SpecError("key", f"{len(key)} characters", f"write at most {KEY_CHARS_MAX}")
    try:
        same = wire.loads(JobSpec, wire.dumps(JobSpec, spec)) == spec
    except ValueError:
        same = False
    if not same:
        raise SpecError("job", spec.name, "use finite numbers and valid Unicode text only")
