"""What people see of a test of the fabric."""

from collections.abc import Iterator

from rich.console import RenderableType

from phalanx.core.fabric_test import FabricReport, PointView
from phalanx.core.units import count_of, show_amount, show_size
from phalanx.show.cli.grid import Grid
from phalanx.show.cli.options import Output
from phalanx.show.cli.output import emit, line, moment, section

NODES_SHOWN = 8


def emit_report(output: Output, report: FabricReport) -> None:
    emit(output, FabricReport, report, lambda: fabric_page(report))


def fabric_page(report: FabricReport) -> Iterator[RenderableType]:
    """Tiers, then what each collective reached, what that costs, and who is slow."""
    names = ", ".join(report.nodes[:NODES_SHOWN]) + (", ..." if len(report.nodes) > NODES_SHOWN else "")
    of = f" of {report.job}" if report.job else ""
    yield line(f"{count_of(report.num_ranks, 'rank')} on {count_of(len(report.nodes), 'node')} ({names}){of}, {report.device}")
    yield line(f"{report.backend}, torch {report.torch}, {moment(report.made_ms)}", style="dim")
    yield from section("Tiers", _tiers(report))
    yield from section("Collectives", _points(report))
    if report.costs:
        yield from section("What n bytes cost: latency + n / rate", _costs(report))
    if report.slow:
        rows = [(one.kind, one.name, f"{one.part:.0%}", one.evidence) for one in report.slow]
        yield from section(
            "Slower than others of its kind", Grid(("KIND", "NAME", "REACHES", "EVIDENCE"), rows, right=("REACHES",))
        )
    yield from _links(report)
    for note in report.notes:
        yield line(f"Note: {note}.", style="dim")


def _links(report: FabricReport) -> Iterator[RenderableType]:
    """Never that nothing is slow where nothing was compared."""
    judged = report.judged
    if judged is None:
        judged = report.pairs if report.num_ranks > 2 else 0
    if judged and report.slow:
        return
    yield line()
    if judged:
        yield line(f"Nothing is slower than others of its kind, by {count_of(judged, 'pair')} of ranks.")
        return
    why = "no pairs of ranks were measured" if not report.pairs else "no kind of them joins three ranks, and two cannot be compared"
    alone = "" if report.slow or report.num_ranks < 3 else " By itself no GPU is slower than the others."
    yield line(f"Links were not judged: {why}.{alone}")


def _tiers(report: FabricReport) -> RenderableType:
    rows = [
        (one.name, one.num_groups, one.num_ranks, _gb(one.hardware_bytes_per_s), one.source or "nobody says")
        for one in report.tiers
    ]
    return Grid(("TIER", "GROUPS", "RANKS EACH", "HARDWARE GB/s", "BY"), rows, right=("GROUPS", "RANKS EACH", "HARDWARE GB/s"))


def _points(report: FabricReport) -> RenderableType:
    head = ("TIER", "COLLECTIVE", "SIZE", "TIME", "BUS GB/s", "OF HARDWARE", "SLOWEST GROUP")
    return Grid(head, map(_point, report.points), right=("SIZE", "TIME", "BUS GB/s", "OF HARDWARE"), drop=("SLOWEST GROUP",))


def _point(one: PointView) -> tuple[str, ...]:
    part = f"{one.part:.1%}" if one.part is not None else "-"
    return (
        one.tier, one.collective, show_size(one.size_bytes), _time(one.seconds), _gb(one.bus_bytes_per_s), part,
        one.slowest or "-",
    )  # fmt: skip


def _costs(report: FabricReport) -> RenderableType:
    rows = [
        (one.tier, one.collective, _time(one.alpha_s), _gb(1 / one.beta_s if one.beta_s else None), f"{one.error:.0%}")
        for one in report.costs
    ]
    return Grid(("TIER", "COLLECTIVE", "LATENCY", "RATE GB/s", "WORST ERROR"), rows, right=("LATENCY", "RATE GB/s", "WORST ERROR"))


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us" if seconds < 0.01 else f"{seconds * 1e3:,.1f} ms"


def _gb(rate: float | None) -> str:
    return "-" if rate is None else show_amount(rate / 1e9)
