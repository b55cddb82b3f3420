"""The current state, in memory: frozen records that `fold` makes of the event log, and that the store keeps in tables.

A `World` that was published is never changed: a transaction works on a `Draft` and the controller swaps worlds after the
commit, so any thread may read the one it holds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from phalanx.core.devices import NodeShape, NodeSlice, Placement
from phalanx.core.errors import Bug
from phalanx.core.events import Event
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.messages import RankExit, RankProcess
from phalanx.core.reasons import Reason
from phalanx.core.records import CheckpointCommitted, ModelSaved, Resumed
from phalanx.core.spec import JobSpec
from phalanx.core.states import Holding, JobState, StopCause

ATTEMPTS_KEPT: Final = 100
"""In a job's record: a service that fails for weeks must not make it, and every answer about it, grow for ever."""

CHECKPOINTS_KEPT: Final = 50
"""In an attempt's record, likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One launch of a job. Times are Unix milliseconds; `ok` is None until it ended; `ranks` and `exits` in rank order.

    ended_ms: when its last rank was gone, which may be long before the platform knew.

    checkpoints: the newest CHECKPOINTS_KEPT, older ones are in the log. facts: how many its ranks have said. lost: nodes whose
    part counts as gone though they did not say so, and why.
    """

    id: AttemptId
    job: JobId
    number: int
    placement: Placement
    master_port: int
    epoch: int
    placed_ms: int
    running_ms: int | None = None
    ended_ms: int | None = None
    ok: bool | None = None
    detail: str = ""
    ranks: tuple[RankProcess, ...] = ()
    exits: tuple[RankExit, ...] = ()
    resumed: Resumed | None = None
    checkpoints: tuple[CheckpointCommitted, ...] = ()
    facts: int = 0
    lost: Mapping[NodeId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One job. `model` is 'name:version' of what it registered last; `reason` the last committed reason to wait; `stop` why it
    was asked to end, if it was.

    attempts: the newest ATTEMPTS_KEPT, older ones are in the log. quick_ends: attempts in a row, the newest among them, that
    ended too soon for the next one to follow at once. interruptions: attempts that use up no restart: those that were stopped with
    the platform, lost with their node, paused, moved off a drained node, or made before the job was retried. collected_ms: since
    when what it left is garbage.
    """

    id: JobId
    sequence: int
    spec: JobSpec
    code: str
    config: str
    by: str
    submitted_ms: int
    state: JobState
    reason: Reason | None = None
    stop: StopCause | None = None
    attempts: tuple[AttemptId, ...] = ()
    quick_ends: int = 0
    interruptions: int = 0
    started_ms: int | None = None
    finished_ms: int | None = None
    model: str | None = None
    collected_ms: int | None = None

    @property
    def attempt(self) -> AttemptId | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """One known node. `since_ms`: when it last came up or went away. `drained`: why nothing new is placed on it; '' when it is."""

    shape: NodeShape
    boot: str
    up: bool
    since_ms: int
    drained: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """One registered version of a model."""

    name: str
    version: int
    job: JobId
    attempt: AttemptId
    saved: ModelSaved
    lineage: Mapping[str, str]
    created_ms: int


@dataclass(frozen=True, slots=True)
class World:
    """Everything that is true now. `open_jobs` are those not finished; `models` keep their versions in order.

    on_nodes: names of the attempts that have not ended and have a part on each node, sorted. seq: of the last event folded in.
    sequence: number of the last job.
    """

    jobs: Mapping[JobId, JobRecord] = field(default_factory=dict)
    open_jobs: Mapping[JobId, JobRecord] = field(default_factory=dict)
    attempts: Mapping[AttemptId, AttemptRecord] = field(default_factory=dict)
    nodes: Mapping[NodeId, NodeRecord] = field(default_factory=dict)
    models: Mapping[str, tuple[ModelRecord, ...]] = field(default_factory=dict)
    on_nodes: Mapping[NodeId, tuple[AttemptId, ...]] = field(default_factory=dict)
    seq: int = 0
    sequence: int = 0

    def holding(self) -> Iterator[tuple[JobRecord, AttemptRecord]]:
        """Jobs that hold devices, with the attempt that does, in order of submission."""
        for job in self.open_jobs.values():
            if isinstance(job.state, Holding) and job.attempt is not None:
                yield job, self.attempts[job.attempt]

    def held(self) -> dict[NodeId, dict[int, AttemptId]]:
        """Which attempt holds which device of which node. A device held twice is a Bug."""
        held: dict[NodeId, dict[int, AttemptId]] = {}
        for _, attempt in self.holding():
            for part in attempt.placement.slices:
                of_node = held.setdefault(part.node, {})
                for index in part.devices:
                    if index in of_node:
                        raise Bug(f"device {index} of {part.node} is held by {of_node[index]} and {attempt.id}")
                    of_node[index] = attempt.id
        return held

    def current(self, attempt: AttemptId, node: NodeId) -> tuple[JobRecord, AttemptRecord] | None:
        """The job and attempt, when the attempt holds devices of `node` now; else None."""
        record = self.attempts.get(attempt)
        job = self.open_jobs.get(record.job) if record else None
        if record is None or job is None or job.attempt != attempt or not isinstance(job.state, Holding):
            return None
        return (job, record) if slice_of(record.placement, node) else None


def slice_of(placement: Placement, node: NodeId) -> tuple[int, int, NodeSlice] | None:
    """(node rank, first rank, slice) of `node` in the gang, or None when it has no part in it."""
    first_rank = 0
    for node_rank, part in enumerate(placement.slices):
        if part.node == node:
            return node_rank, first_rank, part
        first_rank += len(part.devices)
    return None


OutboxFor = Callable[[Event, World], Sequence[Mapping[str, Any]]]
"""Entries for the outbox, committed with the event; the world already has the event in it."""

Lineage = Callable[[JobRecord, AttemptRecord, ModelSaved], Mapping[str, str]]
"""What goes into a model version's lineage."""
