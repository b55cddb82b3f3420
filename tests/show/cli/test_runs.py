"""`runs ls`, `show`, `compare`: what people read of tracked runs, and what is asked for it."""

import dataclasses
import json

from phalanx.core.ids import JobId
from phalanx.core.use_views import RunView
from tests.show.cli.terminal import Terminal

ONE = RunView(
    run=JobId("tiny-1"),
    name="tiny",
    project="speech",
    state="succeeded",
    user="ada",
    config={"lr": 0.1, "model": {"size": "7b", "layers": 2}, "seed": "7", "same": [1, 2]},
    config_hash="aa" * 32,
    code="",
    started_ms=1_000_000,
    finished_ms=1_000_000 + 90_000,
    attempts=2,
    step=1_000,
    total_steps=1_000,
    loss=2.5,
    model="tiny:3",
)
TWO = dataclasses.replace(
    ONE,
    run=JobId("tiny-2"),
    state="running",
    config={"lr": 0.3, "model": {"size": "7b"}, "seed": 7, "same": [1, 2]},
    finished_ms=None,
    step=0,
    loss=None,
    model=None,
)


def test_runs_are_listed_as_the_server_gives_them(terminal: Terminal) -> None:
    terminal.server.view("/runs", tuple[RunView, ...], (TWO, ONE))
    out = terminal("runs", "ls", "--project", "speech", "--limit", "7").out
    assert out.index("tiny-2") < out.index("tiny-1")
    assert "1,000 of 1,000" in out and "2.5000" in out and "tiny:3" in out
    assert terminal.server.asked[-1].query == {"project": "speech", "limit": "7"}
    terminal.server.view("/runs", tuple[RunView, ...], ())
    assert "No job of project speech has begun yet." in terminal("runs", "ls", "--project", "speech").out
    assert "No job has begun yet." in terminal("runs", "ls").out


def test_a_run_shows_all_that_it_was_configured_with(terminal: Terminal) -> None:
    terminal.server.view("/runs/tiny-1", RunView, ONE)
    shown = [line.split(maxsplit=1) for line in terminal("runs", "show", "tiny-1").out.splitlines() if line.strip()]
    assert ["model.size", "7b"] in shown and ["model.layers", "2"] in shown
    assert ["seed", '"7"'] in shown, "a text that reads as a number is told from one"
    assert json.loads(terminal("runs", "show", "tiny-1", "-o", "json").out)["config"] == ONE.config


def test_runs_are_compared_by_what_differs(terminal: Terminal) -> None:
    for run in (ONE, TWO):
        terminal.server.view(f"/runs/{run.run}", RunView, run)
    out = terminal("runs", "compare", "tiny-1", "tiny-2", "tiny-1").out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert rows["lr"] == ["0.1", "0.3"]
    assert rows["model.layers"] == ["2", "-"]
    assert rows["seed"] == ['"7"', "7"]
    assert rows["State"] == ["succeeded", "running"]
    assert "same" not in rows and "model.size" not in rows
    assert "2 of 5 hyperparameters are the same in all" in out
    assert "model.size" in terminal("runs", "compare", "tiny-1", "tiny-2", "--all").out
    found = json.loads(terminal("runs", "compare", "tiny-2", "tiny-1", "-o", "json").out)
    assert [run["run"] for run in found] == ["tiny-2", "tiny-1"]


def test_one_run_is_no_comparison(terminal: Terminal) -> None:
    refused = terminal("runs", "compare", "tiny-1", "tiny-1")
    assert (refused.code, "name 2 to 20 different runs" in refused.err) == (2, True)
    assert terminal.server.asked == []
