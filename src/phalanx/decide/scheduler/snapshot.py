"""What the scheduler is told: everything it may decide from, frozen. It has no other input."""

from dataclasses import dataclass

from phalanx.core.devices import DeviceRequest, Placement
from phalanx.core.ids import AttemptId, JobId, NodeId


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One known node: what it has (`devices` as (index, type), `cpus`, `memory_bytes`) and what of it is free now.

    schedulable: connected, has reported since the control plane started, and not drained. A node that is not is still counted
    when asking what could ever fit. drained: it is connected, and was drained. features: what its agent can do, see
    `core.features`. fenced: devices that no gang holds and on which ranks of an attempt that was given up still live; `free` has
    none of them.
    """

    node: NodeId
    devices: tuple[tuple[int, str], ...]
    free: tuple[int, ...]
    cpus: float
    free_cpus: float
    memory_bytes: int
    free_memory_bytes: int
    schedulable: bool
    features: frozenset[str] = frozenset()
    drained: bool = False
    fenced: tuple[int, ...] = ()


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
    """A job that waits. `request`, `cpus` and `memory_bytes` are for each of `num_nodes` nodes; `sequence` orders equals. `needs`:
    features that each of its nodes must have. `avoids`: nodes where ranks of an attempt of it that was given up still live, which
    would write into the same folder."""

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
    needs: frozenset[str] = frozenset()
    avoids: frozenset[NodeId] = frozenset()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The fleet and the line at `now_ms` (Unix time). The order of the tuples means nothing."""

    now_ms: int
    nodes: tuple[NodeFacts, ...]
    running: tuple[RunningJob, ...]
    pending: tuple[PendingJob, ...]
