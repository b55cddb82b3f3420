"""What an audit of the data that a run has read has found."""

from dataclasses import dataclass
from typing import Final, Literal

FaultKind = Literal["missing", "twice", "other", "content", "ranks"]
"""missing: nobody has recorded the delivery. twice: the sample was delivered before. other: not the sample that the order says.
content: that sample, with other contents. ranks: the records of ranks or gangs do not fit each other."""


LATEST: Final = 2**31
"""Of an attempt or generation: whichever is the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How far a run came, by other evidence than its records. by: says so, with the step behind it; of no step where both are 0.
    samples: instead of steps, global ones. attempt, generation: whose it is; a later gang may have begun before it."""

    by: str
    steps: int = 0
    samples: int = 0
    attempt: int = LATEST
    generation: int = LATEST


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryFault:
    """The first thing that is wrong. step: counted from 1; 0 where it is of no step. source, sample: as the order says, '' and -1
    where it says none."""

    kind: FaultKind
    attempt: int
    generation: int
    rank: int
    step: int
    source: str
    sample: int
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRead:
    """Of one source. epochs: that were read whole, each sample once. rest: samples of the epochs that are not over. replaced: reads
    that another sample stood in for, because of a damaged block."""

    name: str
    samples: int
    epochs: int
    rest: int
    replaced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """What counts of one gang's deliveries. first_step, last_step: counted from 1; 0 and 0 where nothing counts. superseded: steps
    that it delivered and that were made again, by itself or a later one."""

    attempt: int
    generation: int
    world_size: int
    first_step: int
    last_step: int
    superseded: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataAudit:
    """complete: every global sample of the steps was delivered once, and is the one that the order says. contents: whether the
    tokens were compared with the data, or why not. set_aside: damaged blocks that were not read. ended: the records go as far as
    the run did; else the verdict is on `steps` alone. end: what the end was held against, and what of it is ragged.
    damaged: the file of the data that is, so that contents could not be compared; '' where none was met. lost: batches that ranks
    were given and could not record, whether or not they count."""

    complete: bool
    says: str
    steps: int
    samples: int
    sources: tuple[SourceRead, ...]
    legs: tuple[Leg, ...]
    set_aside: int
    contents: str
    fault: DeliveryFault | None
    ended: bool = True
    end: str = ""
    damaged: str = ""
    lost: int = 0
