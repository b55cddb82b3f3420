"""`phalanx curves`: loss, gradient norm, throughput and the phases of steps over a whole run."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from phalanx.core.curves import POINTS, POINTS_MAX
from phalanx.core.errors import NotFound, SetupError, SpecError
from phalanx.show.cli.options import EXIT_CODES, HomeOption, JobArgument, Output, OutputOption

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from phalanx.core.curves import CurvesView

METRICS_SHOWN: Final = 4
_SUFFIX: Final = ".html"


def add(app: typer.Typer) -> None:
    """Add this subject's command."""
    app.command("curves", epilog=EXIT_CODES)(curves)


def curves(
    job: JobArgument,
    rank: Annotated[int, typer.Option(help="Whose records.", min=0)] = 0,
    points: Annotated[
        int, typer.Option(help="About so many points, each the mean of as many steps.", min=1, max=POINTS_MAX)
    ] = POINTS,
    page: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Also write a page for a browser.")] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Draw a job's loss, gradient norm, throughput, and where its steps' time went."""
    from phalanx.client import connect
    from phalanx.core.curves import CurvesView
    from phalanx.show.cli.output import emit

    if page is not None and page.suffix != _SUFFIX:
        raise SpecError("--page", str(page), f"name a file that ends in {_SUFFIX}")
    with connect(home) as client:
        view = client.curves(job, rank, points)
    if not view.points:
        raise NotFound("curves", job, f"rank {rank} has made no step that it told of; see `phalanx describe {job}`")
    if page is not None:
        _write(page, view)
    emit(output, CurvesView, view, lambda: curves_page(view, page))


def _write(page: Path, view: "CurvesView") -> None:
    from phalanx.show.cli.curves_html import curves_html

    try:
        page.write_text(curves_html(view), encoding="utf-8")
    except OSError as error:
        raise SetupError("--page", str(page), f"cannot be written ({error.strerror}); name another file") from error


def curves_page(view: "CurvesView", page: Path | None = None) -> "Iterator[RenderableType]":
    """A chart of each curve that has something to show, and the phases in numbers."""
    from phalanx.core.units import count_of
    from phalanx.show.cli.output import line

    newest = view.points[-1]
    of_all = f" of {view.total_steps:,}" if view.total_steps else ""
    each = max(point.steps for point in view.points)
    mean = f", each point the mean of {count_of(each, 'step')}" if each > 1 else ""
    yield line(f"{view.job}, rank {view.rank}: step {newest.step:,}{of_all}{mean}")
    for title, name in (("loss", "loss"), ("gradient norm", "grad_norm"), ("tokens/s", "tokens_per_s"), ("MFU", "mfu")):
        values = [(float(one.step), getattr(one, name)) for one in view.points]
        if any(value for _, value in values):
            yield from _chart(title, values)
    drawn = [(name, several) for name, several in view.metrics.items() if len(several) > 1]
    for name, several in drawn[:METRICS_SHOWN]:
        yield from _chart(name, [(float(one.step), one.value) for one in several])
    once = [
        f"{name} {several[0].value:.4g} at step {several[0].step:,}" for name, several in view.metrics.items() if len(several) == 1
    ]
    if once:
        yield line("")
        yield line("; ".join(once[:METRICS_SHOWN]))
    yield from _phases(view)
    if page is not None:
        yield line(f"Wrote {page}.")


def _chart(title: str, points: list[tuple[float, float]]) -> "Iterator[RenderableType]":
    from phalanx.show.cli.chart import label_of
    from phalanx.show.cli.output import line

    yield line("")
    yield line(f"{title}, from step {points[0][0]:,.0f} to {points[-1][0]:,.0f}; last {label_of(points[-1][1])}", "bold")
    yield _Drawn(points)


class _Drawn:
    """As wide as the terminal."""

    def __init__(self, points: list[tuple[float, float]]) -> None:
        self._points = points

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.text import Text

        from phalanx.show.cli.chart import chart

        plain = not options.encoding.lower().startswith("utf")
        for text in chart(self._points, min(options.max_width, 100), plain):
            yield Text(text, no_wrap=True)


def _phases(view: "CurvesView") -> "Iterator[RenderableType]":
    """Means over all steps, and over those of the last point."""
    from phalanx.core.curves import PHASES
    from phalanx.show.cli.curves_html import phase_words
    from phalanx.show.cli.grid import Grid
    from phalanx.show.cli.output import line

    steps = sum(point.steps for point in view.points)
    means = {name: sum(getattr(one, name) * one.steps for one in view.points) / steps for name in PHASES}
    last = view.points[-1]
    whole, newest = sum(means.values()) or 1.0, sum(getattr(last, name) for name in PHASES) or 1.0
    rows = [
        (
            phase_words(name),
            f"{mean:,.1f}",
            f"{mean / whole:.1%}",
            f"{getattr(last, name):,.1f}",
            f"{getattr(last, name) / newest:.1%}",
        )
        for name, mean in means.items()
    ]
    head = ("PHASE", "MS A STEP", "SHARE", "MS AT THE END", "SHARE AT THE END")
    yield line("")
    yield Grid(head, rows, right=head[1:])
