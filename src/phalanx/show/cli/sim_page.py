"""What people see of a simulation."""

from collections.abc import Iterator, Mapping
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from phalanx.core.sim_report import EtaView, MoveView, SideView, SimReport, Spread, WhatIfView
from phalanx.core.units import count_of, device_seconds, show_duration, utc_minute
from phalanx.show.cli.grid import Grid
from phalanx.show.cli.ledger_page import bar_of, share_of
from phalanx.show.cli.output import line, moment, pairs, section

TENANTS_SHOWN: Final = 20
MOVES_SHOWN: Final = 50
_SPREAD: Final = ("JOBS", "MEAN", "P50", "P99", "LONGEST")


def report_page(view: SimReport) -> Iterator[RenderableType]:
    """The figures, waits by class, size and tenant, and the ledger."""
    yield pairs(_summary(view))
    rows = [("all", view.wait), *view.wait_by_class.items(), *view.wait_by_size.items()]
    yield from section("Wait until the first start", _spreads("OF", dict(rows)))
    yield from section("Submission to end", _spreads("OF", {"all": view.jct}))
    if len(view.tenants) > 1:
        yield from section("Tenants", _tenants(view))
        if len(view.tenants) > TENANTS_SHOWN:
            yield line(f"  and {len(view.tenants) - TENANTS_SHOWN:,} more; -o json has all")
    yield from section("Where every device-second went", _ledger(view))
    if view.blocked_by:
        yield from section("What waiting jobs waited for", _blocked(view.blocked_by))
    if view.never:
        yield from section(
            "Never started",
            Grid(("JOB", "DEVICES", "WHY"), [(one.job, one.devices, one.why) for one in view.never], right=("DEVICES",)),
        )
        if more := view.never_fitting + view.never_started - len(view.never):
            yield line(f"  and {more:,} more, counted but not named")
    if view.report or view.jobs_written:
        yield Text("")
    if view.report:
        yield line(f"The report is in {view.report}.")
    if view.jobs_written:
        yield line(f"When each job started is in {view.jobs_written}.")


def _summary(view: SimReport) -> Iterator[tuple[str, object]]:
    never = f", {view.never_fitting} can never fit" if view.never_fitting else ""
    never += f", {view.never_started} never started" if view.never_started else ""
    yield (
        "Trace",
        f"{view.trace}: {count_of(view.jobs, 'job')} over {view.days:.1f} days, {view.finished} ended{never}{_skipped(view)}",
    )
    yield "Time", f"from {utc_minute(view.start_ms)} to {utc_minute(view.start_ms + round(view.days * 86_400_000))}"
    yield "Cluster", f"{view.cluster}: {count_of(view.devices, 'device')} on {count_of(view.nodes, 'node')}"
    yield "Policy", f"{view.policy} (order: {view.order}, limits: {view.limits}, seed {view.seed})"
    yield "Utilisation", f"{view.utilisation:.1%} productive of all device time"
    yield (
        "Allocation",
        f"{view.allocation:.1%} held until the last submission; no scheduler could exceed {view.allocation_bound:.1%}",
    )
    yield (
        "Fragmentation",
        f"{view.fragmentation:.1%} of idle device time lay on nodes too full for the typical job; "
        f"while jobs waited, {view.fragmentation_waiting:.1%} of it on nodes too full for the first in line",
    )
    causes = f" ({', '.join(f'{name} {count}' for name, count in view.evicted_for.items())})" if view.evicted_for else ""
    yield (
        "Evictions",
        f"{view.evictions}{causes}; {view.lost_gpu_hours:.1f} GPU-hours went into stopping, starting again and doing again",
    )
    if view.failures:
        yield "Failures", f"{view.failures} of nodes"
    if view.jain is not None and view.max_min is not None:
        yield "Fairness", f"Jain's index {view.jain:.3f}, least to most {view.max_min:.3f}, of weighted fair shares"
    if view.eta is not None:
        yield "Predicted starts", _predicted(view.eta)
    yield (
        "Decided",
        f"{count_of(view.decisions, 'time')} through {view.through}, {view.decide_ms:.2f} ms each; {view.wall_s:.1f} s in all",
    )
    for note in view.notes:
        yield "Note", note


def _skipped(view: SimReport) -> str:
    """', 1,088 rows ask for no GPU and are left out'."""
    if not view.skipped:
        return ""
    one = view.skipped == 1
    why = "never ran" if view.skipped_for == "never_ran" else f"{'asks' if one else 'ask'} for no GPU"
    return f", {count_of(view.skipped, 'row')} {why} and {'is' if one else 'are'} left out"


def _predicted(eta: EtaView) -> str:
    without = f"; {eta.without:.1%} of the starts waited for had no useful estimate" if eta.without else ""
    if not eta.predicted:
        return f"none{without}"
    width = show_duration(round(eta.width_s * 1000))
    return f"{eta.coverage:.1%} of {eta.predicted} inside their 80 % interval, half of them at most {width} wide{without}"


def _spreads(first: str, rows: Mapping[str, Spread]) -> Grid:
    cells = [(name, one.count, *(_time(value) for value in (one.mean, one.p50, one.p99, one.max))) for name, one in rows.items()]
    return Grid((first, *_SPREAD), cells, right=_SPREAD)


def _tenants(view: SimReport) -> Grid:
    rows = [
        (
            name,
            one.jobs,
            f"{one.gpu_hours:,.0f}",
            "-" if one.normalised is None else f"{one.normalised:.2f}",
            *(_time(value) for value in (one.wait.mean, one.wait.p50, one.wait.p99)),
        )
        for name, one in list(view.tenants.items())[:TENANTS_SHOWN]
    ]
    head = ("TENANT", "JOBS", "GPU-HOURS", "OF FAIR SHARE", "WAIT MEAN", "P50", "P99")
    return Grid(head, rows, right=head[1:], drop=("GPU-HOURS",))


def _ledger(view: SimReport) -> Grid:
    rows = [
        (
            name.replace("_", " "),
            Text(bar_of(amount, view.capacity)),
            f"{device_seconds(amount):,.0f}",
            share_of(amount, view.capacity),
        )
        for name, amount in sorted(view.ledger.items(), key=lambda item: -item[1])
    ]
    return Grid(("CATEGORY", "", "DEVICE-SECONDS", "SHARE"), rows, right=("DEVICE-SECONDS", "SHARE"), drop=("",))


def _blocked(counts: Mapping[str, int]) -> Grid:
    total = sum(counts.values())
    rows = [(kind.replace("_", " "), f"{count / total:.1%}") for kind, count in counts.items()]
    return Grid(("REASON", "SHARE"), rows, right=("SHARE",))


def _time(seconds: float) -> str:
    return show_duration(round(seconds * 1000))


def what_if_page(view: WhatIfView) -> Iterator[RenderableType]:
    """Both policies side by side, and whom it touches."""
    yield pairs(
        (
            ("Snapshot", f"{view.snapshot}, of {moment(view.at_ms)}"),
            ("Fleet", _fleet(view)),
            ("Other policy", view.other.policy),
            *(("Note", note) for note in view.notes),
        )
    )
    yield from section("Decided", Grid(("", "ITS OWN POLICY", "THE OTHER POLICY"), list(_sides(view.own, view.other))))
    if not view.moves:
        yield Text("")
        yield line("Nobody gains or loses.")
        return
    rows = [(one.verdict, one.job, one.queue, one.devices, _place(one), one.before, one.after) for one in view.moves[:MOVES_SHOWN]]
    head = ("", "JOB", "QUEUE", "DEVICES", "PLACE", "NOW", "THEN")
    yield from section("Who gains and who loses", Grid(head, rows, right=("DEVICES",), drop=("DEVICES",), cut="NOW"))
    if len(view.moves) > MOVES_SHOWN:
        yield line(f"  and {len(view.moves) - MOVES_SHOWN:,} more; -o json has all")


def _place(move: MoveView) -> str:
    """'4 -> 2' in the line of its queue, '-' where it stands in none."""
    was, is_ = ("-" if place is None else str(place) for place in (move.place_before, move.place_after))
    return was if was == is_ else f"{was} -> {is_}"


def _fleet(view: WhatIfView) -> str:
    runs, waits = "runs" if view.running == 1 else "run", "waits" if view.pending == 1 else "wait"
    there = f"{count_of(view.devices, 'device')} on {count_of(view.nodes, 'node')}"
    return f"{there}; {count_of(view.running, 'gang')} {runs}, {count_of(view.pending, 'job')} {waits}"


def _starts(side: SideView) -> str:
    return f"{count_of(side.starts, 'job')}, {count_of(side.started_devices, 'device')}"


def _sides(own: SideView, other: SideView) -> Iterator[tuple[str, object, object]]:
    yield "starts", _starts(own), _starts(other)
    yield "waits", own.waits, other.waits
    yield "evictions", own.evictions, other.evictions
    yield "GPU-hours lost", f"{own.lost_gpu_hours:.1f}", f"{other.lost_gpu_hours:.1f}"
    for queue in sorted({*own.held, *other.held}):
        yield f"{queue} holds", own.held.get(queue, 0), other.held.get(queue, 0)
