"""Curves of a run: its step records, as many to a point as a page has room for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from phalanx.core.ids import AttemptId, JobId

_NAN_AS_TEXT: Final = {"ser_json_inf_nan": "strings"}
"""As in `core.records`, without Pydantic, which a help page does not need."""
POINTS: Final = 400
POINTS_MAX: Final = 4_000
METRICS_MAX: Final = 64
"""Curves of other names that a page has room for."""
PHASES: Final = ("data_wait_ms", "compute_ms", "comm_ms", "optimizer_ms", "checkpoint_ms", "other_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Means over `steps` steps, the last of which is `step`, and no number where one of them was none; of the loss also the least
    and the most that were numbers. other_ms: of a step, what is none of its phases."""

    __pydantic_config__ = _NAN_AS_TEXT

    step: int
    steps: int
    loss: float
    loss_min: float
    loss_max: float
    grad_norm: float
    lr: float
    tokens_per_s: float
    mfu: float
    data_wait_ms: float
    compute_ms: float
    comm_ms: float
    optimizer_ms: float
    checkpoint_ms: float
    other_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPoint:
    """A named value, the mean over as many steps as its own span needs to a point; no number where one of them was none."""

    __pydantic_config__ = _NAN_AS_TEXT

    step: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvesView:
    """Of one rank of a job. Steps that were made again are those of the later attempt. begins: where each attempt went on, as its
    first step. metrics: of other names that the run measured; of a name that the rank did not tell in an attempt, those of the
    lowest rank that did."""

    job: JobId
    rank: int
    total_steps: int
    points: tuple[CurvePoint, ...]
    begins: Mapping[AttemptId, int] = field(default_factory=dict)
    metrics: Mapping[str, tuple[MetricPoint, ...]] = field(default_factory=dict)
