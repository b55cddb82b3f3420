"""The log: what happened, in order, for ever. Current tables are a fold of it, written in the same transaction."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from phalanx.core.chaos import PlannedFault
from phalanx.core.devices import NodeShape, Placement
from phalanx.core.health import Straggler
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.messages import RankExit, RankProcess
from phalanx.core.policy import Policy
from phalanx.core.reasons import Reason
from phalanx.core.records import ModelSaved, RankFact
from phalanx.core.spec import JobSpec
from phalanx.core.states import StopCause
from phalanx.core.trace_request import TraceRequest


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job was accepted. `code` is the SHA-256 of its packed workdir, or ''; `config` that of its spec. array: id of the first job
    of the array it is of, and its number there."""

    job: JobId
    spec: JobSpec
    code: str
    config: str
    by: str
    array: str = ""
    array_index: int = 0
    kind: Literal["job_submitted"] = field(default="job_submitted", kw_only=True)


@dataclass(frozen=True, slots=True)
class JobWaits:
    """The job's dominant reason to wait changed in kind."""

    job: JobId
    reason: Reason
    kind: Literal["job_waits"] = field(default="job_waits", kw_only=True)


@dataclass(frozen=True, slots=True)
class AttemptPlaced:
    """Devices were chosen; the gang holds them from now until AttemptEnded. gang_port: of the first node, where shims of the others
    meet the coordinator of a gang that recovers inside; 0 where there is none to meet."""

    job: JobId
    attempt: AttemptId
    placement: Placement
    master_port: int
    epoch: int
    gang_port: int = 0
    kind: Literal["attempt_placed"] = field(default="attempt_placed", kw_only=True)


@dataclass(frozen=True, slots=True)
class AttemptRunning:
    """Every rank has a process. `ranks` in rank order."""

    job: JobId
    attempt: AttemptId
    ranks: tuple[RankProcess, ...]
    kind: Literal["attempt_running"] = field(default="attempt_running", kw_only=True)


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The job shall end. why: of an idle one, the signals and their ages."""

    job: JobId
    cause: StopCause
    by: str
    why: str = ""
    kind: Literal["stop_requested"] = field(default="stop_requested", kw_only=True)


@dataclass(frozen=True, slots=True)
class DevicesClaimed:
    """The job waits for exactly these devices, some of which running gangs are asked to let go of for it; nobody else gets them. A
    `placement` of None gives the claim up, and so does the start, pause or end of the job. What a gang has already it borrows no
    more."""

    job: JobId
    placement: Placement | None
    kind: Literal["devices_claimed"] = field(default="devices_claimed", kw_only=True)


@dataclass(frozen=True, slots=True)
class JobEvicted:
    """The gang is asked to end for `claimant`, which may be itself in another size or place. cause: why, in one word of the plan.
    lost_ms: device-milliseconds that this costs it."""

    job: JobId
    attempt: AttemptId
    claimant: JobId
    cause: str
    lost_ms: int
    kind: Literal["job_evicted"] = field(default="job_evicted", kw_only=True)


@dataclass(frozen=True, slots=True)
class PolicySet:
    """How the fleet is shared from now on."""

    policy: Policy
    by: str
    kind: Literal["policy_set"] = field(default="policy_set", kw_only=True)


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """Every rank is gone, exits are durable, logs drained; the devices are free. `again`: another attempt will follow, and not
    before `not_before_ms` (Unix time) where that is not 0: attempts that end soon after their start follow later and later.

    interrupted: it was stopped with the platform, which counts against no limit. ended_ms: Unix time at which its last rank was
    gone where that was before this event, as when nobody was there to hear of it; 0 is the event's own time. fruitless: a gang that
    recovers inside fell apart, though no node was lost or took its part along, and had not come further than an attempt before it.
    """

    job: JobId
    attempt: AttemptId
    ok: bool
    again: bool
    detail: str
    exits: tuple[RankExit, ...]
    not_before_ms: int = 0
    interrupted: bool = False
    ended_ms: int = 0
    fruitless: bool = False
    kind: Literal["attempt_ended"] = field(default="attempt_ended", kw_only=True)


@dataclass(frozen=True, slots=True)
class PartLost:
    """The node's lease and kill grace are over while other nodes reach the control plane: its part of the gang counts as gone.
    Ranks that live on there, if any, keep the node's devices, and their commits are refused."""

    job: JobId
    attempt: AttemptId
    node: NodeId
    why: str
    kind: Literal["part_lost"] = field(default="part_lost", kw_only=True)


@dataclass(frozen=True, slots=True)
class PartReleased:
    """A gang that recovers inside goes on without that node, whose part is lost or has ended: it holds the node's devices no more.
    Ranks that live on there are fenced as those of any lost part."""

    job: JobId
    attempt: AttemptId
    node: NodeId
    kind: Literal["part_released"] = field(default="part_released", kw_only=True)


@dataclass(frozen=True, slots=True)
class JobResumed:
    """A paused job waits for devices again."""

    job: JobId
    by: str
    kind: Literal["job_resumed"] = field(default="job_resumed", kw_only=True)


@dataclass(frozen=True, slots=True)
class JobRetried:
    """A job that had failed or was cancelled waits for devices again, with all its restarts before it."""

    job: JobId
    by: str
    kind: Literal["job_retried"] = field(default="job_retried", kw_only=True)


@dataclass(frozen=True, slots=True)
class JobCollected:
    """What a finished job left is garbage from now on: its packed workdir, work folders, logs, records and series, and those of
    its checkpoints that no model version needs. Its rows and events stay."""

    job: JobId
    by: str
    kind: Literal["job_collected"] = field(default="job_collected", kw_only=True)


@dataclass(frozen=True, slots=True)
class RankSaid:
    """A fact from inside an attempt."""

    job: JobId
    attempt: AttemptId
    fact: Annotated[RankFact, Field(discriminator="kind")]
    kind: Literal["rank_said"] = field(default="rank_said", kw_only=True)


@dataclass(frozen=True, slots=True)
class StragglerFound:
    """A rank is slower than its peers; the evidence is in it."""

    job: JobId
    attempt: AttemptId
    straggler: Straggler
    kind: Literal["straggler_found"] = field(default="straggler_found", kw_only=True)


@dataclass(frozen=True, slots=True)
class FaultPlanned:
    """Somebody asked for a fault in the attempt; its ranks say when they met it."""

    job: JobId
    attempt: AttemptId
    fault: PlannedFault
    by: str
    kind: Literal["fault_planned"] = field(default="fault_planned", kw_only=True)


@dataclass(frozen=True, slots=True)
class TracesRequested:
    """Somebody asked the attempt for traces of steps to come; a rank that leaves none says why."""

    job: JobId
    attempt: AttemptId
    request: TraceRequest
    by: str
    kind: Literal["traces_requested"] = field(default="traces_requested", kw_only=True)


@dataclass(frozen=True, slots=True)
class IdleWarned:
    """Nothing has been done in it for long: it is stopped in `left_ms` unless something is. why: the signals and their ages."""

    job: JobId
    attempt: AttemptId
    left_ms: int
    why: str
    kind: Literal["idle_warned"] = field(default="idle_warned", kw_only=True)


@dataclass(frozen=True, slots=True)
class IdleOver:
    """Something was done in it after the warning, or its signals are not known any more: it goes on."""

    job: JobId
    attempt: AttemptId
    because: str
    kind: Literal["idle_over"] = field(default="idle_over", kw_only=True)


@dataclass(frozen=True, slots=True)
class NodeUp:
    """A node's agent connected, for the first time or again; `shape` is what it has."""

    shape: NodeShape
    boot: str
    kind: Literal["node_up"] = field(default="node_up", kw_only=True)


@dataclass(frozen=True, slots=True)
class NodeAway:
    """A node's lease ran out without renewal. Its devices stay held; nothing new is placed on it."""

    node: NodeId
    kind: Literal["node_away"] = field(default="node_away", kw_only=True)


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """Nothing new is placed on the node until it is undrained; `reason` is for people."""

    node: NodeId
    reason: str
    by: str
    kind: Literal["node_drained"] = field(default="node_drained", kw_only=True)


@dataclass(frozen=True, slots=True)
class NodeUndrained:
    """The node may be given work again."""

    node: NodeId
    by: str
    kind: Literal["node_undrained"] = field(default="node_undrained", kw_only=True)


@dataclass(frozen=True, slots=True)
class ModelRegistered:
    """A model version exists. `lineage` as shown by `phalanx model show`."""

    name: str
    version: int
    job: JobId
    attempt: AttemptId
    saved: ModelSaved
    lineage: dict[str, str]
    kind: Literal["model_registered"] = field(default="model_registered", kw_only=True)


EventBody = Annotated[
    JobSubmitted
    | JobWaits
    | AttemptPlaced
    | AttemptRunning
    | StopRequested
    | DevicesClaimed
    | JobEvicted
    | PolicySet
    | AttemptEnded
    | PartLost
    | PartReleased
    | JobResumed
    | JobRetried
    | JobCollected
    | RankSaid
    | StragglerFound
    | FaultPlanned
    | TracesRequested
    | IdleWarned
    | IdleOver
    | NodeUp
    | NodeAway
    | NodeDrained
    | NodeUndrained
    | ModelRegistered,
    Field(discriminator="kind"),
]


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the log: `seq` grows by one, `at_ms` is the control plane's Unix time."""

    seq: int
    at_ms: int
    body: EventBody
