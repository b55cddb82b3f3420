"""The report as one HTML page: no script, no network, light and dark. Names come from traces and are escaped."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Final

from phalanx.core.plot_page import plot_page, section, tiles_of
from phalanx.core.policy import Policy
from phalanx.core.sim_report import SimReport, Spread
from phalanx.core.svg import Axis, Points, bar_plot, line_plot, nothing, stack_bar, up_to
from phalanx.core.units import count_of, device_seconds, show_duration
from phalanx.operate.sim.replay.outcome import Life, Outcome
from phalanx.operate.sim.replay.report import SIZES, buckets, class_of, size_of

_UNITS: Final = (("minutes", 60_000, 3 * 3_600_000), ("hours", 3_600_000, 3 * 86_400_000), ("days", 86_400_000, math.inf))
"""Of an axis over time: name, milliseconds, and up to which span it is used."""

POINTS: Final = 240
CDF_POINTS: Final = 200
TENANTS_SHOWN: Final = 16

_COLOUR: Final[Mapping[str, int]] = {
    "productive": 2, "running_unmeasured": 2, "startup": 0, "restart": 3, "recompute": 5, "draining": 6, "idle": 7,
    "idle_waiting_quota": 4, "idle_waiting_geometry": 1, "idle_waiting_reservation": 3, "unhealthy": 5,
}  # fmt: skip
"""Of categories: what is productive is green, what is idle grey."""


def page(found: SimReport, outcome: Outcome, policy: Policy) -> str:
    """The whole file."""
    title = f"{found.trace} on {found.cluster}"
    parts = [
        section("Held devices over time", _allocation(outcome, found), "Share of all devices; means over equal spans."),
        section("The line over time", _queue(outcome), "Jobs that wait, and the devices that they ask for."),
        section("Wait until the first start, by size", _waits(outcome.lives, size_of, [name for _, name in SIZES])),
        section(
            "Wait until the first start, by class",
            _waits(outcome.lives, lambda life: class_of(life, policy), sorted(found.wait_by_class)),
        ),
        section("Submission to end", _jct(outcome.lives)),
        section("Where every device-second went", _ledger(found), "The categories sum to capacity exactly.", wide=True),
        *_counts(found),
        section("Waits", _wait_table(found), wide=True),
    ]
    if found.never:
        parts.append(section("Jobs that never started", _never_table(found), _left_out(found), wide=True))
    if len(found.tenants) > 1:
        parts.insert(5, section("Held over fair share, by tenant", _tenants(found), "The mark is a whole weighted fair share."))
        parts.append(section("Tenants", _tenant_table(found), wide=True))
    return plot_page(title, f"{_subtitle(found)}{_tiles(found)}<div class='grid2'>{''.join(parts)}</div>")


def _subtitle(found: SimReport) -> str:
    source = f" Source: {found.source}." if found.source else ""
    text = (
        f"{count_of(found.jobs, 'job')} over {found.days:.1f} days, {count_of(found.devices, 'device')} on "
        f"{count_of(found.nodes, 'node')}. "
        f"Policy {found.policy} (order: {found.order}, limits: {found.limits}), decided every {found.interval_s:g} s, "
        f"seed {found.seed}.{source}"
    )
    return "".join(f"<p>{escape(one)}</p>" for one in (text, *found.notes))


def _tiles(found: SimReport) -> str:
    tiles = [
        (f"{found.utilisation:.1%}", "productive of all device time"),
        (f"{found.allocation:.1%}", f"held while jobs came; at most {found.allocation_bound:.1%}"),
        (_time(found.wait.mean), "mean wait"),
        (_time(found.wait.p99), "p99 wait"),
        (_time(found.jct.mean), "mean time from submission to end"),
        (
            f"{found.evictions:,}",
            f"{'eviction' if found.evictions == 1 else 'evictions'}; {found.lost_gpu_hours:,.0f} GPU-hours lost",
        ),
    ]
    if found.jain is not None:
        tiles.append((f"{found.jain:.3f}", "Jain's index over tenants"))
    if found.eta is not None and found.eta.predicted:
        tiles.append((f"{found.eta.coverage:.0%}", "of starts inside their 80 % interval"))
    if found.never_fitting:
        tiles.append((f"{found.never_fitting:,}", "job can never fit" if found.never_fitting == 1 else "jobs can never fit"))
    if found.never_started:
        tiles.append((f"{found.never_started:,}", "job never started" if found.never_started == 1 else "jobs never started"))
    return tiles_of(tiles)


def _allocation(outcome: Outcome, found: SimReport) -> str:
    series = outcome.series
    held = _over_time(series.at_ms, series.held_milli, outcome.ended_ms, 1000 * found.devices)
    stranded = _over_time(series.at_ms, series.blocked_milli, outcome.ended_ms, 1000 * found.devices)
    lines = {"held": held, "idle, on nodes too full for the first job in line": stranded}
    return line_plot(_span(outcome), Axis("share of devices", 0, 1, percent=True), lines, area=True)


def _queue(outcome: Outcome) -> str:
    series = outcome.series
    jobs = _over_time(series.at_ms, series.waiting, outcome.ended_ms, 1)
    devices = _over_time(series.at_ms, series.waiting_devices, outcome.ended_ms, 1000)
    high = up_to(value for _, value in (*jobs, *devices))
    return line_plot(_span(outcome), Axis("waiting", 0, high), {"jobs": jobs, "devices": devices}, area=True)


def _over_time(times: Sequence[int], values: Sequence[int], until_ms: int, scale: float) -> Points:
    _, unit_ms = _unit(until_ms)
    return [(at_ms / unit_ms, value / scale) for at_ms, value in buckets(times, values, until_ms, POINTS)]


def _span(outcome: Outcome) -> Axis:
    name, unit_ms = _unit(outcome.ended_ms)
    return Axis(f"{name} since the first submission", 0, max(outcome.ended_ms / unit_ms, 1e-6))


def _unit(span_ms: int) -> tuple[str, int]:
    return next((name, unit_ms) for name, unit_ms, most_ms in _UNITS if span_ms <= most_ms)


def _waits(lives: Sequence[Life], group: Callable[[Life], str], names: Iterable[str]) -> str:
    groups = {name: [life.wait_ms for life in lives if life.wait_ms is not None and group(life) == name] for name in names}
    return _distribution({name: times for name, times in groups.items() if times}, "wait (from 1 second)")


def _jct(lives: Sequence[Life]) -> str:
    times = {
        "submission to end": [life.jct_ms for life in lives if life.jct_ms is not None],
        "duration alone": [life.job.duration_ms for life in lives if life.ended_ms is not None],
    }
    return _distribution(times, "time (from 1 second)")


def _distribution(groups: "dict[str, list[int]]", label: str) -> str:
    """Cumulative shares over a logarithmic axis."""
    most = max((max(times) for times in groups.values() if times), default=1000) / 1000
    x = Axis(label, 1.0, max(10.0, most * 1.05), log=True, time=True)
    lines = {name: cdf(times) for name, times in groups.items()}
    return line_plot(x, Axis("share of jobs", 0, 1, percent=True), lines, steps=True)


def cdf(times_ms: Sequence[int]) -> Points:
    """(seconds, share of jobs that took at most that), thinned; from 1 second, where the axis begins."""
    ordered = sorted(times_ms)
    count = len(ordered)
    picked = sorted({min(count - 1, count * number // CDF_POINTS) for number in range(CDF_POINTS + 1)}) if count else []
    at_once = sum(one <= 1000 for one in ordered)
    points = [(ordered[index] / 1000, (index + 1) / count) for index in picked if ordered[index] > 1000]
    return [(1.0, at_once / count), *points] if count else []


def _tenants(found: SimReport) -> str:
    known = [(name, one) for name, one in found.tenants.items() if one.normalised is not None][:TENANTS_SHOWN]
    rows = [(name, one.normalised or 0.0, f"{one.normalised:.2f} ({one.gpu_hours:,.0f} GPU-hours)") for name, one in known]
    return bar_plot("held over weighted fair share", rows, {name: 1.0 for name, _, _ in rows})


def _ledger(found: SimReport) -> str:
    if not found.capacity:
        return nothing()
    parts = sorted(found.ledger.items(), key=lambda item: -item[1])
    capacity = found.capacity
    told = [
        (
            name.replace("_", " "),
            amount / capacity,
            f"{amount / capacity:.1%} ({device_seconds(amount) / 3600:,.0f} device-hours)",
            _COLOUR.get(name, 6),
        )
        for name, amount in parts
    ]
    return stack_bar(told)


def _counts(found: SimReport) -> list[str]:
    """Side by side where there are both."""
    shown = [
        ("What waiting jobs waited for", "share of the waiting jobs looked at", found.blocked_by, True),
        ("Evictions by cause", "gangs that let go for others, or to change size", found.evicted_for, False),
    ]
    there = [one for one in shown if one[2]]
    return [section(title, _bars(label, counts, shares), wide=len(there) == 1) for title, label, counts, shares in there]


def _bars(label: str, counts: Mapping[str, int], shares: bool) -> str:
    total = sum(counts.values())
    rows = [
        (kind.replace("_", " "), count / total if shares else float(count), f"{count / total:.1%}" if shares else f"{count:,}")
        for kind, count in sorted(counts.items(), key=lambda item: -item[1])
    ]
    return bar_plot(label, rows)


def _wait_table(found: SimReport) -> str:
    rows = [("all", found.wait), *found.wait_by_class.items(), *found.wait_by_size.items()]
    return _table(("", "jobs", "mean", "p50", "p99", "longest"), [(name, *_spread(one)) for name, one in rows])


def _never_table(found: SimReport) -> str:
    return _table(("job", "devices", "why"), [(one.job, f"{one.devices:,}", one.why) for one in found.never])


def _left_out(found: SimReport) -> str:
    more = found.never_fitting + found.never_started - len(found.never)
    return f"And {count_of(more, 'more job')}." if more else ""


def _tenant_table(found: SimReport) -> str:
    head = ("tenant", "jobs", "GPU-hours", "weight", "of fair share", "mean wait", "p50", "p99", "longest")
    rows = [
        (
            name,
            f"{one.jobs:,}",
            f"{one.gpu_hours:,.0f}",
            f"{one.weight:g}",
            "-" if one.normalised is None else f"{one.normalised:.2f}",
            *_spread(one.wait)[1:],
        )
        for name, one in found.tenants.items()
    ]
    return _table(head, rows)


def _spread(one: Spread) -> tuple[str, ...]:
    return (f"{one.count:,}", _time(one.mean), _time(one.p50), _time(one.p99), _time(one.max))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class='scroll'><table><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>{cells}</table></div>"


def _time(seconds: float) -> str:
    return show_duration(round(seconds * 1000))
