"""What streams of the API say beside what they are of."""

from dataclasses import dataclass

from phalanx.core.ids import AttemptId


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGap:
    """What a reader of a stream missed of a log, since it was too far behind: from `offset` to `next_offset`."""

    attempt: AttemptId
    rank: int
    offset: int
    next_offset: int
    missed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnd:
    """The last event of a stream. why: in words."""

    why: str
