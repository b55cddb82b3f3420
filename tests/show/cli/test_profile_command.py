"""`phalanx profile` as people type it, against a recorded answer."""

import json
from dataclasses import replace
from typing import Any

import pytest

from phalanx.core import wire
from phalanx.core.ids import AttemptId
from phalanx.core.profile import BubbleView, BusyOperator, ProfileView, RankProfile
from phalanx.core.trace_request import MissedView, TraceRequestView, TracesAsked
from tests.recorded import JOB, refusal, said
from tests.show.cli.terminal import Terminal


def rank(number: int, exposed_ms: float, **changes: Any) -> RankProfile:
    plain = RankProfile(
        rank=number, wall_ms=100, data_wait_ms=1.5, communication_ms=30, exposed_communication_ms=exposed_ms, optimizer_ms=4,
        checkpoint_ms=0, copy_ms=0, bubble_ms=0, mfu=0.5, trace=f"profile/rank-{number}-steps-7-8.trace.json.gz",
    )  # fmt: skip
    return replace(plain, **changes)


VIEW = ProfileView(
    job=JOB, attempt=f"{JOB}.2", first=7, last=8, on_gpu=True, whole=rank(-1, 15), ranks=(rank(0, 10), rank(1, 20)),
    busiest=(BusyOperator(name="nvjet_tst_\x1b[2J128x256", calls=48, total_ms=70, share=0.7),),
)  # fmt: skip


def test_each_rank_has_a_line_and_all_of_them_one(terminal: Terminal) -> None:
    terminal.server.view(f"/jobs/{JOB}/profile", ProfileView, VIEW)
    shown = terminal("profile", JOB, "--attempt", "2", "--first", "7")
    assert shown.code == 0, shown.err
    assert dict(terminal.server.asked[-1].query) == {"attempt": "2", "first": "7"}
    lines = shown.out.splitlines()
    assert lines[0] == f"{JOB}.2, steps 7 to 8 of 2 ranks; milliseconds a step, and shares of it"
    assert [line.split()[0] for line in lines[1:5]] == ["RANK", "0", "1", "all"]
    assert "20.00  20.0%" in lines[3] and "1.50   1.5%" in lines[3] and lines[3].endswith("50.0%")
    assert "70.0%  70.00     48  nvjet_tst_" in shown.out and "\x1b" not in shown.out, "names come from anywhere"
    assert lines[-1] == f"phalanx artifacts get {JOB} profile/rank-0-steps-7-8.trace.json.gz   # for https://ui.perfetto.dev"


def test_of_many_ranks_those_are_shown_that_wait_most_for_others(terminal: Terminal) -> None:
    many = tuple(rank(number, number) for number in range(40))
    terminal.server.view(f"/jobs/{JOB}/profile", ProfileView, replace(VIEW, ranks=many, busiest=(), unread=(41,), others=((3, 4),)))
    out = terminal("profile", JOB).out
    assert "Shown are the 16 ranks of most exposed communication; -o json has all." in out
    shown = [line.split()[0] for line in out.splitlines() if "100.00" in line]
    assert shown == [*map(str, range(24, 40)), "all"]
    assert "The summary of rank 41 cannot be read; it is left out." in out and "Also traced: steps 3 to 4 (--first)." in out


def test_a_bubble_stands_beside_its_formula_and_json_has_all(terminal: Terminal) -> None:
    bubble = BubbleView(schedule="1f1b", num_ranks=4, num_microbatches=8, stages_per_rank=1, measured_ms=9.5, formula_ms=9.0)
    other = replace(bubble, schedule="zbv", formula_ms=None)
    answers = [replace(VIEW, bubble=bubble), replace(VIEW, bubble=other), VIEW]
    terminal.server.view(f"/jobs/{JOB}/profile", ProfileView, *answers)
    assert "Bubble of 1f1b over 4 ranks, 8 microbatches: 9.50 ms; 9.00 ms by its formula" in terminal("profile", JOB).out
    assert "no formula for passes like these" in terminal("profile", JOB).out
    assert wire.build(ProfileView, json.loads(terminal("profile", JOB, "-o", "json").out)) == VIEW


ASKED = TraceRequestView(
    job=JOB, attempt=AttemptId(f"{JOB}.2"), number=3, first=40, last=44, ranks=(), by="admin", at_ms=1, at_step=20, traced=0,
    missed=(), left=(0, 1), ended=False,
)  # fmt: skip
LATE = MissedView(rank=1, why="it was at step 41 when it heard of steps 40 to 44")


@pytest.fixture
def asked(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A job that has just been asked, and a client that does not rest."""
    monkeypatch.setattr("phalanx.client.api.Client.rest", lambda client, seconds: None)
    terminal.server.on("POST", f"/jobs/{JOB}/profile", said(TraceRequestView, ASKED))
    terminal.server.view(f"/jobs/{JOB}/profile", ProfileView, replace(VIEW, first=40, last=44))
    return terminal


def comes_on(terminal: Terminal, *views: TraceRequestView) -> None:
    terminal.server.view(f"/jobs/{JOB}/profile/request", TraceRequestView, *views)


def test_a_running_job_is_asked_and_what_its_ranks_leave_is_shown(asked: Terminal) -> None:
    near, making = replace(ASKED, at_step=39), replace(ASKED, at_step=41)
    comes_on(
        asked, ASKED, near, making, replace(making, at_step=45), replace(making, at_step=46, traced=1, left=(), missed=(LATE,))
    )
    shown = asked("profile", JOB, "--steps", "5")
    assert shown.code == 0, shown.err
    assert wire.loads(TracesAsked, asked.server.asked[0].body) == TracesAsked(steps=5)
    assert dict(asked.server.asked[1].query) == {"attempt": f"{JOB}.2", "number": "3"}
    assert dict(asked.server.asked[-1].query) == {"attempt": f"{JOB}.2", "first": "40"}
    assert shown.err.splitlines() == [
        f"Steps 40 to 44 of {JOB}.2 will be traced on all ranks. It is at step 20.",
        "Steps 40 to 44 are being made",
        "0 of 2 traces are summed up",
        "1 of 1 traces are summed up",
        f"rank 1 leaves no trace: {LATE.why}",
    ]
    assert shown.out.splitlines()[0].startswith(f"{JOB}.2, steps 40 to 44 of 2 ranks")


def test_without_a_wait_and_as_json_it_is_the_request_or_the_profile_alone(asked: Terminal) -> None:
    shown = asked("profile", JOB, "--steps", "5", "--rank", "1", "--rank", "0", "--no-wait", "-o", "json")
    assert wire.build(TraceRequestView, json.loads(shown.out)) == ASKED and shown.err == ""
    assert wire.loads(TracesAsked, asked.server.asked[0].body).ranks == (1, 0)
    told = asked("profile", JOB, "--steps", "5", "--no-wait").out
    assert told == f"Steps 40 to 44 of {JOB}.2 will be traced on all ranks. `phalanx profile {JOB} --first 40` shows them then.\n"
    assert asked.server.paths("GET") == []
    comes_on(asked, replace(ASKED, traced=2, left=(), at_step=50))
    assert json.loads(asked("profile", JOB, "--steps", "5", "-o", "json").out)["first"] == 40


@pytest.mark.parametrize(
    ("views", "code", "says"),
    [
        ((ASKED, replace(ASKED, ended=True)), 2, f"{JOB}.2 ended before steps 40 to 44 were traced"),
        ((replace(ASKED, at_step=41, left=(), missed=(LATE,)),), 2, "no rank leaves a trace of steps 40 to 44; ask again"),
        ((replace(ASKED, at_step=44),), 5, "is it a script without phalanx.run()?"),
    ],
)
def test_where_nothing_comes_of_it_that_is_said(
    asked: Terminal, monkeypatch: pytest.MonkeyPatch, views: tuple[TraceRequestView, ...], code: int, says: str
) -> None:
    monkeypatch.setattr("phalanx.client.following.WRITTEN_S_MAX", 0.05)
    comes_on(asked, *views)
    shown = asked("profile", JOB, "--steps", "5")
    assert (shown.code, shown.out) == (code, "") and says in shown.err


def test_what_cannot_be_asked_is_refused_before_or_by_the_server(asked: Terminal) -> None:
    for options, says in (
        (["--steps", "0"], "steps is 0: write 1 to 100 steps"),
        (["--steps", "2", "--rank", "-1"], "ranks is -1"),
        (["--steps", "2", "--attempt", "1"], "--attempt is 1"),
        (["--steps", "2", "--first", "7"], "--first is 7"),
        (["--rank", "2"], "--rank is 2: is of traces that a running job is asked for"),
        (["--no-wait"], "--no-wait: is of traces that a running job is asked for"),
    ):
        shown = asked("profile", JOB, *options)
        assert (shown.code, asked.server.asked) == (2, []) and says in shown.err, shown.err
    asked.server.on("POST", f"/jobs/{JOB}/profile", refusal(409, "job", JOB, "it is pending; ask for traces while it runs"))
    shown = asked("profile", JOB, "--steps", "2")
    assert shown.code == 2 and "it is pending" in shown.err


def test_ranks_that_left_nothing_are_named_beside_what_there_is(asked: Terminal) -> None:
    comes_on(asked, replace(ASKED, at_step=60, traced=1, left=(1,), ended=True))
    shown = asked("profile", JOB, "--steps", "5")
    assert shown.code == 0 and shown.err.splitlines()[-1] == "rank 1 left nothing before the attempt ended"


def test_ctrl_c_stops_watching_and_no_rank(asked: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(client: object, seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("phalanx.client.api.Client.rest", interrupted)
    shown = asked("profile", JOB, "--steps", "5")
    assert shown.code == 130 and f"`phalanx profile {JOB} --first 40` shows what they leave" in shown.err
