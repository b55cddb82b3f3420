"""`phalanx data audit`: a verdict in one line, who read what, and exit code 1 where it was not each sample once."""

import dataclasses
import json
from pathlib import Path

from phalanx.core.views import JobView
from tests.recorded import JOB, finished_view
from tests.show.cli.terminal import Terminal


def test_what_is_complete_is_said_in_one_line(terminal: Terminal, tmp_path: Path) -> None:
    shown = terminal("data", "audit", str(tmp_path))
    lines = shown.out.splitlines()
    assert (shown.code, lines[0], shown.err) == (0, "Complete: 48 samples, each delivered exactly once", "auditing\n")
    assert [line.split() for line in lines if line.startswith("te\\x1b")] == [["te\\x1b[31mxt", "48", "1", "18", "2"]]
    assert lines[-2:] == ["      1           0      3  1 to 2           2", "      2           0      4  3 to 4           -"]
    assert "1 damaged block\n" in shown.out


def test_a_fault_is_named_and_ends_with_1(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "damaged").mkdir()
    shown = terminal("data", "audit", str(tmp_path / "damaged"))
    assert shown.code == 1
    assert shown.out.startswith("NOT COMPLETE: step 5 of attempt 2, generation 0: rank 1 was given sample 7 of te\\x1b[31mxt")
    found = terminal("data", "audit", str(tmp_path / "damaged"), "-o", "json")
    assert (found.code, json.loads(found.out)["fault"]["sample"]) == (1, 9)


def test_a_job_is_looked_for_where_it_saves(terminal: Terminal, tmp_path: Path) -> None:
    job = dataclasses.replace(finished_view(), checkpoints_at=str(tmp_path / "checkpoints"))
    terminal.server.view(f"/jobs/{JOB}", JobView, job)
    shown = terminal("data", "audit", JOB, "--no-contents", "-o", "json")
    assert json.loads(shown.out)["contents"] == f"not compared: {tmp_path}"
    terminal.server.view(f"/jobs/{JOB}", JobView, dataclasses.replace(job, checkpoints_at="/nowhere/jobs/x/checkpoints"))
    away = terminal("data", "audit", JOB)
    assert away.code == 4 and "is not on this machine" in away.err


def test_a_job_has_to_have_recorded_its_last_step(terminal: Terminal, tmp_path: Path) -> None:
    """Of a recipe; a script counts its steps as it likes, and a run that goes on may still go anywhere."""
    job = dataclasses.replace(finished_view(), checkpoints_at=str(tmp_path / "checkpoints"))
    recipe = dataclasses.replace(job, spec={**job.spec, "recipe": "llama"})
    runs = dataclasses.replace(recipe, outcome=None)
    for view, end in (
        (recipe, f"{JOB} ended with 37, the newest checkpoint is of 20"),
        (runs, f"{JOB} has not ended 0, the newest checkpoint is of 20"),
        (dataclasses.replace(recipe, outcome="failed", checkpoints=()), f"{JOB} has not succeeded 0"),
        (job, ""),
    ):
        terminal.server.view(f"/jobs/{JOB}", JobView, view)
        assert json.loads(terminal("data", "audit", JOB, "-o", "json").out)["end"] == end


def test_a_verdict_on_a_run_of_unknown_end_says_up_to_where(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "running").mkdir()
    shown = terminal("data", "audit", str(tmp_path / "running"))
    assert (shown.code, shown.out.splitlines()[0]) == (0, "Complete up to step 4: 48 samples, each delivered exactly once")


def test_damaged_data_ends_with_1_and_a_verdict_on_the_order(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "flipped").mkdir()
    shown = terminal("data", "audit", str(tmp_path / "flipped"))
    assert shown.code == 1
    assert shown.out.startswith("Complete in its order, and the data is damaged: 48 samples, each delivered exactly once\n")


def test_why_a_job_recorded_nothing_is_said(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    script = dataclasses.replace(finished_view(), checkpoints_at=str(tmp_path / "empty" / "checkpoints"))
    recipe = dataclasses.replace(script, spec={**script.spec, "recipe": "llama"})
    unrecorded = dataclasses.replace(recipe, spec={**recipe.spec, "data": {"path": "data", "record": False}})
    waiting = dataclasses.replace(recipe, outcome=None, progress=None)
    failed, ended = (dataclasses.replace(waiting, outcome=outcome) for outcome in ("failed", "cancelled"))
    for view, why in (
        (script, "runs a script"), (unrecorded, "says `record: false`"), (waiting, "has not made a step yet"),
        (failed, f"{JOB} failed before its first step; see `phalanx why {JOB}`"), (ended, "was cancelled before its first step"),
        (dataclasses.replace(waiting, checkpoints_at="/nowhere/jobs/x/checkpoints"), "has not made a step yet"),
    ):  # fmt: skip
        terminal.server.view(f"/jobs/{JOB}", JobView, view)
        shown = terminal("data", "audit", JOB)
        assert (shown.code, shown.out) == (2, "") and why in shown.err, shown.err


def test_a_folder_that_is_not_there_is_said_to_be(terminal: Terminal, tmp_path: Path) -> None:
    shown = terminal("data", "audit", f"{tmp_path}/absent")
    assert (shown.code, shown.out) == (4, "") and "absent': is not there; name the folder of a job" in shown.err
