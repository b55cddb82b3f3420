"""Tables on terminals of many widths: a row is a line, what has no room is named, a pipe gets everything."""

import io

import pytest
from rich.console import Console, RenderableType

from phalanx.core.ids import AttemptId
from phalanx.core.views import CheckpointView, FindingView, JobView, Progress
from phalanx.show.cli.grid import Grid
from phalanx.show.cli.job_page import job_page, jobs_page, kept_checkpoints
from phalanx.show.cli.live import LiveLine
from phalanx.show.cli.model_page import models_page
from phalanx.show.cli.pages import status_page
from tests.recorded import CPU, JOB, finished_view, job_view, model_view, status_view

PATH = "/srv/phalanx/jobs/tiny-lm-7/checkpoints/step-"


def at_progress(mfu: float) -> Progress:
    return Progress(step=37, total_steps=400, loss=6.25, tokens_per_s=5_120.0, mfu=mfu, eta_ms=80_000)


def drawn(width: int, *parts: RenderableType) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None, markup=False, highlight=False)
    for part in parts:
        console.print(part)
    return [text.rstrip() for text in file.getvalue().splitlines()]


def checkpoint(step: int, attempt: int = 1, at_ms: int = 0) -> CheckpointView:
    return CheckpointView(
        attempt=AttemptId(f"{JOB}.{attempt}"), step=step, path=f"{PATH}{step:08d}", digest=f"{attempt}" * 64, size_bytes=13 << 20,
        at_ms=at_ms or step,
    )  # fmt: skip


def keeping(keep_last: int, *checkpoints: CheckpointView, **more: int) -> JobView:
    view = finished_view(checkpoints=checkpoints)
    return finished_view(checkpoints=checkpoints, spec={**view.spec, "checkpoint": {"every": 5, "keep_last": keep_last, **more}})


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_a_row_is_a_line_on_any_terminal(width: int) -> None:
    jobs = tuple(finished_view(detail="rank 1 was killed by SIGKILL, and that is a long story to tell " * 2) for _ in range(3))
    lines = drawn(width, *jobs_page(jobs, {}, CPU, 90_000))
    assert sum(line.startswith(JOB) for line in lines) == 3
    assert [line for line in lines if not line.startswith((JOB, "JOB", "(no room", "Devices here"))] == []
    metrics = {"val_loss_first": 6.95241, "val_loss_final": 6.18019, "tokens": 40_960.0}
    lines = drawn(width, *models_page((model_view(metrics=metrics), model_view(metrics=metrics))))
    assert [line[:7] for line in lines if line[:1] != "("] == ["MODEL  ", "tiny-lm", "tiny-lm"]
    lines = drawn(width, *job_page(keeping(2, checkpoint(5), checkpoint(10)), "succeeded", CPU))
    start = lines.index("Checkpoints")
    assert [line.split()[0] for line in lines[start + 1 : start + 4]] == ["STEP", "5", "10"]
    assert all("step-000000" in line for line in lines[start + 2 : start + 4])
    start = lines.index("Attempts")
    assert [line.split()[0] for line in lines[start + 1 : start + 4]] == ["ATTEMPT", f"{JOB}.1", f"{JOB}.2"]
    lines = drawn(width, *status_page(status_view()))
    assert lines[lines.index("Nodes") + 2].split()[:2] == ["node-a", "up"]


def test_a_narrow_table_names_what_it_leaves_out_and_cuts_the_rest() -> None:
    rows = [("a" * 10, "b" * 10, "/one/two/three/four/five/six/seven")]
    lines = drawn(40, Grid(("A", "B", "PATH"), rows, drop=("B",), cut="PATH"))
    assert lines[1].split()[1] == "…" + "/one/two/three/four/five/six/seven"[-27:] and len(lines[1]) == 40
    assert len(lines) == 4
    assert lines[2] == "(no room for B, all of PATH; -o json has"
    assert lines[3] == "all)"
    assert len(drawn(200, Grid(("A", "B", "PATH"), rows, drop=("B",), cut="PATH"))) == 2


def test_a_cell_that_is_cut_is_said_to_be_and_a_bar_is_left_out_whole() -> None:
    """A bar whose end is missing is a wrong figure."""
    long = drawn(60, Grid(("A", "WHY"), [("a", "x" * 80)], cut="WHY"))
    assert long[1].endswith("…") and long[2] == "(no room for all of WHY; -o json has all)"
    assert len(drawn(100, Grid(("A", "WHY"), [("a", "x" * 80)], cut="WHY"))) == 2
    bars = Grid(("CATEGORY", "", "SHARE"), [("idle", "█" * 24, "68 %")], drop=("",))
    assert drawn(30, bars) == ["CATEGORY  SHARE", "idle      68 %"]
    assert "█" * 24 in drawn(60, bars)[1]


def test_a_pipe_gets_every_column_in_full() -> None:
    file = io.StringIO()
    Console(file=file, width=60).print(Grid(("A", "PATH"), [("a", "x" * 120)], drop=("A",), cut="PATH"))
    assert file.getvalue().count("x") == 120 and "…" not in file.getvalue()


def test_only_checkpoints_that_can_still_exist_are_listed() -> None:
    again = checkpoint(10, attempt=2, at_ms=99)
    assert kept_checkpoints(keeping(2, checkpoint(5), checkpoint(10), again)) == [checkpoint(5), again]
    view = keeping(2, checkpoint(5), checkpoint(10), again, checkpoint(15, attempt=2, at_ms=100))
    assert [one.step for one in kept_checkpoints(view)] == [10, 15]
    assert "  (older ones were removed by keep_last)" in drawn(200, *job_page(view, "succeeded", CPU))
    whole = drawn(200, *job_page(keeping(3, checkpoint(5), checkpoint(10), again), "succeeded", CPU))
    assert "  (older ones were removed by keep_last)" not in whole


def test_checkpoints_that_another_rule_keeps_are_listed_or_said_to_be_elsewhere() -> None:
    saved = [checkpoint(step) for step in (5, 10, 15, 20)]
    assert [one.step for one in kept_checkpoints(keeping(1, *saved, keep_every=10))] == [10, 20]
    drawn_best = " ".join(drawn(200, *job_page(keeping(1, *saved, keep_best=2), "succeeded", CPU)))
    assert f"`phalanx checkpoint ls {JOB}` shows which are the best 2" in drawn_best


def test_a_job_that_saves_as_often_as_pays_says_what_it_goes_by() -> None:
    said = "every 37 steps by now; a failure every 3.0 h is expected (2 failures in 12.0 node-hours)"
    rows = [line.split() for line in drawn(200, *job_page(job_view(saves=said), "succeeded", CPU))]
    assert ["Saves", *said.split()] in rows
    assert not any(row[:1] == ["Saves"] for row in map(str.split, drawn(200, *job_page(job_view(), "succeeded", CPU))))


@pytest.mark.parametrize("width", range(30, 200, 7))
def test_the_live_line_is_one_line_at_every_width(width: int) -> None:
    for view in (
        job_view(progress=at_progress(mfu=0.31)),
        job_view(progress=None),
        job_view(progress=None, state="pending", attempts=()),
        finished_view(),
    ):
        assert len(drawn(width, LiveLine(view, 90_000))) == 1


def test_the_live_line_gives_up_the_bar_then_mfu_then_the_speed() -> None:
    view = job_view(progress=at_progress(mfu=0.31))
    shown = {width: drawn(width, LiveLine(view, 90_000))[0] for width in (160, 110, 84, 70)}
    found = {width: [part in text for part in ("━", "MFU", "tokens/s", "ETA")] for width, text in shown.items()}
    assert found == {
        160: [True, True, True, True],
        110: [False, True, True, True],
        84: [False, False, True, True],
        70: [False, False, False, True],
    }


def test_a_job_without_steps_has_its_state_and_time_and_no_bar() -> None:
    (text,) = drawn(120, LiveLine(job_view(progress=None, restarts=0), 63_000))
    assert text.split("  ") == [JOB, "running for 1m 00s"]
    (waiting,) = drawn(120, LiveLine(job_view(progress=None, restarts=0, state="pending", attempts=()), 11_000))
    assert waiting.split("  ") == [JOB, "pending for 10.0s"]


def test_a_finished_job_has_no_time_left() -> None:
    assert "ETA" not in drawn(200, LiveLine(finished_view(), 90_000))[0]
    assert not [line for line in drawn(200, *job_page(finished_view(), "succeeded", CPU)) if line.startswith("  ETA ")]


def test_what_was_found_wrong_has_a_section_of_its_own() -> None:
    said = "loss 9 at step 47: update skipped"
    found = FindingView(attempt=AttemptId(f"{JOB}.1"), kind="spike", step=47, sentence=said, at_ms=0)
    lines = drawn(120, *job_page(finished_view(findings=(found,)), "succeeded", CPU))
    row = lines[lines.index("Health") + 2]
    assert row.split()[:3] == ["spike", "47", f"{JOB}.1"] and row.endswith(said)
    assert "Health" not in drawn(120, *job_page(finished_view(), "succeeded", CPU))
