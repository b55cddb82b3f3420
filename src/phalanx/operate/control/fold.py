"""The fold: each event puts records in place of older ones. Pure; a draft is a transaction in the making, in memory alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from phalanx.core.errors import Bug
from phalanx.core.events import (
    AttemptEnded,
    AttemptPlaced,
    AttemptRunning,
    Event,
    EventBody,
    JobSubmitted,
    JobWaits,
    ModelRegistered,
    NodeAway,
    NodeUp,
    RankSaid,
    StopRequested,
)
from phalanx.core.ids import AttemptId, JobId, NodeId, split_attempt
from phalanx.core.records import CheckpointCommitted, RankFact, Resumed
from phalanx.core.states import (
    Finished,
    GangEnded,
    GangUp,
    JobMove,
    Pending,
    Placed,
    StopAsked,
    advance,
)
from phalanx.operate.control.world import (
    ATTEMPTS_KEPT,
    CHECKPOINTS_KEPT,
    AttemptRecord,
    JobRecord,
    ModelRecord,
    NodeRecord,
    OutboxFor,
    World,
)


@dataclass(frozen=True, slots=True)
class Changes:
    """The records that events put in place, newest only: what the store writes next to the events."""

    jobs: Mapping[JobId, JobRecord] = field(default_factory=dict)
    attempts: Mapping[AttemptId, AttemptRecord] = field(default_factory=dict)
    nodes: Mapping[NodeId, NodeRecord] = field(default_factory=dict)
    models: tuple[ModelRecord, ...] = ()


def fold(world: World, event: Event) -> World:
    """The world after `event`. Raises IllegalTransition for an event that cannot follow."""
    return fold_all(world, (event,))


def fold_all(world: World, events: Iterable[Event]) -> World:
    """The world after all of `events`, copied once."""
    draft = Draft(world)
    for event in events:
        draft.apply(event)
    return draft.world


class Draft:
    """A transaction in the making: the world as it would be after the events added so far. The world it began from is
    untouched, so dropping a draft undoes it.

    events: added so far. outbox: what `outbox_for` made of each, given the world right after it.
    """

    def __init__(self, base: World, outbox_for: OutboxFor | None = None) -> None:
        self.events: list[Event] = []
        self.outbox: list[Mapping[str, Any]] = []
        self._outbox_for = outbox_for
        self._base = base
        self._tables: _Tables | None = None
        self._changed = _Tables()
        self._world = base

    @property
    def world(self) -> World:
        """With every event so far in it; changes with the next one."""
        return self._world

    @property
    def changes(self) -> Changes:
        """What the events so far put in place."""
        changed = self._changed
        models = tuple(model for versions in changed.models.values() for model in versions)
        return Changes(changed.jobs, changed.attempts, changed.nodes, models)

    def add(self, body: EventBody, at_ms: int) -> Event:
        """Makes the next event of the log and folds it in. Raises IllegalTransition when it cannot follow."""
        event = Event(self._world.seq + 1, at_ms, body)
        self.apply(event)
        if self._outbox_for is not None:
            self.outbox.extend(self._outbox_for(event, self._world))
        return event

    def apply(self, event: Event) -> None:
        """Folds an event in. Raises IllegalTransition when it cannot follow, Bug when it is not the next one."""
        if event.seq != self._world.seq + 1:
            raise Bug(f"event {event.seq} cannot follow event {self._world.seq}")
        records = effect(self._world, event)
        tables = self._tables = self._tables or _Tables.copy(self._base)
        for record in records:
            tables.put(record)
            self._changed.put(record)
        self.events.append(event)
        self._world = tables.world(event.seq)


class _Tables:
    """Dicts that a draft may change."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, JobRecord] = {}
        self.open_jobs: dict[JobId, JobRecord] = {}
        self.attempts: dict[AttemptId, AttemptRecord] = {}
        self.nodes: dict[NodeId, NodeRecord] = {}
        self.models: dict[str, tuple[ModelRecord, ...]] = {}
        self.sequence = 0

    @classmethod
    def copy(cls, world: World) -> "_Tables":
        tables = cls()
        tables.jobs, tables.open_jobs = dict(world.jobs), dict(world.open_jobs)
        tables.attempts, tables.nodes, tables.models = dict(world.attempts), dict(world.nodes), dict(world.models)
        tables.sequence = world.sequence
        return tables

    def put(self, record: "Record") -> None:
        match record:
            case JobRecord(id=job):
                self.jobs[job] = record
                self.sequence = max(self.sequence, record.sequence)
                if isinstance(record.state, Finished):
                    self.open_jobs.pop(job, None)
                else:
                    self.open_jobs[job] = record
            case AttemptRecord(id=attempt):
                self.attempts[attempt] = record
            case NodeRecord(shape=shape):
                self.nodes[shape.node] = record
            case ModelRecord(name=name):
                self.models[name] = (*self.models.get(name, ()), record)

    def world(self, seq: int) -> World:
        return World(self.jobs, self.open_jobs, self.attempts, self.nodes, self.models, seq, self.sequence)


Record = JobRecord | AttemptRecord | NodeRecord | ModelRecord


def world_of(records: Iterable[Record], seq: int, sequence: int) -> World:
    """The world that `records` make up; they come with jobs in order of submission, versions of a model in order."""
    tables = _Tables()
    tables.sequence = sequence
    for record in records:
        tables.put(record)
    return tables.world(seq)


def effect(world: World, event: Event) -> tuple[Record, ...]:
    """The records that `event` puts in place of older ones. Raises IllegalTransition when it cannot happen in `world`."""
    at_ms = event.at_ms
    match event.body:
        case NodeUp(shape, boot):
            return (NodeRecord(shape=shape, boot=boot, up=True, since_ms=at_ms),)
        case NodeAway(node):
            return (replace(world.nodes[node], up=False, since_ms=at_ms),)
        case RankSaid(_, attempt, fact):
            return (_said(world.attempts[attempt], fact),)
        case ModelRegistered() as body:
            return _registered(world, body, at_ms)
        case body:
            return _effect_on_job(world, body, at_ms)


def _effect_on_job(
    world: World,
    body: JobSubmitted | JobWaits | AttemptPlaced | AttemptRunning | StopRequested | AttemptEnded,
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
        case StopRequested(job, cause):
            return (replace(_moved(world.jobs[job], StopAsked(cause), at_ms), stop=cause),)
        case AttemptEnded():
            return _ended(world, body, at_ms)


def _moved(job: JobRecord, move: JobMove, at_ms: int) -> JobRecord:
    """The only place where a job's state changes."""
    state = advance(job.id, job.state, move)
    finished_ms = at_ms if isinstance(state, Finished) else job.finished_ms
    return replace(job, state=state, reason=None, finished_ms=finished_ms)


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
    )


def _placed(world: World, body: AttemptPlaced, at_ms: int) -> tuple[Record, ...]:
    job = _moved(world.jobs[body.job], Placed(body.placement), at_ms)
    started_ms = at_ms if job.started_ms is None else job.started_ms
    attempt = AttemptRecord(
        id=body.attempt,
        job=body.job,
        number=split_attempt(body.attempt)[1],
        placement=body.placement,
        master_port=body.master_port,
        epoch=body.epoch,
        placed_ms=at_ms,
    )
    return replace(job, attempts=(*job.attempts, body.attempt)[-ATTEMPTS_KEPT:], started_ms=started_ms), attempt


def _ended(world: World, body: AttemptEnded, at_ms: int) -> tuple[Record, ...]:
    job = _moved(world.jobs[body.job], GangEnded(body.ok, body.again, body.detail, body.not_before_ms), at_ms)
    quick_ends = job.quick_ends + 1 if body.not_before_ms else 0
    job = replace(job, quick_ends=quick_ends, interruptions=job.interruptions + body.interrupted)
    attempt, ended_ms = world.attempts[body.attempt], body.ended_ms or at_ms
    running_ms = attempt.running_ms if attempt.running_ms is None else min(attempt.running_ms, ended_ms)
    return job, replace(attempt, running_ms=running_ms, ended_ms=ended_ms, ok=body.ok, detail=body.detail, exits=body.exits)


def _said(attempt: AttemptRecord, fact: RankFact) -> AttemptRecord:
    """A fact said twice changes nothing but the count."""
    attempt = replace(attempt, facts=attempt.facts + 1)
    match fact:
        case Resumed() if attempt.resumed is None or fact.rank < attempt.resumed.rank:
            return replace(attempt, resumed=fact)
        case CheckpointCommitted() if all(known.digest != fact.digest for known in attempt.checkpoints):
            return replace(attempt, checkpoints=(*attempt.checkpoints, fact)[-CHECKPOINTS_KEPT:])
        case _:
            return attempt


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
