"""pause, resume, retry; and what a paused job looks like wherever a job is looked at."""

import json

import pytest

from phalanx.core import wire
from phalanx.core.messages import RankExit
from phalanx.core.views import JobView, StatusView, WhyView
from tests.recorded import JOB, attempt_view, finished_view, job_view, refusal, said, status_view, why_view
from tests.show.cli.terminal import Terminal

STOPPED = attempt_view(2, ended_ms=9_000, detail="paused", exits=(RankExit(0, -15, 8_900), RankExit(1, -15, 8_800)))
MOVED = attempt_view(2, ended_ms=9_000, detail="moved off a drained node", exits=STOPPED.exits)
PAUSED = job_view(state="paused", why="paused; `phalanx resume` lets it go on", attempts=(STOPPED,), detail="paused", progress=None)
WAITING = job_view(state="pending", why="waits for devices", attempts=(STOPPED,), progress=None)
LINE = f"{JOB} is paused: it holds no devices, and `phalanx resume {JOB}` lets it go on from its last checkpoint"


@pytest.mark.parametrize(
    ("verb", "view", "line"),
    [
        ("pause", job_view(state="stopping"), f"{JOB} lets go of its devices; `phalanx resume {JOB}` once it is paused"),
        ("pause", PAUSED, LINE),
        ("resume", WAITING, f"{JOB} waits for devices again"),
        ("resume", job_view(), f"{JOB} is running"),
        ("retry", WAITING, f"{JOB} waits for devices again"),
        ("retry", job_view(state="pending", attempts=(), why="waits for nodes"), f"{JOB} waits for nodes"),
    ],
)
def test_each_says_where_the_job_is_now(terminal: Terminal, verb: str, view: JobView, line: str) -> None:
    terminal.server.on("POST", f"/jobs/{JOB}/{verb}", said(JobView, view))
    shown = terminal(verb, JOB)
    assert (shown.code, shown.out, shown.err) == (0, f"{line}\n", "")
    assert json.loads(terminal(verb, JOB, "-o", "json").out) == wire.plain(tuple[JobView, ...], (view,))


@pytest.mark.parametrize("verb", ["pause", "resume", "retry"])
def test_several_jobs_get_an_answer_or_an_error_each_and_the_first_errors_code(terminal: Terminal, verb: str) -> None:
    terminal.server.on("POST", f"/jobs/{JOB}/{verb}", said(JobView, PAUSED))
    terminal.server.on("POST", f"/jobs/done-1/{verb}", refusal(409, "job", "done-1", "it has finished", title="Conflict"))
    shown = terminal(verb, "done-1", JOB, "../etc", JOB)
    assert (shown.code, shown.out) == (2, f"{LINE}\n")
    assert shown.err.splitlines() == [
        "Error: job is 'done-1': it has finished",
        "Error: job is '../etc': no such job; `phalanx ls` shows their ids, such as tiny-lm-7",
    ]
    assert terminal.server.paths("POST") == [f"/jobs/done-1/{verb}", f"/jobs/{JOB}/{verb}"]
    assert terminal(verb, "nope-1", JOB).code == 4
    as_json = terminal(verb, "done-1", JOB, "-o", "json")
    assert [one["id"] for one in json.loads(as_json.out)] == [JOB]
    assert as_json.err.startswith("Error: job is 'done-1'")


def test_without_a_job_it_says_what_is_missing(terminal: Terminal) -> None:
    shown = terminal("pause")
    assert (shown.code, shown.out) == (2, "")
    assert "JOB" in shown.err


def test_a_server_that_is_away_ends_it_at_once(terminal: Terminal) -> None:
    shown = terminal("pause", JOB, "b-2", "--home", str(terminal.home / "none"))
    assert (shown.code, len(shown.err.splitlines())) == (3, 1)


def test_a_paused_job_is_shown_as_paused_and_blames_no_rank(terminal: Terminal) -> None:
    terminal.server.view("/jobs", tuple[JobView, ...], (PAUSED,))
    terminal.server.view(f"/jobs/{JOB}", JobView, PAUSED)
    terminal.server.view("/status", StatusView, status_view())
    terminal.server.view(f"/jobs/{JOB}/why", WhyView, why_view(state="paused", sentence="paused; `phalanx resume` lets it go on"))
    row = terminal("ls", "--state", "paused").out.splitlines()[1]
    assert "paused; `phalanx resume`" in row and "rank" not in row
    for command in ("describe", "why"):
        out = terminal(command, JOB).out
        assert "paused" in out and "phalanx logs" not in out


def test_a_job_that_was_moved_off_a_node_blames_no_rank_either(terminal: Terminal) -> None:
    terminal.server.view(f"/jobs/{JOB}", JobView, job_view(state="pending", attempts=(MOVED,)))
    terminal.server.view(f"/jobs/{JOB}/why", WhyView, why_view(state="pending", sentence="waits for devices"))
    assert terminal("why", JOB).out == f"{JOB} is pending: waits for devices\n"


def test_why_says_paused_once(terminal: Terminal) -> None:
    terminal.server.view(f"/jobs/{JOB}", JobView, PAUSED)
    terminal.server.view(f"/jobs/{JOB}/why", WhyView, why_view(state="paused", sentence="paused; `phalanx resume` lets it go on"))
    assert terminal("why", JOB).out == f"{JOB} is paused; `phalanx resume` lets it go on\n"


def test_a_follower_of_a_paused_job_ends_and_says_how_to_go_on(terminal: Terminal) -> None:
    terminal.server.view(
        f"/jobs/{JOB}", JobView, job_view(), job_view(state="stopping", why="stops since somebody paused it"), PAUSED
    )
    shown = terminal("follow", JOB)
    assert shown.code == 5
    lines = shown.out.splitlines()
    assert lines[-1] == f"{LINE}; then `phalanx follow {JOB}`"
    assert f"{JOB} stops since somebody paused it" in lines
    assert not [one for one in lines if one.startswith("Last lines")]


def test_following_a_job_that_is_paused_already_does_not_hang(terminal: Terminal) -> None:
    terminal.server.view(f"/jobs/{JOB}", JobView, PAUSED)
    shown = terminal("follow", JOB, "-o", "json")
    assert (shown.code, json.loads(shown.out)["state"]) == (5, "paused")


def test_wait_goes_on_while_a_job_is_paused(terminal: Terminal) -> None:
    terminal.server.view(f"/jobs/{JOB}", JobView, PAUSED)
    shown = terminal("wait", JOB, "--timeout", "10ms")
    assert shown.code == 5
    assert f"is still paused after 0.01 s; `phalanx resume {JOB}` lets it go on" in shown.err
    terminal.server.view(f"/jobs/{JOB}", JobView, PAUSED, finished_view())
    assert terminal("wait", JOB).code == 0
