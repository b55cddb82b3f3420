"""`phalanx profile` as people type it, against a recorded answer."""

import json
from dataclasses import replace
from typing import Any

from phalanx.core import wire
from phalanx.core.profile import BubbleView, BusyOperator, ProfileView, RankProfile
from tests.recorded import JOB
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
