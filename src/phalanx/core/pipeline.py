"""Pipelines: what is asked of the schedules, and what the command line shows."""

from dataclasses import dataclass
from typing import Any

PIPELINE_RANKS_MAX = 4_096
MICROBATCHES_MAX = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineAsked:
    """A pipeline as of `fabric.pipeline.PipelineLayout`. schedule: '' for all. stages_per_rank: 0 for what each schedule is usually
    given. layers: of the model, 0 where that is not known; embedding, output: what these cost beside a layer. forward, input,
    weight: what the passes of a rank's layers cost together."""

    num_ranks: int
    num_microbatches: int
    schedule: str = ""
    stages_per_rank: int = 0
    layers: int = 0
    embedding: float = 0
    output: float = 0
    forward: float = 1
    input: float = 1
    weight: float = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """A schedule's ideal timeline, in the unit of the costs that were asked of. bubble: the most that a rank idles between its
    passes; bubble_share: of its time. formula: the published bubble, None where there is none for these costs. waiting_share: of
    all ranks' time from the first pass to the last. held: microbatches whose activations, of all of its layers, the fullest rank
    keeps at a time. layers: of each stage. refused: why it cannot be; the rest is then empty."""

    schedule: str
    stages_per_rank: int
    bubble: float = 0
    bubble_share: float = 0
    formula: float | None = None
    waiting_share: float = 0
    held: float = 0
    layers: tuple[int, ...] = ()
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineView:
    """The schedules, and of one that was asked for by name its timeline: as lines of text, and as a trace for Perfetto."""

    num_ranks: int
    num_microbatches: int
    schedules: tuple[ScheduleView, ...]
    lines: tuple[str, ...] = ()
    trace: dict[str, Any] | None = None
