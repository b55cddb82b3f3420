"""What the API answers: shared by the server, the Python client and the command line."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phalanx.core.devices import Device
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.messages import RankExit
from phalanx.core.records import NAN_AS_TEXT, Metric, StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The newest step of the current attempt. `eta_ms` is None until a rate is known."""

    __pydantic_config__ = NAN_AS_TEXT

    step: int
    total_steps: int
    loss: float
    tokens_per_s: float
    mfu: float
    eta_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One rank of the current or last attempt."""

    rank: int
    node: NodeId
    device: int
    pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """One launch of a job. Times are Unix milliseconds; None where it has not come to that."""

    attempt: AttemptId
    placed_ms: int
    running_ms: int | None
    ended_ms: int | None
    detail: str
    exits: tuple[RankExit, ...]
    resumed_step: int | None
    ranks: tuple[RankView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """A committed checkpoint."""

    attempt: AttemptId
    step: int
    path: str
    digest: str
    size_bytes: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as `describe` shows it. `state` is one of pending, starting, running, stopping, finished."""

    id: JobId
    name: str
    project: str
    kind: str
    queue: str
    priority: int
    state: str
    outcome: str | None
    detail: str
    why: str | None
    restarts: int
    num_nodes: int
    devices: str
    submitted_by: str
    submitted_ms: int
    started_ms: int | None
    finished_ms: int | None
    code: str
    config: str
    spec: Mapping[str, Any]
    progress: Progress | None
    attempts: tuple[AttemptView, ...]
    checkpoints: tuple[CheckpointView, ...]
    model: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyView:
    """Why a job is where it is: one sentence, and for a waiting job the typed reason and its place in the line."""

    job: JobId
    state: str
    sentence: str
    reason: Mapping[str, Any] | None
    position: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node of the fleet. `state` is up or away."""

    node: NodeId
    state: str
    address: str
    devices: tuple[Device, ...]
    held: Mapping[int, AttemptId]
    cpus: float
    memory_bytes: int
    seen_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """The platform at a glance. `devices_are` says in words what a device is here: GPUs or CPU slots."""

    version: str
    home: str
    url: str
    epoch: int
    devices_are: str
    devices_total: int
    devices_held: int
    jobs: Mapping[str, int]
    nodes: tuple[NodeView, ...]
    outbox: int
    processes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPage:
    """Records of steps and metrics in arrival order. Ask again with `next` for what came later."""

    steps: tuple[StepRecord, ...]
    metrics: tuple[Metric, ...]
    attempts: tuple[AttemptId, ...]
    next: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """Part of one rank's log. `ended`: the attempt is over and nothing follows `next_offset`."""

    attempt: AttemptId
    rank: int
    offset: int
    next_offset: int
    text: str
    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """A model version with its lineage."""

    __pydantic_config__ = NAN_AS_TEXT

    name: str
    version: int
    job: JobId
    path: str
    weights_digest: str
    metrics: Mapping[str, float]
    lineage: Mapping[str, str]
    created_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerView:
    """Device time in [since_ms, until_ms) by category, in milli-devices x milliseconds; the categories sum to `capacity`.

    cost: in `currency`, by the catalogue's price of each device type; None where the catalogue has none.
    """

    job: JobId | None
    since_ms: int
    until_ms: int
    capacity: int
    categories: Mapping[str, int]
    balanced: bool
    devices_are: str
    cost: float | None
    currency: str = "USD"
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class EventView:
    """One event of the log, as data."""

    seq: int
    at_ms: int
    kind: str
    job: JobId | None
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest:
    """Body of POST /jobs. `key` makes a repeated submit return the first job instead of a second."""

    spec: Mapping[str, Any]
    code: str = ""
    key: str = ""
