"""Traces of steps: how a job asks for them, what one rank's says in numbers, and what all of them say of the job."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

FOLDER: Final = "profile"
"""In the artifacts of an attempt."""
TRACED_STEPS_MAX: Final = 100
"""A trace of more is of no use: some hundred megabytes, which no page opens."""
SUMMARY: Final = ".summary.json"
TRACE: Final = ".trace.json.gz"
SUMMARY_BYTES_MAX: Final = 256 * 1024
"""Ours have some kilobytes; a rank may leave anything under that name."""
RANKS_READ_MAX: Final = 1_024
"""Of one job's summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """One step of one rank, in milliseconds. exposed_communication_ms: of communication_ms, while nothing was computed. copy_ms:
    of a checkpoint beside the step, which holds nothing up. bubble_ms: between the passes of a pipeline. mfu: 0 where no peak is
    known.
    """

    step: int
    wall_ms: float
    data_wait_ms: float = 0.0
    communication_ms: float = 0.0
    exposed_communication_ms: float = 0.0
    optimizer_ms: float = 0.0
    checkpoint_ms: float = 0.0
    copy_ms: float = 0.0
    bubble_ms: float = 0.0
    mfu: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyOperator:
    """A kernel, or of a CPU an operator without those that it calls. share: of the time of all of its kind."""

    name: str
    calls: int
    total_ms: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedPipeline:
    """As of `fabric.pipeline.PipelineLayout`."""

    schedule: str
    num_ranks: int
    num_microbatches: int
    stages_per_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """A rank's summary of its trace. passes: mean milliseconds of the pipeline's passes by kind (F, B, I, W)."""

    rank: int
    on_gpu: bool
    steps: tuple[StepTrace, ...]
    busiest: tuple[BusyOperator, ...] = ()
    passes: Mapping[str, float] = field(default_factory=dict)
    pipeline: TracedPipeline | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProfile:
    """Means over the traced steps of a rank, in milliseconds. rank: -1 of all ranks. trace: the artifact that Perfetto opens."""

    rank: int
    wall_ms: float
    data_wait_ms: float
    communication_ms: float
    exposed_communication_ms: float
    optimizer_ms: float
    checkpoint_ms: float
    copy_ms: float
    bubble_ms: float
    mfu: float
    trace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BubbleView:
    """Of a pipeline's step, in milliseconds: the most that a rank idled between its passes, and what the schedule's formula says of
    passes that long; None where it has none for such passes."""

    schedule: str
    num_ranks: int
    num_microbatches: int
    stages_per_rank: int
    measured_ms: float
    formula_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileView:
    """What the traces of steps first to last say of a job's attempt. whole: means over all ranks. others: first and last of the
    attempt's other traces. unread: ranks whose summary could not be read."""

    job: str
    attempt: str
    first: int
    last: int
    on_gpu: bool
    whole: RankProfile
    ranks: tuple[RankProfile, ...]
    busiest: tuple[BusyOperator, ...]
    bubble: BubbleView | None = None
    others: tuple[tuple[int, int], ...] = ()
    unread: tuple[int, ...] = ()


def trace_name(rank: int, first: int, last: int) -> str:
    """Of the files of one trace, without what each ends in."""
    return f"rank-{rank}-steps-{first}-{last}"
