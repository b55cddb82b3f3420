"""The agent's protocol: what agent and control plane say over the WebSocket, one JSON message a frame.

Commands are idempotent by (attempt, epoch): they may be sent again after any crash. `epoch` is the control plane's leadership
number; an agent refuses a command whose epoch is below the highest it has seen. Logs and records travel as byte ranges of
append-only files, so sending a range twice is harmless.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from pydantic import Field

from phalanx.core.activity import Signal
from phalanx.core.channels import ChannelAsked
from phalanx.core.chaos import PlannedFault
from phalanx.core.devices import NodeShape
from phalanx.core.ids import AttemptId
from phalanx.core.spec import BestMode, OnPartition, Session
from phalanx.core.trace_request import UNASKABLE, TraceRequest

PROTOCOL: Final = 1
CHUNK_BYTES_MAX: Final = 256 * 1024
Stream = Literal["log", "records"]
Phase = Literal["starting", "running", "stopping", "ended"]


@dataclass(frozen=True, slots=True)
class RankExit:
    """How one rank ended: `code` as from waitpid, negative for a signal. `at_ms` is Unix time; `first` fell first.

    said: its error in one line, as the control plane found it at the end of its log; '' of ranks that were ended, or said nothing.
    """

    rank: int
    code: int
    at_ms: int
    first: bool = False
    said: str = ""


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One live rank."""

    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """One attempt on this node, reported until forgotten. `ended` is said only after its exit records are durable and every
    byte of its logs and records was acknowledged. `lost` says that the node has no exit record and cannot get one.

    interrupted: nothing was wrong with it, its ranks were stopped with the platform. ended_ms: Unix time at which its last rank
    was gone, which may be long before it is reported; 0 where that is not known, or not so yet. devices: of this node, on which
    its ranks live or lived. refused: why its ranks were never started, where the next attempt would meet the same: somebody has
    to change something first. faults: number of the last planned fault that is on this node's disk; traces: likewise of the newest
    request for traces, UNASKABLE where its ranks cannot hear of any. without: said by the first node
    of a gang that recovers inside: nodes, by their rank in the gang, without which it goes on. awaits: likewise, those whose shims
    have not reached its coordinator yet.
    """

    attempt: AttemptId
    epoch: int
    phase: Phase
    ranks: tuple[RankProcess, ...]
    exits: tuple[RankExit, ...]
    at_ms: int
    lost: str = ""
    interrupted: bool = False
    ended_ms: int = 0
    devices: tuple[int, ...] = ()
    refused: str = ""
    faults: int = 0
    without: tuple[int, ...] = ()
    awaits: tuple[int, ...] = ()
    traces: int = UNASKABLE


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of a connection. `boot` changes when the machine reboots; `attempts` is everything held on disk."""

    shape: NodeShape
    boot: str
    protocol: int
    version: str
    epoch_seen: int
    attempts: tuple[AttemptReport, ...]
    kind: Literal["hello"] = field(default="hello", kw_only=True)


@dataclass(frozen=True, slots=True)
class Report:
    """An attempt changed."""

    report: AttemptReport
    kind: Literal["report"] = field(default="report", kw_only=True)


@dataclass(frozen=True, slots=True)
class Renew:
    """Asks for the node's lease again; counted from the sending of this message."""

    number: int
    kind: Literal["renew"] = field(default="renew", kw_only=True)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes [offset, offset + len) of a rank's log or record file; `data` is base64, at most CHUNK_BYTES_MAX before it."""

    stream: Stream
    attempt: AttemptId
    rank: int
    offset: int
    data: str
    kind: Literal["chunk"] = field(default="chunk", kw_only=True)


@dataclass(frozen=True, slots=True)
class ArtifactSaved:
    """A file that ranks put into PHALANX_ARTIFACTS is whole in the control plane's blobs. Sent to a control plane whose Welcome
    knows the feature, again until acknowledged. `name` is relative to that folder, with '/'."""

    attempt: AttemptId
    name: str
    sha256: str
    size_bytes: int
    at_ms: int
    kind: Literal["artifact"] = field(default="artifact", kw_only=True)


@dataclass(frozen=True, slots=True)
class Activity:
    """Signs of work in a job that people work in, now and then. Sent to a control plane whose Welcome knows the feature."""

    attempt: AttemptId
    signals: tuple[Signal, ...]
    kind: Literal["activity"] = field(default="activity", kw_only=True)


FromAgent = Annotated[Hello | Report | Renew | Chunk | ArtifactSaved | Activity, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answer to Hello. `acked` maps 'stream/attempt/rank' to the bytes the control plane already has. `features`: what it
    understands beyond the first protocol, see `core.features`. The lease counts from the sending of the Hello."""

    epoch: int
    lease_ms: int
    acked: Mapping[str, int]
    features: tuple[str, ...] = ()
    kind: Literal["welcome"] = field(default="welcome", kw_only=True)


@dataclass(frozen=True, slots=True)
class Granted:
    """The lease is renewed, counted from the sending of that Renew."""

    number: int
    lease_ms: int
    kind: Literal["granted"] = field(default="granted", kw_only=True)


@dataclass(frozen=True, slots=True)
class GangRecovery:
    """The gang recovers inside. spares: processes to hold ready on each node. hang_ms: how long a rank may make no progress. sizes:
    how many ranks it may have while some have no process.

    Of several nodes: ranks: how many each has, in node rank order. port: of the first node, at which shims of the others meet the
    gang's coordinator. token: that they show there; of the attempt, and told to no rank.
    """

    spares: int
    hang_ms: int
    ranks: tuple[int, ...] = ()
    port: int = 0
    token: str = field(default="", repr=False)
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """This node's part of a gang: ranks [first_rank, first_rank + len(devices)) of `world_size`.

    argv: of every rank, its first word resolved on the node; '' as first word means the environment's Python.
    code: SHA-256 of the packed workdir in the control plane's blobs, or ''. folder: the job's durable folder on this node.
    lock: file of the workdir from which the environment is built, or ''. image: container image of the ranks, or ''.
    checkpoint_mtbf_s: mean seconds between failures of this gang, where the job saves as often as pays; else 0.
    secrets: names of secrets to fetch for the ranks' environment; secret_files: likewise, for files in memory.
    on_partition: as in the job's spec.
    recovery: None where a rank's death ends the others. chaos: faults may be planned for it.
    checkpoints: the job's place for them, a folder or a URL; '' is `checkpoints` in `folder`. memory_bytes: of the host, that it
    asks for on each node; 0 for none in particular. store: where the policy has jobs save, whether this one does or not;
    '' where it says nothing. user_seed: what the job's user is chosen by on nodes that keep jobs apart, the same for all nodes of
    an attempt and told to no job; '' of an older control plane.
    session: what somebody works in: a shell on a terminal, or a notebook server. One process has all devices then, and counts as
    each rank.
    """

    attempt: AttemptId
    argv: tuple[str, ...]
    python: str
    env: Mapping[str, str]
    code: str
    folder: str
    first_rank: int
    world_size: int
    node_rank: int
    num_nodes: int
    devices: tuple[int, ...]
    cpus: float
    master_address: str
    master_port: int
    hyperparameters: Mapping[str, str | int | float | bool]
    checkpoint_every: int
    checkpoint_keep_last: int
    restarts: int
    lock: str = ""
    image: str = ""
    secrets: tuple[str, ...] = ()
    on_partition: OnPartition = "keep"
    checkpoint_keep_best: int = 0
    checkpoint_best_metric: str = ""
    checkpoint_best_mode: BestMode = "min"
    checkpoint_keep_every: int = 0
    recovery: GangRecovery | None = None
    checkpoint_mtbf_s: float = 0.0
    chaos: bool = False
    checkpoints: str = ""
    memory_bytes: int = 0
    secret_files: tuple[str, ...] = ()
    session: Session = ""
    store: str = ""
    user_seed: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class StartRanks:
    """Start this node's ranks, unless the attempt is already held."""

    launch: Launch
    epoch: int
    kind: Literal["start"] = field(default="start", kw_only=True)


@dataclass(frozen=True, slots=True)
class StopRanks:
    """SIGTERM, then SIGKILL after `grace_ms`. An unknown attempt is reported as ended with no exits."""

    attempt: AttemptId
    epoch: int
    grace_ms: int
    kind: Literal["stop"] = field(default="stop", kw_only=True)


@dataclass(frozen=True, slots=True)
class Forget:
    """The attempt's end is committed; the agent may delete its files and stops reporting it."""

    attempt: AttemptId
    epoch: int
    kind: Literal["forget"] = field(default="forget", kw_only=True)


@dataclass(frozen=True, slots=True)
class PlanFaults:
    """The faults of the attempt that are not known to be met; `last` is the number of the newest that there is."""

    attempt: AttemptId
    epoch: int
    faults: tuple[PlannedFault, ...]
    last: int
    kind: Literal["faults"] = field(default="faults", kw_only=True)


@dataclass(frozen=True, slots=True)
class RequestTraces:
    """The attempt's newest request for traces; one that is older than what the node has changes nothing."""

    attempt: AttemptId
    epoch: int
    request: TraceRequest
    kind: Literal["traces"] = field(default="traces", kw_only=True)


@dataclass(frozen=True, slots=True)
class GiveUpNode:
    """To the first node of a gang that recovers inside: that node of the gang, by its rank in it, is lost. The gang goes on without
    it, which a report says then, or ends."""

    attempt: AttemptId
    epoch: int
    node_rank: int
    kind: Literal["give_up_node"] = field(default="give_up_node", kw_only=True)


@dataclass(frozen=True, slots=True)
class GangStarted:
    """To the first node of a gang that recovers inside, whose report names nodes that its coordinator awaits: the shims of all
    nodes run. Those that do not reach it within `Timeouts.meet_ms` from when it first hears this end the gang."""

    attempt: AttemptId
    epoch: int
    kind: Literal["gang_started"] = field(default="gang_started", kw_only=True)


@dataclass(frozen=True, slots=True)
class ChunkAck:
    """The control plane durably has all bytes before `offset`."""

    stream: Stream
    attempt: AttemptId
    rank: int
    offset: int
    kind: Literal["ack"] = field(default="ack", kw_only=True)


@dataclass(frozen=True, slots=True)
class ArtifactAck:
    """The control plane has noted that version of the artifact."""

    attempt: AttemptId
    name: str
    sha256: str
    kind: Literal["artifact_ack"] = field(default="artifact_ack", kw_only=True)


@dataclass(frozen=True, slots=True)
class OpenChannel:
    """Somebody wants `asked` of the attempt: dial agent/channels/`channel`, a name that nobody guesses, and carry its bytes. It
    comes once; what became of it is said there."""

    attempt: AttemptId
    epoch: int
    channel: str = field(repr=False)
    asked: ChannelAsked
    kind: Literal["open_channel"] = field(default="open_channel", kw_only=True)


@dataclass(frozen=True, slots=True)
class IdleWord:
    """Answer to Activity: in how long the attempt is stopped for being idle unless something happens; None where it is not idle."""

    attempt: AttemptId
    left_ms: int | None
    kind: Literal["idle_word"] = field(default="idle_word", kw_only=True)


Command = StartRanks | StopRanks | Forget | GiveUpNode | GangStarted | PlanFaults | RequestTraces
ToAgent = Annotated[
    Welcome
    | Granted
    | StartRanks
    | StopRanks
    | Forget
    | GiveUpNode
    | GangStarted
    | PlanFaults
    | RequestTraces
    | ChunkAck
    | ArtifactAck
    | OpenChannel
    | IdleWord,
    Field(discriminator="kind"),
]
