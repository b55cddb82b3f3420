"""What a rank and its keeper say to each other. Each is one frame; the tagged unions are what either side may meet."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from phalanx.job.checkpoint.commit import Content, Saved
from phalanx.job.checkpoint.retention import Keep
from phalanx.job.checkpoint.shard_file import Part, SaveKey

BUFFERS_MIN: Final = 2
"""The newest whole one, and one that is being copied."""
BUFFERS_MAX: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first thing said on a connection. A keeper of another attempt refuses. reads: it will ask for nothing, and is told
    none of the news, which are the rank's."""

    attempt: str
    reads: bool = False
    kind: Literal["hello"] = "hello"


@dataclass(frozen=True, slots=True, kw_only=True)
class Make:
    """Have `buffers` segments for these parts. Those that are there are kept when they are for the same parts; else what is sealed
    in them is shown to those who only read, until `Drop` or until the memory is needed. scratch: a folder on whose disk they shall
    lie; '' for in memory."""

    parts: tuple[Part, ...]
    buffers: int
    scratch: str = ""
    kind: Literal["make"] = "make"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """What was sealed of other parts, before the last `Make`, is not needed any more. owners: where given, nor are replicas of
    anybody else, and those of other parts than the newest that counts."""

    owners: tuple[str, ...] | None = None
    kind: Literal["drop"] = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """Hold these segments, whose descriptors come along: those of a keeper that was killed."""

    parts: tuple[Part, ...]
    buffers: int
    kind: Literal["adopt"] = "adopt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Write a sealed segment below the folder `root` of checkpoints; until `Written` nobody may change it.

    own: which parts of the layout this rank writes, by their number; all when None. segment: None when the shard lies there
    already, and only has to be committed. content: what rank 0's keeper commits, None on the others. patience_s: how long a place
    that cannot be written is tried again. slot: the rank's number in the whole gang, by which it is asked for faults; None is as
    `rank`.
    """

    root: str
    key: SaveKey
    rank: int
    segment: int | None
    content: Content | None
    keep: Keep
    patience_s: float
    own: tuple[int, ...] | None = None
    slot: int | None = None
    kind: Literal["persist"] = "persist"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another keeper of the gang. secret: of the gang, which both prove to have. owner: Place.key of the place whose snapshots
    these are."""

    host: str
    port: int
    secret: str
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Hold replicas for other keepers of the gang, on a port of `host`: on `port` where that is free. One that listens already goes
    on where it does, with this secret."""

    host: str
    secret: str
    port: int = 0
    kind: Literal["listen"] = "listen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicate:
    """Give a sealed segment to another keeper; until `Replicated` or `NotReplicated` nobody may change it. besides: (generation,
    step) of the older replica that the other keeper must not let go of for it. sending: by which its news is known from those of
    another time, or of another process in this place."""

    segment: int
    peer: Peer
    sending: str = ""
    besides: tuple[int, int] | None = None
    kind: Literal["replicate"] = "replicate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Replicas of steps after this one are of a history that did not happen."""

    after: int
    kind: Literal["forget"] = "forget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Get the newest counted replica, or that of `step`, back from another keeper, and hold it in one of `buffers` segments.
    generation: that made it, where it matters."""

    peer: Peer
    step: int | None
    buffers: int
    generation: int | None = None
    kind: Literal["fetch"] = "fetch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """host, port: where other keepers reach this one: not always where it was asked to, since it may have listened before."""

    host: str
    port: int
    kind: Literal["listening"] = "listening"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Say what is held here, of one's own and for others."""

    kind: Literal["look"] = "look"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A whole snapshot of the place `owner`, with its seal."""

    owner: str
    step: int
    generation: int
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """own: sealed snapshots of this place. held: replicas that count. host, port: where other keepers reach this one, port 0
    where nowhere."""

    own: tuple[Item, ...]
    held: tuple[Item, ...]
    host: str
    port: int
    kind: Literal["stock"] = "stock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bye:
    """The rank has ended as it should; without a save under way the keeper ends too."""

    kind: Literal["bye"] = "bye"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What the keeper has; the segments' descriptors come along. pid: its own. parts, buffers: empty and 0 when it has none.

    saves: under way. former_parts, former_buffers: to who only reads, those of before the last `Make`; their descriptors come last.
    """

    pid: int
    parts: tuple[Part, ...]
    buffers: int
    former_parts: tuple[Part, ...] = ()
    former_buffers: int = 0
    saves: tuple[Persist, ...] = ()
    kind: Literal["holding"] = "holding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Nothing was done. The three are those of a UserError."""

    field: str
    value: str
    fix: str
    kind: Literal["refused"] = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """This rank's shard of the save is durable and was read back; its segment is free."""

    key: SaveKey
    kind: Literal["written"] = "written"


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The checkpoint exists."""

    key: SaveKey
    saved: Saved
    kind: Literal["committed"] = "committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Troubled:
    """The place could not be written; it is tried again. Said once a save."""

    key: SaveKey
    reason: str
    kind: Literal["troubled"] = "troubled"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """Nothing of this save is left, and its segment is free. fenced: since a newer attempt or generation holds the checkpoints."""

    key: SaveKey
    reason: str
    fenced: bool = False
    kind: Literal["given up"] = "given up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicated:
    """The replica counts: both keepers have said that it is whole."""

    segment: int
    step: int
    generation: int
    sending: str = ""
    kind: Literal["replicated"] = "replicated"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotReplicated:
    """There is no new replica; an older one, if any, still counts."""

    segment: int
    step: int
    reason: str
    sending: str = ""
    kind: Literal["not replicated"] = "not replicated"


News = Written | Committed | Troubled | GivenUp | Replicated | NotReplicated
"""What a keeper says of its own accord."""

Request = Hello | Make | Drop | Adopt | Persist | Listen | Forget | Replicate | Fetch | Look | Bye
Answer = Holding | Listening | Stock | Refused
Asked = Annotated[Request, Field(discriminator="kind")]
Told = Annotated[Answer | News, Field(discriminator="kind")]
