"""`--clusters`: pages and errors, against one recorded cluster and one that is not there."""

import json
from pathlib import Path

import pytest

from phalanx.core.clusters import DispatchView, OfferView
from phalanx.core.views import JobView, PlanView
from phalanx.show.cli.clusters_page import clusters_page
from phalanx.show.cli.output import show
from tests.recorded import JOB, Asked, Said, job_view, refusal, said, write_home
from tests.show.cli.terminal import Terminal
from tests.show.cli.test_plan import DAY, plan_view


@pytest.fixture
def spec(tmp_path: Path) -> str:
    file = tmp_path / "job.yaml"
    file.write_text("name: mine\nentrypoint: 'true'\n")
    return str(file)


def write(terminal: Terminal, text: str = "clusters: {lab: {home: .}, gone: {home: nowhere}}") -> None:
    (terminal.home / "clusters.yaml").write_text(text)


def test_the_page_has_the_parts_of_each_cost_and_who_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    offer = OfferView(
        cluster="cloud", verdict="chosen", sentence="starts", region="us", start_ms=DAY, ready_ms=DAY,
        done_ms=DAY + 7_200_000, late_ms=600_000, moved_bytes=2**40, cost=99.0, cost_of_devices=6.0, cost_of_data=90.5,
        cost_of_delay=2.5,
    )  # fmt: skip
    gone = OfferView(cluster="gone", verdict="away", sentence="does not answer\x1b[2J")
    show(
        clusters_page(DispatchView(job="mine", chosen="cloud", offers=(offer, gone), run_ms=7_200_000, as_of_ms=DAY, notes=("so",)))
    )
    assert capsys.readouterr().out.splitlines() == [
        "mine: cloud is the best of 2 clusters.",
        "",
        "Offers, in USD for 2h 00m",
        "  CLUSTER  REGION  STARTS (UTC)         DONE (UTC)              LATE   MOVES  DEVICES   DATA  DELAY   COST  WHY",
        "  cloud    us      2026-11-28 00:00:00  2026-11-28 02:00:00  10m 00s  1.1 TB     6.00  90.50   2.50  99.00  starts",
        "",
        "Left out",
        "  gone  does not answer\\x1b[2J",
        "(so)",
    ]


def test_an_end_that_no_calendar_has_is_told_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    far = OfferView(cluster="slow", verdict="chosen", sentence="starts", start_ms=DAY, done_ms=10**25, cost=1.0)
    show(clusters_page(DispatchView(job="mine", chosen="slow", offers=(far,), run_ms=1, as_of_ms=DAY)))
    assert "2026-11-28 00:00:00  beyond year 9999" in capsys.readouterr().out


def test_the_chosen_one_gets_the_job_and_what_is_away_is_named(terminal: Terminal, spec: str) -> None:
    write(terminal)
    terminal.server.on("POST", "/plan", said(PlanView, plan_view()))
    terminal.server.on("POST", "/jobs", said(JobView, job_view(state="pending", attempts=())))
    shown = terminal("submit", spec, "--clusters", "all")
    assert (shown.code, "mine: lab is the best of 1 cluster." in shown.out, f"Submitted {JOB}" in shown.out) == (0, True, True)
    assert f"gone  no platform runs in {terminal.home}/nowhere\n" in shown.out
    assert f"Look at it with `PHALANX_CLUSTER=lab phalanx follow {JOB}`" in shown.out, "it would be another job elsewhere"
    assert shown.err == "It goes to lab: with PHALANX_CLUSTER=lab every command speaks to that one.\n"
    assert json.loads(terminal("submit", spec, "--clusters", "lab", "-o", "json").out)["id"] == JOB


def test_a_server_that_fails_is_left_out_like_one_that_is_away(terminal: Terminal, spec: str) -> None:
    write(terminal)
    terminal.server.on("POST", "/plan", refusal(500, detail="a bug in Phalanx; the log has it"))
    shown = terminal("submit", spec, "--clusters", "lab")
    assert (
        shown.code,
        "none of the clusters answers: lab: the server failed (500: a bug in Phalanx; the log has it)\n" in shown.err,
    ) == (3, True)


def test_a_lost_answer_is_told_with_where_to_look_and_no_other_cluster_is_tried(terminal: Terminal, spec: str) -> None:
    write(terminal)
    terminal.server.on("POST", "/plan", said(PlanView, plan_view()))
    terminal.server.on("POST", "/jobs", refusal(502, detail="the proxy gave up"))
    shown = terminal("submit", spec, "--clusters", "all")
    assert shown.code == 3
    assert "The job may have been submitted: look at `PHALANX_CLUSTER=lab phalanx ls` before you submit it again.\n" in shown.err
    keys = {json.loads(one.body)["key"] for one in terminal.server.asked if one.path.endswith("/jobs")}
    assert len(keys) == 1, "the same submit, tried again"


def test_a_follower_names_the_way_back_to_that_cluster(terminal: Terminal, spec: str) -> None:
    write(terminal)
    terminal.server.on("POST", "/plan", said(PlanView, plan_view()))
    paused = job_view(state="paused", attempts=())
    terminal.server.on("POST", "/jobs", said(JobView, paused))
    terminal.server.view(f"/jobs/{JOB}", JobView, paused)
    shown = terminal("submit", spec, "--clusters", "lab", "-f")
    assert (shown.code, f"; then `PHALANX_CLUSTER=lab phalanx follow {JOB}`" in shown.out) == (5, True)


def test_what_was_never_sent_was_not_submitted(terminal: Terminal, spec: str) -> None:
    write_home(terminal.home, "http://127.0.0.1:9")
    shown = terminal("submit", spec)
    assert (shown.code, "may have been submitted" in shown.err) == (3, False)


def test_the_job_goes_to_the_cluster_that_was_asked_whatever_the_file_says_by_then(terminal: Terminal, spec: str) -> None:
    write(terminal)

    def plan(asked: Asked) -> Said:
        write(terminal, "clusters: {other: {home: .}}")
        return said(PlanView, plan_view())

    terminal.server.on("POST", "/plan", plan)
    terminal.server.on("POST", "/jobs", said(JobView, job_view(state="pending", attempts=())))
    assert terminal("submit", spec, "--clusters", "lab").code == 0


def test_a_job_that_comes_after_another_goes_where_that_one_is(terminal: Terminal, spec: str) -> None:
    write(terminal)
    shown = terminal("plan", spec, "--set", "after=[other-1]", "--clusters", "all")
    assert (shown.code, "after is 'other-1': is of one cluster" in shown.err) == (2, True)
    terminal.server.on("POST", "/plan", said(PlanView, plan_view()))
    assert terminal("plan", spec, "--set", "after=[other-1]", "--clusters", "lab").code == 0


def test_a_named_cluster_is_spoken_to(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    write(terminal)
    terminal.server.view("/jobs", tuple[JobView, ...], ())
    monkeypatch.setenv("PHALANX_CLUSTER", "lab")
    assert terminal("ls", "-o", "json").out == "[]\n"
    monkeypatch.setenv("PHALANX_CLUSTER", "lap")
    other = terminal("ls")
    assert (other.code, other.err) == (4, "Error: PHALANX_CLUSTER is 'lap': is not in clusters.yaml, which has lab, gone\n")


@pytest.mark.parametrize(
    ("text", "asked", "code", "words"),
    [
        ("clusters: {lab: {home: .}}", "", 2, "--clusters is '': is not in clusters.yaml"),
        ("clusters: {lab: {home: .}}", "lap", 2, "--clusters is 'lap': is not in clusters.yaml; did you mean 'lab'?"),
        ("clusters: {gone: {home: nowhere}}", "all", 3, "none of the clusters answers: gone: no platform runs in "),
        (
            "clusters: {a: {url: 'http://127.0.0.1:9', token_file: no}}",
            "a",
            2,
            "none of them takes the job: a: clusters.a.token_file is ",
        ),
        ("clusters: {a: {url: 'http://far.example', token_file: no}}", "a", 2, "use https, or a tunnel"),
    ],
)
def test_nothing_is_submitted_where_none_takes_it(
    terminal: Terminal, spec: str, text: str, asked: str, code: int, words: str
) -> None:
    write(terminal, text)
    shown = terminal("submit", spec, "--clusters", asked)
    assert (shown.code, words in shown.err, shown.out) == (code, True, "")
    assert terminal.server.asked == []
