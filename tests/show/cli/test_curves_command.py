"""`phalanx curves` as people type it, against a recorded answer."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core.curves import CurvePoint, CurvesView, MetricPoint
from phalanx.core.ids import AttemptId
from phalanx.core.plot_page import ALONE
from phalanx.core.svg import BOTTOM
from phalanx.core.svg import HEIGHT as SVG_HEIGHT
from phalanx.show.cli.chart import HEIGHT, chart
from phalanx.show.cli.curves_html import curves_html
from tests.recorded import JOB
from tests.show.cli.terminal import Terminal


def point(step: int, loss: float, steps: int = 1) -> CurvePoint:
    return CurvePoint(
        step=step, steps=steps, loss=loss, loss_min=loss - 0.5, loss_max=loss + 0.5, grad_norm=1 / step, lr=1e-3,
        tokens_per_s=5000.0 + step, mfu=0.0, data_wait_ms=1, compute_ms=60, comm_ms=20, optimizer_ms=10,
        checkpoint_ms=4, other_ms=5,
    )  # fmt: skip


VIEW = CurvesView(
    job=JOB, rank=0, total_steps=400, points=tuple(point(n, 9 - 8 * n / 200) for n in range(1, 201)),
    begins={AttemptId(f"{JOB}.1"): 1, AttemptId(f"{JOB}.2"): 121},
    metrics={
        "val_loss_first": (MetricPoint(step=0, value=8.5),),
        "<b>val\x1b[2J": (MetricPoint(step=0, value=9.0), MetricPoint(step=200, value=4.0)),
    },
)  # fmt: skip


def test_each_curve_is_drawn_and_the_phases_are_told(terminal: Terminal) -> None:
    terminal.server.view(f"/jobs/{JOB}/curves", CurvesView, VIEW)
    shown = terminal("curves", JOB, "--rank", "0", "--points", "300")
    assert shown.code == 0, shown.err
    assert dict(terminal.server.asked[-1].query) == {"rank": "0", "points": "300"}
    lines = shown.out.splitlines()
    assert lines[0] == f"{JOB}, rank 0: step 200 of 400"
    titles = [line.split(",")[0] for line in lines if ", from step " in line]
    assert titles[:3] == ["loss", "gradient norm", "tokens/s"] and len(titles) == 4, "an MFU that nobody knows has no curve"
    assert "\x1b" not in shown.out, "names come from anywhere"
    assert "val_loss_first 8.5 at step 0" in lines, "one point is no curve"
    assert re.search(r"forward and backward +60\.0 +60\.0% +60\.0 +60\.0%", shown.out)


def test_a_falling_curve_falls_in_dots_and_in_stars() -> None:
    falling = [(float(n), 100.0 - n) for n in range(101)]
    for plain in (False, True):
        drawn = chart(falling, 40, plain)
        assert len(drawn) == HEIGHT and drawn[0].split()[0] == "100" and drawn[-1].split()[0] == "0"
        bodies = [line[11:] for line in drawn]
        starts = [len(body) - len(body.replace("⠀", " ").lstrip()) for body in bodies]
        assert starts == sorted(starts) and starts[0] == 0 and max(map(len, drawn)) <= 40
    assert chart([(1.0, math.nan)], 40) == ["nothing to draw"]
    assert len(chart([(1.0, 5.0), (2.0, math.inf), (3.0, 5.0)], 40)) == HEIGHT, "one that is flat"


def test_a_page_has_every_plot_and_no_word_from_outside_is_read_as_html(terminal: Terminal, tmp_path: Path) -> None:
    terminal.server.view(f"/jobs/{JOB}/curves", CurvesView, VIEW)
    page = tmp_path / "curves.html"
    shown = terminal("curves", JOB, "--page", str(page))
    assert shown.code == 0 and f"Wrote {page}." in shown.out.replace("\n", "")
    html = page.read_text()
    titles = re.findall(r"<h2>(.*?)</h2>", html)
    assert titles[:5] == ["Loss", "Gradient norm", "Throughput", "Learning rate", "Where a step goes"] and len(titles) == 6
    assert "<b>8.5</b><span>val_loss_first, step 0</span>" in html
    assert "<b>val" not in html and "\x1b" not in html and "<script" not in html and "://" not in html
    assert html.index(ALONE) < html.index("<title>")
    assert f"{JOB}.2 goes on at step 121" in html and f"{JOB}.1 goes on" not in html
    assert html.count('class="layer') == 6 and "nan" not in html


def test_a_page_of_a_diverged_run_has_gaps_and_no_nonsense() -> None:
    broken = replace(VIEW, points=(*VIEW.points, replace(point(201, 1.0), loss=math.nan, loss_min=math.nan, loss_max=math.inf)))
    html = curves_html(broken)
    assert "nan" not in html.replace("<b>nan</b>", "") and "inf" not in html.replace("inform", "")
    alone = curves_html(replace(VIEW, points=(replace(point(1, 0.0), grad_norm=0.0, tokens_per_s=0.0, lr=0.0),), metrics={}))
    assert "<h2>Loss</h2>" in alone and "<h2>Gradient norm</h2>" not in alone


@pytest.mark.parametrize("first", [1, 2, 1_000_001, 999_999_950])
def test_a_run_that_begins_late_fills_its_plots(first: int) -> None:
    late = tuple(point(step, 2.0) for step in range(first, first + 100))
    told = (MetricPoint(step=first - 1, value=1.0), MetricPoint(step=first + 99, value=2.0))
    view = replace(VIEW, points=late, begins={AttemptId(f"{JOB}.1"): first}, metrics={"val": told})
    page = curves_html(view)
    ticks = re.findall(rf'y="{SVG_HEIGHT - BOTTOM + 24}">(.*?)<', page.partition("</section>")[0])
    assert len(ticks) == len(set(ticks)) > 2
    lines = re.findall(r'class="line s0" d="M([0-9.]+),\S+.*? L([0-9.]+),[0-9.]+"', page)
    assert len(lines) == 5 and all(float(begin) < 200 and float(end) > 700 for begin, end in lines)


EXTREMES = (1.7e308, -1.7e308, 1e308, 5e-324, -5e-324, 1e-310, 0.0, 3.0, math.nan, math.inf)


@pytest.mark.parametrize("values", [(one, two) for one in EXTREMES for two in EXTREMES])
def test_every_two_floats_are_drawn_in_little_room(values: tuple[float, float]) -> None:
    for plain in (False, True):
        assert max(map(len, chart(list(enumerate(values)), 40, plain))) <= 40
    metrics = {"wild": tuple(MetricPoint(step=step, value=value) for step, value in enumerate(values, 1))}
    points = tuple(replace(point(step, 1.0), loss=value, loss_min=value, grad_norm=value) for step, value in enumerate(values, 1))
    plots = re.findall(r"<section>.*?</section>", curves_html(replace(VIEW, points=points, metrics=metrics)))
    assert "wild" in plots[-1] and not any(re.search(r"(nan|inf)[,\s]|[0-9]{20}", plot) for plot in plots)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--page", "curves.png"), 2, "name a file that ends in .html"),
        (("--page", "/none/curves.html"), 2, "cannot be written"),
        (("--points", "0"), 2, "--points"),
    ],
)
def test_what_cannot_be_asked_says_what_to_change(terminal: Terminal, words: tuple[str, ...], code: int, says: str) -> None:
    terminal.server.view(f"/jobs/{JOB}/curves", CurvesView, VIEW)
    shown = terminal("curves", JOB, *words)
    assert (shown.code, shown.out) == (code, "") and says in shown.err


def test_a_job_without_a_step_has_no_curve(terminal: Terminal) -> None:
    terminal.server.view(f"/jobs/{JOB}/curves", CurvesView, replace(VIEW, points=()))
    shown = terminal("curves", JOB)
    assert shown.code == 4 and "rank 0 has made no step that it told of" in shown.err
