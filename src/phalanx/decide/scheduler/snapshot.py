"""What the scheduler is told: everything it may decide from, frozen. It has no other input."""

from dataclasses import dataclass

from phalanx.core.devices import DeviceRequest, Placement
from phalanx.core.ids import AttemptId, JobId, NodeId


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One known node: what it has (`devices` as (index, type), `cpus`, `memory_bytes`) and what of it is free now.

    schedulable: connected, and has reported since the control plane started. A node that is not is still counted when asking
    what could ever fit.
    """

    node: NodeId
    devices: tuple[tuple[int, str], ...]
    free: tuple[int, ...]
    cpus: float
    free_cpus: float
    memory_bytes: int
    free_memory_bytes: int
    schedulable: bool


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A gang that holds devices. `placed_ms` is Unix time."""

    job: JobId
    attempt: AttemptId
    placement: Placement
    queue: str
    priority: int
    placed_ms: int


@dataclass(frozen=True, slots=True)
class PutOff:
    """The next attempt may not start before `not_before_ms` (Unix time): the last `attempts` each ended within `within_ms`, the
    last one as `detail` says."""

    not_before_ms: int
    attempts: int
    within_ms: int
    detail: str


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A job that waits. `request`, `cpus` and `memory_bytes` are for each of `num_nodes` nodes; `sequence` orders equals."""

    job: JobId
    request: DeviceRequest
    num_nodes: int
    cpus: float
    memory_bytes: int
    queue: str
    priority: int
    submitted_ms: int
    sequence: int
    put_off: PutOff | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The fleet and the line at `now_ms` (Unix time). The order of the tuples means nothing."""

    now_ms: int
    nodes: tuple[NodeFacts, ...]
    running: tuple[RunningJob, ...]
    pending: tuple[PendingJob, ...]
