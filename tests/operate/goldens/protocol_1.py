"""What agents and control planes of the first protocol say, as release 0.1.0 had it, word for word: never edited, only read.

Tests build old frames with it, and read new ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from pydantic import Field

from phalanx.core.ids import AttemptId, NodeId

PROTOCOL: Final = 1
CHUNK_BYTES_MAX: Final = 256 * 1024
Stream = Literal["log", "records"]
Phase = Literal["starting", "running", "stopping", "ended"]


@dataclass(frozen=True, slots=True)
class Device:
    """One schedulable device of a node. `index` is its number on that node; `memory_bytes` is 0 for a CPU slot."""

    index: int
    type: str
    name: str
    memory_bytes: int = 0
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class NodeShape:
    """What a node's agent says it has. `ports` is a half-open range that the agent keeps free for MASTER_PORT."""

    node: NodeId
    address: str
    devices: tuple[Device, ...]
    cpus: float
    memory_bytes: int
    ports: tuple[int, int]


@dataclass(frozen=True, slots=True)
class RankExit:
    """How one rank ended: `code` as from waitpid, negative for a signal. `at_ms` is Unix time; `first` fell first."""

    rank: int
    code: int
    at_ms: int
    first: bool = False


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
    was gone, which may be long before it is reported; 0 where that is not known, or not so yet.
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


FromAgent = Annotated[Hello | Report | Renew | Chunk, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answer to Hello. `acked` maps 'stream/attempt/rank' to the bytes the control plane already has."""

    epoch: int
    lease_ms: int
    acked: Mapping[str, int]
    kind: Literal["welcome"] = field(default="welcome", kw_only=True)


@dataclass(frozen=True, slots=True)
class Granted:
    """The lease is renewed."""

    number: int
    lease_ms: int
    kind: Literal["granted"] = field(default="granted", kw_only=True)


@dataclass(frozen=True, slots=True)
class Launch:
    """This node's part of a gang: ranks [first_rank, first_rank + len(devices)) of `world_size`.

    argv: of every rank, its first word resolved on the node; '' as first word means the environment's Python.
    code: SHA-256 of the packed workdir in the control plane's blobs, or ''. folder: the job's durable folder on this node.
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
class ChunkAck:
    """The control plane durably has all bytes before `offset`."""

    stream: Stream
    attempt: AttemptId
    rank: int
    offset: int
    kind: Literal["ack"] = field(default="ack", kw_only=True)


Command = StartRanks | StopRanks | Forget
ToAgent = Annotated[Welcome | Granted | StartRanks | StopRanks | Forget | ChunkAck, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class Accepted:
    """launch.json: the promise to run this."""

    launch: Launch
    epoch: int
