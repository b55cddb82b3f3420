"""A job's curves, made of the series of its attempts: the database reads the records, and only points leave it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from phalanx.core.curves import METRICS_MAX, CurvePoint, CurvesView, MetricPoint
from phalanx.core.ids import AttemptId, JobId
from phalanx.record.telemetry.series import SeriesStore

_MEANS: Final = tuple(
    one.name for one in fields(CurvePoint) if one.name not in ("step", "steps", "loss_min", "loss_max", "other_ms")
)
_NAMED: Final = "data_wait_ms + compute_ms + comm_ms + optimizer_ms + checkpoint_ms"
# Only names of ours are put into the text.
_STEPS: Final = (
    "SELECT max(step) AS step, count(*) AS steps, min(loss) AS loss_min, max(loss) AS loss_max, "
    + ", ".join(f"avg({name}) AS {name}" for name in _MEANS)
    + f", avg(greatest(0, ended_ms - started_ms - ({_NAMED}))) AS other_ms "
    "FROM rows WHERE name = '' AND rank = ? AND step < ? GROUP BY (step - 1) // ? ORDER BY step"
)
_METRICS: Final = (
    "SELECT name, max(step) AS step, avg(value) AS value FROM rows WHERE name <> '' AND step < ? "
    "GROUP BY name, (step - 1) // ? ORDER BY name, step"
)
_SPAN: Final = "SELECT min(step) AS first, max(step) AS last, max(total_steps) AS total FROM rows WHERE name = '' AND rank = ?"


@dataclass(frozen=True, slots=True)
class _Span:
    """Steps of one attempt, and how many its run has."""

    first: int
    last: int
    total: int


def curves_of(series: SeriesStore, job: JobId, attempts: Sequence[AttemptId], rank: int, points: int) -> CurvesView:
    """attempts: oldest first. points: as many, and one more for each attempt. Raises StoreUnavailable."""
    spans = {attempt: span for attempt in attempts if (span := _span(series, attempt, rank)) is not None}
    width = max(1, math.ceil(max((span.last for span in spans.values()), default=0) / points))
    before = 2**62
    steps: list[CurvePoint] = []
    metrics: dict[str, list[MetricPoint]] = {}
    for attempt in reversed(spans):
        found = [CurvePoint(**_numbers(row)) for row in series.asked(attempt, _STEPS, [rank, before, width])]
        steps = found + steps
        for name, several in _named(series.asked(attempt, _METRICS, [before, width])).items():
            metrics[name] = several + metrics.get(name, [])
        before = min(before, spans[attempt].first)
    return CurvesView(
        job=job, rank=rank, points=tuple(steps), total_steps=max((span.total for span in spans.values()), default=0),
        begins={attempt: span.first for attempt, span in spans.items()},
        metrics={name: tuple(metrics[name]) for name in sorted(metrics)[:METRICS_MAX]},
    )  # fmt: skip


def _span(series: SeriesStore, attempt: AttemptId, rank: int) -> _Span | None:
    """None of a rank that has made no step in it."""
    rows = series.asked(attempt, _SPAN, [rank])
    return _Span(**rows[0]) if rows and rows[0]["first"] is not None else None


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """A float that is NULL was no number."""
    return {name: math.nan if value is None else value for name, value in row.items()}


def _named(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[MetricPoint]]:
    found: dict[str, list[MetricPoint]] = {}
    for row in rows:
        numbers = _numbers(row)
        found.setdefault(numbers["name"], []).append(MetricPoint(step=numbers["step"], value=numbers["value"]))
    return found
