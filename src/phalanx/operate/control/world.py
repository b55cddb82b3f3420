"""The current state, in memory: frozen records that `fold` makes of the event log, and that the store keeps in tables.

A `World` that was published is never changed: a transaction works on a `Draft` and the controller swaps worlds after the
commit, so any thread may read the one it holds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from phalanx.core.chaos import FaultMet, PlannedFault
from phalanx.core.devices import WHOLE, NodeShape, NodeSlice, Placement
from phalanx.core.errors import Bug
from phalanx.core.events import Event
from phalanx.core.health import Finding
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.messages import RankExit, RankProcess
from phalanx.core.policy import EVICTIONS_MAX, Policy
from phalanx.core.reasons import Reason
from phalanx.core.records import CheckpointCommitted, ModelSaved, Recovered, Resumed
from phalanx.core.spec import JobSpec
from phalanx.core.states import Finished, Holding, JobState, StopCause
from phalanx.core.trace_request import TraceMissed, TraceRequest

ATTEMPTS_KEPT: Final = 100
"""In a job's record: a service that fails for weeks must not make it, and every answer about it, grow for ever."""

CHECKPOINTS_KEPT: Final = 50
"""In an attempt's record, likewise."""

RECOVERIES_KEPT: Final = 50
"""In an attempt's record, likewise."""

FINDINGS_KEPT: Final = 20
"""In an attempt's record, likewise."""

TRACES_KEPT: Final = 20
"""In an attempt's record, likewise."""

NOTHING_SAVED: Final = -1
"""As a step."""

EVICTIONS_KEPT: Final = EVICTIONS_MAX
"""In a job's record, likewise: as many in a day as a policy may allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRecord:
    """A fault that `by` asked for at `at_ms`; met: what its ranks said of it."""

    plan: PlannedFault
    by: str
    at_ms: int
    met: tuple[FaultMet, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRecord:
    """A request for traces that `by` made at `at_ms`; missed: what ranks said that leave none."""

    request: TraceRequest
    by: str
    at_ms: int
    missed: tuple[TraceMissed, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One launch of a job. Times are Unix milliseconds; `ok` is None until it ended; `ranks` and `exits` in rank order.

    ended_ms: when its last rank was gone, which may be long before the platform knew.

    checkpoints: the newest CHECKPOINTS_KEPT, older ones are in the log; recoveries: those inside the gang, likewise, by generation.
    facts: how many its ranks have said, but for those of missed traces. lost: nodes whose part counts as gone though they did not
    say so, and why. evicted_for: the job that it was ended for, which may be its own. evicted_why: in one word of the plan.
    findings: what was found wrong with it while it ran, the newest FINDINGS_KEPT, and beside them as many of its data. faults:
    that somebody asked for, numbered from 1. traces: the newest TRACES_KEPT requests for some.
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
    recoveries: tuple[Recovered, ...] = ()
    checkpoints: tuple[CheckpointCommitted, ...] = ()
    facts: int = 0
    lost: Mapping[NodeId, str] = field(default_factory=dict)
    evicted_for: JobId | None = None
    evicted_why: str = ""
    findings: tuple[Finding, ...] = ()
    faults: tuple[FaultRecord, ...] = ()
    traces: tuple[TraceRecord, ...] = ()
    gang_port: int = 0
    released: tuple[NodeId, ...] = ()

    @property
    def held(self) -> Placement:
        """What of its placement it still holds."""
        if not self.released:
            return self.placement
        return replace(self.placement, slices=tuple(part for part in self.placement.slices if part.node not in self.released))

    @property
    def is_given_up(self) -> bool:
        """Whether a node was lost without which it cannot go on; one of a gang that recovers inside may be done without."""
        return bool(self.lost) and not (self.gang_port and self.placement.slices[0].node not in self.lost)

    @property
    def missed(self) -> frozenset[NodeId]:
        """Lost nodes, but for those without which it went on."""
        return frozenset(self.lost) - frozenset(self.released)

    @property
    def saved_step(self) -> int:
        """Of its furthest checkpoint; NOTHING_SAVED without one."""
        return max((one.step for one in self.checkpoints), default=NOTHING_SAVED)

    @property
    def first_rank(self) -> int:
        """The lowest one that has a part in the newest generation, which speaks for the gang."""
        return next((rank for rank in range(self.placement.world_size) if rank not in self.absent), 0)

    @property
    def absent(self) -> tuple[int, ...]:
        """Ranks that have no part in the newest generation."""
        return self.recoveries[-1].absent if self.recoveries else ()

    @property
    def ports(self) -> frozenset[int]:
        """That it has on its first node."""
        return frozenset({self.master_port, self.gang_port} - {0})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One job. `model` is 'name:version' of what it registered last; `reason` the last committed reason to wait; `stop` why it
    was asked to end, if it was.

    attempts: the newest ATTEMPTS_KEPT, older ones are in the log. quick_ends: attempts in a row, the newest among them, that
    ended too soon for the next one to follow at once. interruptions: attempts that use up no restart: those that were stopped with
    the platform, lost with their node, paused, moved off a drained node, ended for others, or made before the job was retried.
    collected_ms: since when what it left is garbage. claim: devices that gangs are ended for to make room for it; of a gang that
    is ended to start again in another size, what it starts again on.
    since_ms: when it last began to wait; what it borrowed since did not end that. repair: its last attempt lost a node.
    evicted_ms: the newest EVICTIONS_KEPT times at which it was ended for others. served_ms: device-milliseconds of its attempts
    that have ended. array: id of the first job of the array it is of, and its number there. saved_step: the furthest of which an
    attempt that has ended committed a checkpoint. fruitless: interruptions since then for which no node can be blamed.
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
    claim: Placement | None = None
    since_ms: int = 0
    repair: bool = False
    evicted_ms: tuple[int, ...] = ()
    served_ms: int = 0
    array: str = ""
    array_index: int = 0
    saved_step: int = NOTHING_SAVED
    fruitless: int = 0

    @property
    def counted_as(self) -> str:
        """Its state, or its outcome once it has finished."""
        return self.state.outcome if isinstance(self.state, Finished) else self.state.name

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Of one of a queue's periods, since its beginning at `since_ms` (Unix time): device-milliseconds, and their price in US
    dollars."""

    since_ms: int
    device_ms: int = 0
    money: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueUsage:
    """What attempts of a queue's own jobs used that have ended. decayed: device-milliseconds as of `at_ms`, by the half-life of the
    policy of the time. spent: by kind of period, the newest of each. node_ms: for which they held nodes, failures: of nodes and
    processes in that time."""

    queue: str
    at_ms: int
    decayed: float = 0.0
    spent: Mapping[str, Spent] = field(default_factory=dict)
    node_ms: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """What `attempts` have of one device: thousandths of it, and bytes of its memory that shares of it hold."""

    milli: int
    memory_bytes: int
    attempts: tuple[AttemptId, ...]


@dataclass(frozen=True, slots=True)
class World:
    """Everything that is true now. `open_jobs` are those not finished; `models` keep their versions in order.

    on_nodes: names of the attempts that have not ended and have a part on each node, sorted. counts: of each team the jobs by
    state, finished ones by outcome; none is 0. seq: of the last event folded in.
    sequence: number of the last job. usage: by queue. policy: how the fleet is shared.
    """

    jobs: Mapping[JobId, JobRecord] = field(default_factory=dict)
    open_jobs: Mapping[JobId, JobRecord] = field(default_factory=dict)
    attempts: Mapping[AttemptId, AttemptRecord] = field(default_factory=dict)
    nodes: Mapping[NodeId, NodeRecord] = field(default_factory=dict)
    models: Mapping[str, tuple[ModelRecord, ...]] = field(default_factory=dict)
    on_nodes: Mapping[NodeId, tuple[AttemptId, ...]] = field(default_factory=dict)
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    seq: int = 0
    sequence: int = 0
    usage: Mapping[str, QueueUsage] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)

    def holding(self) -> Iterator[tuple[JobRecord, AttemptRecord]]:
        """Jobs that hold devices, with the attempt that does, in order of submission."""
        for job in self.open_jobs.values():
            if isinstance(job.state, Holding) and job.attempt is not None:
                yield job, self.attempts[job.attempt]

    def held(self) -> dict[NodeId, dict[int, AttemptId]]:
        """Which attempt holds which device of which node; the first of those that share it. A device held twice is a Bug."""
        return {node: {index: held.attempts[0] for index, held in of_node.items()} for node, of_node in self.holds().items()}

    def holds(self) -> dict[NodeId, dict[int, Held]]:
        """Who has how much of which device of which node. More of one than there is, is a Bug."""
        held: dict[NodeId, dict[int, Held]] = {}
        for _, attempt in self.holding():
            for part in attempt.held.slices:
                of_node, node = held.setdefault(part.node, {}), self.nodes.get(part.node)
                for index in part.devices:
                    of_node[index] = add_hold(of_node.get(index), attempt.id, node.shape if node else None, index, part)
        return held

    def current(self, attempt: AttemptId, node: NodeId) -> tuple[JobRecord, AttemptRecord] | None:
        """The job and attempt, when the attempt holds devices of `node` now; else None."""
        record = self.attempts.get(attempt)
        job = self.open_jobs.get(record.job) if record else None
        if record is None or job is None or job.attempt != attempt or not isinstance(job.state, Holding):
            return None
        return (job, record) if slice_of(record.held, node) else None


def add_hold(before: Held | None, attempt: AttemptId, shape: NodeShape | None, index: int, part: NodeSlice) -> Held:
    """With what the attempt has of the device as well. More than there is, is a Bug."""
    milli, memory_bytes, attempts = (before.milli, before.memory_bytes, before.attempts) if before else (0, 0, ())
    attempts = (*attempts, attempt)
    if milli + part.milli > WHOLE:
        raise Bug(f"device {index} of {part.node} is held by {' and '.join(attempts)}")
    return Held(milli + part.milli, memory_bytes + part_bytes(shape, index, part), attempts)


def part_bytes(shape: NodeShape | None, index: int, part: NodeSlice) -> int:
    """Bytes of one device's memory that a slice of a gang holds: what it asked for, or else its part of the device."""
    if part.memory_bytes or shape is None or part.milli >= WHOLE:
        return part.memory_bytes
    memory_bytes = next((device.memory_bytes for device in shape.devices if device.index == index), 0)
    return memory_bytes * part.milli // WHOLE


def slice_of(placement: Placement, node: NodeId) -> tuple[int, int, NodeSlice] | None:
    """(node rank, first rank, slice) of `node` in the gang, or None when it has no part in it."""
    first_rank = 0
    for node_rank, part in enumerate(placement.slices):
        if part.node == node:
            return node_rank, first_rank, part
        first_rank += len(part.devices)
    return None


class Parts:
    """Which part of which attempt lies on which node, of attempts that are asked about again and again."""

    def __init__(self, world: World) -> None:
        self._attempts = world.attempts
        self._known: dict[AttemptId, dict[NodeId, NodeSlice]] = {}

    def of(self, attempt: AttemptId, node: NodeId) -> NodeSlice:
        """The attempt must have one there."""
        if attempt not in self._known:
            self._known[attempt] = {part.node: part for part in self._attempts[attempt].placement.slices}
        return self._known[attempt][node]


OutboxFor = Callable[[Event, World], Sequence[Mapping[str, Any]]]
"""Entries for the outbox, committed with the event; the world already has the event in it."""

Lineage = Callable[[JobRecord, AttemptRecord, ModelSaved], Mapping[str, str]]
"""What goes into a model version's lineage."""
