"""What a rank and its keeper say to each other. Each is one frame; the tagged unions are what either side may meet."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from phalanx.job.checkpoint.shard_file import Part

BUFFERS_MAX: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first thing said on a connection. A keeper of another attempt refuses."""

    attempt: str
    kind: Literal["hello"] = "hello"


@dataclass(frozen=True, slots=True, kw_only=True)
class Make:
    """Have `buffers` segments for these parts. Those that are there are kept when they are for the same parts."""

    parts: tuple[Part, ...]
    buffers: int
    kind: Literal["make"] = "make"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """Hold these segments, whose descriptors come along: those of a keeper that was killed."""

    parts: tuple[Part, ...]
    buffers: int
    kind: Literal["adopt"] = "adopt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bye:
    """The rank has ended as it should; without a save under way the keeper ends too."""

    kind: Literal["bye"] = "bye"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What the keeper has; the segments' descriptors come along. pid: its own. parts, buffers: empty and 0 when it has none."""

    pid: int
    parts: tuple[Part, ...]
    buffers: int
    kind: Literal["holding"] = "holding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Nothing was done. The three are those of a UserError."""

    field: str
    value: str
    fix: str
    kind: Literal["refused"] = "refused"


Asked = Annotated[Hello | Make | Adopt | Bye, Field(discriminator="kind")]
Told = Annotated[Holding | Refused, Field(discriminator="kind")]
