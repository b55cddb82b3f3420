"""The fold: each event puts records in place of older ones. Pure; a draft is a transaction in the making, in memory alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from phalanx.core.errors import Bug
from phalanx.core.events import Event, EventBody
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.policy import Policy
from phalanx.core.states import Finished
from phalanx.operate.control.effects import Record, effect
from phalanx.operate.control.occasions import occasions
from phalanx.operate.control.world import (
    AttemptRecord,
    JobRecord,
    ModelRecord,
    NodeRecord,
    OutboxFor,
    QueueUsage,
    World,
)


@dataclass(frozen=True, slots=True)
class Changes:
    """The records that events put in place, newest only: what the store writes next to the events."""

    jobs: Mapping[JobId, JobRecord] = field(default_factory=dict)
    attempts: Mapping[AttemptId, AttemptRecord] = field(default_factory=dict)
    nodes: Mapping[NodeId, NodeRecord] = field(default_factory=dict)
    models: tuple[ModelRecord, ...] = ()
    usage: Mapping[str, QueueUsage] = field(default_factory=dict)
    policy: Policy | None = None


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

    events: added so far. outbox: what `outbox_for` made of each, given the world right after it. notices: those to webhooks.
    """

    def __init__(self, base: World, outbox_for: OutboxFor | None = None) -> None:
        self.events: list[Event] = []
        self.outbox: list[Mapping[str, Any]] = []
        self.notices: list[Mapping[str, Any]] = []
        self._outbox_for = outbox_for
        self._base = base
        self._tables: _Tables | None = None
        self._changed = _Records()
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
        return Changes(changed.jobs, changed.attempts, changed.nodes, models, changed.usage, changed.policy)

    def add(self, body: EventBody, at_ms: int) -> Event:
        """Makes the next event of the log and folds it in. Raises IllegalTransition when it cannot follow."""
        event = Event(self._world.seq + 1, at_ms, body)
        self.apply(event)
        if self._outbox_for is not None:
            self.outbox.extend(self._outbox_for(event, self._world))
        self.notices.extend(occasions(event, self._world))
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


class _Records:
    """Dicts that a draft may change: the newest of each record."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, JobRecord] = {}
        self.attempts: dict[AttemptId, AttemptRecord] = {}
        self.nodes: dict[NodeId, NodeRecord] = {}
        self.models: dict[str, tuple[ModelRecord, ...]] = {}
        self.usage: dict[str, QueueUsage] = {}
        self.policy: Policy | None = None

    def put(self, record: Record) -> None:
        match record:
            case JobRecord(id=job):
                self.jobs[job] = record
            case AttemptRecord(id=attempt):
                self.attempts[attempt] = record
            case NodeRecord(shape=shape):
                self.nodes[shape.node] = record
            case ModelRecord(name=name):
                self.models[name] = (*self.models.get(name, ()), record)
            case QueueUsage(queue=queue):
                self.usage[queue] = record
            case Policy():
                self.policy = record


class _Tables(_Records):
    """With all that a world has."""

    def __init__(self) -> None:
        super().__init__()
        self.open_jobs: dict[JobId, JobRecord] = {}
        self.on_nodes: dict[NodeId, tuple[AttemptId, ...]] = {}
        self.counts: dict[str, dict[str, int]] = {}
        self.sequence = 0

    @classmethod
    def copy(cls, world: World) -> "_Tables":
        tables = cls()
        tables.jobs, tables.open_jobs = dict(world.jobs), dict(world.open_jobs)
        tables.attempts, tables.nodes, tables.models = dict(world.attempts), dict(world.nodes), dict(world.models)
        tables.on_nodes, tables.sequence = dict(world.on_nodes), world.sequence
        tables.usage, tables.policy = dict(world.usage), world.policy
        tables.counts = {team: dict(counts) for team, counts in world.counts.items()}
        return tables

    def put(self, record: Record) -> None:
        if isinstance(record, JobRecord):
            self._count(self.jobs.get(record.id), -1)
            self._count(record, 1)
        super().put(record)
        match record:
            case JobRecord(id=job, state=state, sequence=sequence):
                self.sequence = max(self.sequence, sequence)
                if isinstance(state, Finished):
                    self.open_jobs.pop(job, None)
                else:
                    self._open(record)
            case AttemptRecord(placement=placement):
                for part in placement.slices:
                    self._note_on(part.node, record)

    def _count(self, job: JobRecord | None, by: int) -> None:
        if job is None:
            return
        of_team, name = self.counts.setdefault(job.spec.team, {}), job.counted_as
        of_team[name] = of_team.get(name, 0) + by
        if not of_team[name]:
            del of_team[name]

    def _note_on(self, node: NodeId, attempt: AttemptRecord) -> None:
        there = self.on_nodes.get(node, ())
        holds = attempt.ended_ms is None and node not in attempt.released
        if holds and attempt.id not in there:
            self.on_nodes[node] = tuple(sorted((*there, attempt.id)))
        elif not holds and attempt.id in there:
            self.on_nodes[node] = tuple(name for name in there if name != attempt.id)
        if not self.on_nodes.get(node, ("",)):
            del self.on_nodes[node]

    def _open(self, job: JobRecord) -> None:
        """In order of submission, also where a job comes back that had finished."""
        last = next(reversed(self.open_jobs.values()), job)
        self.open_jobs[job.id] = job
        if job.sequence < last.sequence and next(reversed(self.open_jobs)) == job.id:
            self.open_jobs = dict(sorted(self.open_jobs.items(), key=lambda item: item[1].sequence))

    def world(self, seq: int) -> World:
        return World(
            jobs=self.jobs,
            open_jobs=self.open_jobs,
            attempts=self.attempts,
            nodes=self.nodes,
            models=self.models,
            on_nodes=self.on_nodes,
            counts=self.counts,
            seq=seq,
            sequence=self.sequence,
            usage=self.usage,
            policy=self.policy or Policy(),
        )


def world_of(records: Iterable[Record], seq: int, sequence: int) -> World:
    """The world that `records` make up; they come with jobs in order of submission, versions of a model in order."""
    tables = _Tables()
    tables.sequence = sequence
    for record in records:
        tables.put(record)
    return tables.world(seq)
