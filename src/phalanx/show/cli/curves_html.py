"""A job's curves as one HTML page: no script, no network, light and dark. Names of metrics may come from anybody."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

from phalanx.core.curves import PHASES, CurvePoint, CurvesView, MetricPoint
from phalanx.core.plot_page import plot_page, section, tiles_of
from phalanx.core.svg import Axis, Points, around, line_plot, nice, stack_plot, up_to
from phalanx.core.units import count_of
from phalanx.show.cli.chart import label_of
from phalanx.show.cli.text import clean

OTHERS_MAX: Final = 16
"""Plots of metrics of other names."""
_LONG: Final = 1e12
"""A number as large as that is shown by its power of ten."""
_WORDS: Final = {
    "data_wait_ms": "data wait", "compute_ms": "forward and backward", "comm_ms": "wait for other ranks",
    "optimizer_ms": "optimizer", "checkpoint_ms": "checkpoint", "other_ms": "other",
}  # fmt: skip


def phase_words(name: str) -> str:
    """'data wait'."""
    return _WORDS[name]


def curves_html(view: CurvesView) -> str:
    """The whole file."""
    return plot_page(f"{view.job}, rank {view.rank}", f"{_tiles(view)}<div class='grid2'>{''.join(_sections(view))}</div>")


def _tiles(view: CurvesView) -> str:
    newest = view.points[-1]
    of_all = f" of {view.total_steps:,}" if view.total_steps else ""
    tiles = [
        (f"{newest.step:,}{of_all}", "steps"),
        (f"{newest.loss:.4f}" if abs(newest.loss) < _LONG else label_of(newest.loss), "loss"),
        (f"{newest.tokens_per_s:,.0f}" if newest.tokens_per_s < _LONG else label_of(newest.tokens_per_s), "tokens/s"),
        (f"{newest.mfu:.1%}" if newest.mfu > 0 else "-", "MFU"),
    ]
    tiles += [
        (f"{several[0].value:.4g}", f"{clean(name)}, step {several[0].step:,}")
        for name, several in view.metrics.items()
        if len(several) == 1
    ][:OTHERS_MAX]
    return tiles_of(tiles)


def _sections(view: CurvesView) -> Iterator[str]:
    x = _over([*view.begins.values(), *(point.step for point in view.points)])
    marks = {f"{attempt} goes on at step {first:,}": float(first) for attempt, first in list(view.begins.items())[1:]}
    each = max(point.steps for point in view.points)
    thinned = (
        f"Each point is the mean of {count_of(each, 'step')}; the band reaches from the least to the most." if each > 1 else ""
    )
    again = "Dashed: where a later attempt went on." if marks else ""
    yield section("Loss", _loss(view, x, marks), " ".join(filter(None, (thinned, again))))
    for title, name in (("Gradient norm", "grad_norm"), ("Throughput", "tokens_per_s"), ("MFU", "mfu"), ("Learning rate", "lr")):
        values = _points(view.points, name)
        if any(value for _, value in values):
            label = "tokens/s" if name == "tokens_per_s" else title
            y = around(label, [value for _, value in values], percent=name == "mfu")
            yield section(title, line_plot(x, y, {title: values}, marks=marks))
    layers = {phase_words(name): _points(view.points, name) for name in PHASES}
    most = up_to((sum(getattr(point, name) for name in PHASES) for point in view.points), least=1e-3)
    said = "Milliseconds of a step, by what they went to, as the rank's records say."
    yield section("Where a step goes", stack_plot(x, Axis("ms a step", 0, most), layers, marks), said)
    for name, several in [one for one in view.metrics.items() if len(one[1]) > 1][:OTHERS_MAX]:
        title = clean(name)
        yield section(title, line_plot(_reaching(x, several), _values(title, several), {title: _metric(several)}, marks=marks))


def _loss(view: CurvesView, x: Axis, marks: dict[str, float]) -> str:
    band = [(float(one.step), one.loss_min, one.loss_max) for one in view.points if one.steps > 1]
    heights = [value for one in view.points for value in (one.loss_min, one.loss_max)]
    return line_plot(x, around("loss", heights), {"loss": _points(view.points, "loss")}, band=band, marks=marks)


def _points(points: Sequence[CurvePoint], name: str) -> Points:
    return [(float(one.step), _finite(getattr(one, name))) for one in points]


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan


def _metric(several: Sequence[MetricPoint]) -> Points:
    return [(float(one.step), one.value) for one in several]


def _values(label: str, several: Sequence[MetricPoint]) -> Axis:
    return around(label, [one.value for one in several])


def _over(steps: Sequence[int]) -> Axis:
    """From 0, or where they begin late from a round number before that."""
    first, last = min(steps), max(steps)
    if first <= last / 2:
        return Axis("step", min(0, first), max(1, last))
    each = nice((last - first) / 5)
    return Axis("step", min(each * (first // each), last - 1), last)


def _reaching(x: Axis, several: Sequence[MetricPoint]) -> Axis:
    """A metric may be said before the first step and beyond the last one."""
    steps = [one.step for one in several]
    return x if x.low <= min(steps) and max(steps) <= x.high else _over([round(x.low), round(x.high), *steps])
