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
    assert "1 damaged blocks" in shown.out


def test_a_fault_is_named_and_ends_with_1(terminal: Terminal, tmp_path: Path) -> None:
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
