"""A job's curves, made of the series of its attempts: the database reads the records, and only points leave it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from phalanx.core.curves import METRICS_MAX, CurvePoint, CurvesView, MetricPoint
from phalanx.core.ids import AttemptId, JobId
from phalanx.record.telemetry.columns import SCHEMA
from phalanx.record.telemetry.series import SeriesStore

_MEANS: Final = tuple(
    one.name for one in fields(CurvePoint) if one.name not in ("step", "steps", "loss_min", "loss_max", "other_ms")
)
_NAMED: Final = "data_wait_ms + compute_ms + comm_ms + optimizer_ms + checkpoint_ms"


def _mean(name: str) -> str:
    """In SQL. A float that is NULL was no number, and neither is a mean over it: SQL's own would pass over it. An integer that is
    NULL is of a column that came later than its part, and is 0 as in its record."""
    if SCHEMA[name] == "DOUBLE":
        return f"CASE WHEN count({name}) = count(*) THEN avg({name}) END AS {name}"
    return f"avg(coalesce({name}, 0)) AS {name}"


# Only names of ours are put into the text.
_STEPS: Final = (
    "SELECT max(step) AS step, count(*) AS steps, min(loss) AS loss_min, max(loss) AS loss_max, "
    + ", ".join(map(_mean, _MEANS))
    + f", avg(greatest(0, ended_ms - started_ms - ({_NAMED}))) AS other_ms "
    "FROM rows WHERE name = '' AND rank = ? AND step < ? GROUP BY (step - ?) // ? ORDER BY step"
)
_NAMES: Final = (
    "SELECT name, bool_or(rank = ?) AS own, coalesce(min(step) FILTER (rank = ?), min(step)) AS begin, "
    "coalesce(max(step) FILTER (rank = ?), max(step)) AS last "
    "FROM rows WHERE name <> '' AND step < ? GROUP BY name ORDER BY name LIMIT ?"
)
_METRICS: Final = (
    "SELECT name, max(step) AS step, CASE WHEN count(value) = count(*) THEN avg(value) END AS value FROM ("
    "SELECT name, step, first(value ORDER BY rank) AS value, (step - any_value(begin)) // any_value(width) AS point FROM rows "
    "JOIN (SELECT unnest(?::VARCHAR[]) AS name, unnest(?::BOOLEAN[]) AS own, unnest(?::BIGINT[]) AS begin, "
    "unnest(?::BIGINT[]) AS width) AS shown USING (name) "
    "WHERE step < ? AND (rank = ? OR NOT own) GROUP BY name, step) GROUP BY name, point ORDER BY name, step"
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
    begin, last = _reach((span.first, span.last) for span in spans.values())
    before, cuts = 2**62, dict[AttemptId, int]()  # what a later attempt made again is not the earlier one's
    for attempt in reversed(spans):
        cuts[attempt], before = before, min(before, spans[attempt].first)
    steps: list[CurvePoint] = []
    for attempt in spans:
        values = [rank, cuts[attempt], begin, _width(begin, last, points)]
        steps += [CurvePoint(**_numbers(row)) for row in series.asked(attempt, _STEPS, values)]
    return CurvesView(
        job=job, rank=rank, points=tuple(steps), total_steps=max((span.total for span in spans.values()), default=0),
        begins={attempt: span.first for attempt, span in spans.items()}, metrics=_metrics(series, cuts, list(spans), rank, points),
    )  # fmt: skip


def _metrics(
    series: SeriesStore, cuts: Mapping[AttemptId, int], attempts: Sequence[AttemptId], rank: int, points: int
) -> dict[str, tuple[MetricPoint, ...]]:
    """By name. Each over its own span: a metric may count something else than steps. The rank's, or where it told none of a name
    in an attempt, of each step the first rank's that did."""
    names = {attempt: series.asked(attempt, _NAMES, [rank, rank, rank, cuts[attempt], METRICS_MAX]) for attempt in attempts}
    reaches: dict[str, list[tuple[int, int]]] = {}
    for row in (row for rows in names.values() for row in rows):
        reaches.setdefault(row["name"], []).append((row["begin"], row["last"]))
    spans = {name: _reach(reaches[name]) for name in sorted(reaches)[:METRICS_MAX]}
    found: dict[str, list[MetricPoint]] = {name: [] for name in spans}
    for attempt in attempts:
        shown = [(row["name"], row["own"]) for row in names[attempt] if row["name"] in spans]
        begins = [spans[name][0] for name, _ in shown]
        widths = [_width(*spans[name], points) for name, _ in shown]
        lists = [[name for name, _ in shown], [own for _, own in shown], begins, widths]
        for row in series.asked(attempt, _METRICS, [*lists, cuts[attempt], rank]):
            numbers = _numbers(row)
            found[numbers["name"]].append(MetricPoint(step=numbers["step"], value=numbers["value"]))
    return {name: tuple(several) for name, several in found.items()}


def _reach(spans: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """From the first to the last of all."""
    known = list(spans)
    return min((first for first, _ in known), default=0), max((last for _, last in known), default=0)


def _width(first: int, last: int, points: int) -> int:
    """Steps to a point."""
    return -(-(last - first + 1) // points)


def _span(series: SeriesStore, attempt: AttemptId, rank: int) -> _Span | None:
    """None of a rank that has made no step in it."""
    rows = series.asked(attempt, _SPAN, [rank])
    return _Span(**rows[0]) if rows and rows[0]["first"] is not None else None


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """A float that is NULL was no number."""
    return {name: math.nan if value is None else value for name, value in row.items()}
