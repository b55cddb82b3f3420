"""`why` and `plan`: what people read, and the JSON of the views."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.ids import JobId, NodeId
from phalanx.core.reasons import Kept
from phalanx.core.views import ChangeView, EtaView, JobView, PlacedView, PlanView, QueueEffectView, WhyView
from phalanx.show.cli.plan_page import eta_text
from tests.recorded import JOB, Said, job_view, said, why_view
from tests.show.cli.terminal import Terminal

DAY = 1_795_824_000_000  # 2026-11-28
ETA = EtaView(low_ms=DAY + 14 * 3_600_000 + 300_000, high_ms=DAY + 15 * 3_600_000 + 1_200_000)
CHANGES = (
    ChangeView(field="max_duration", value="90m", was="4h"),
    ChangeView(field="num_nodes", value="2", was="4"),
    ChangeView(field="placing.where.zone", value="", was="eu"),
)


def plan_view(**changes: Any) -> PlanView:
    base: dict[str, Any] = {
        "answer": "starts", "sentence": "would start now", "type": "H100", "num_devices": 16,
        "placed": tuple(PlacedView(node=NodeId(f"n-{number}"), type="H100", devices=(0, 1), price=2.5) for number in range(2)),
        "evicts": (), "reason": None, "position": None, "eta": None, "changes": (), "cost_per_hour": 40.0, "cost_of_limit": 80.0,
        "queues": (QueueEffectView(queue="research", held=8, after=24, quota=16, limit=None, budget="3 of 100 GPU-hours"),),
        "as_of_ms": DAY,
    }  # fmt: skip
    return PlanView(**{**base, **changes})


@pytest.fixture
def spec(tmp_path: Path) -> str:
    file = tmp_path / "job.yaml"
    file.write_text("name: mine\nentrypoint: 'true'\n")
    return str(file)


def test_why_gives_the_interval_and_the_changes(terminal: Terminal) -> None:
    waits = why_view(state="pending", sentence="waits for devices", position=3, eta=ETA, changes=CHANGES)
    terminal.server.view(f"/jobs/{JOB}/why", WhyView, waits)
    terminal.server.view(f"/jobs/{JOB}", JobView, job_view(state="pending", attempts=()))
    assert terminal("why", JOB).out == (
        f"{JOB} is pending: waits for devices\n"
        "Expected to start between 2026-11-28 14:05 and 15:20 UTC (80 %).\n"
        "Submitted again with one of these, it would start now:\n"
        "  max_duration: 90m instead of 4h\n"
        "  num_nodes: 2 instead of 4\n"
        "  placing.where.zone left out (it is eu)\n"
    )
    assert terminal.server.asked[0].query == {"changes": "true"}
    shown = json.loads(terminal("why", JOB, "-o", "json").out)
    assert shown["eta"] == {"low_ms": ETA.low_ms, "high_ms": ETA.high_ms, "vague": False, "latest_ms": None}
    assert shown["changes"][1] == {"field": "num_nodes", "value": "2", "was": "4"}


def test_why_says_that_a_job_is_late(terminal: Terminal) -> None:
    terminal.server.view(f"/jobs/{JOB}", JobView, job_view(state="pending", attempts=()))
    waits = why_view(state="pending", sentence="waits for devices", late="its deadline passed 3m 00s ago")
    terminal.server.view(f"/jobs/{JOB}/why", WhyView, waits)
    assert terminal("why", JOB).out == f"{JOB} is pending: waits for devices\nIts deadline passed 3m 00s ago.\n"


def test_why_without_changes_asks_for_none_and_says_when_none_helps(terminal: Terminal) -> None:
    terminal.server.view(f"/jobs/{JOB}", JobView, job_view(state="pending", attempts=()))
    terminal.server.view(f"/jobs/{JOB}/why", WhyView, why_view(state="pending", sentence="waits for devices"))
    assert terminal("why", JOB, "--no-changes").out == f"{JOB} is pending: waits for devices\n"
    assert terminal.server.asked[0].query == {}
    terminal.server.view(f"/jobs/{JOB}/why", WhyView, why_view(state="pending", sentence="waits for devices", changes=()))
    assert terminal("why", JOB).out.endswith("No single change of its spec would start it now.\n")
    vague = why_view(state="pending", sentence="waits for devices", eta=EtaView(low_ms=DAY, high_ms=2 * DAY, vague=True))
    terminal.server.view(f"/jobs/{JOB}/why", WhyView, vague)
    assert terminal("why", JOB).out.endswith("No useful estimate of its start yet.\n")
    for days, second in ((0, "15:19:30"), (1, "2026-11-29 15:19:30")):
        latest = replace(ETA, latest_ms=ETA.high_ms + days * 86_400_000 - 30_900)
        terminal.server.view(f"/jobs/{JOB}/why", WhyView, why_view(state="pending", sentence="waits", eta=latest))
        assert f"and 15:20 UTC (80 %), at the latest about {second} if no other job comes first.\n" in terminal("why", JOB).out
    at_nine, seconds = DAY + 9 * 3_600_000, {0: "about 2026-11-28 09:00", 37_000: "between 2026-11-28 09:00 and 09:01"}
    for later_ms, expected in seconds.items():
        exact = EtaView(low_ms=at_nine, high_ms=at_nine + later_ms, latest_ms=at_nine + later_ms)
        terminal.server.view(f"/jobs/{JOB}/why", WhyView, why_view(state="pending", sentence="waits", eta=exact))
        assert f"Expected to start {expected} UTC (80 %), at the latest about 09:00:" in terminal("why", JOB).out
    after = why_view(state="pending", sentence="waits for a-1 to succeed", reason={"kind": "dependencies"}, changes=())
    terminal.server.view(f"/jobs/{JOB}/why", WhyView, after)
    assert terminal("why", JOB).out == f"{JOB} is pending: waits for a-1 to succeed\n"


def test_why_of_a_job_that_never_fits_says_that_it_stays_as_it_is(terminal: Terminal) -> None:
    never = why_view(state="pending", sentence="never fits: set num_nodes: 2", reason={"kind": "never_fits"}, changes=())
    terminal.server.view(f"/jobs/{JOB}/why", WhyView, never)
    terminal.server.view(f"/jobs/{JOB}", JobView, job_view(state="pending", attempts=()))
    assert terminal("why", JOB).out.endswith("stays as it is: cancel it, and submit it again with the change.\n")


def test_until_when_devices_are_kept_is_told_as_the_latest_start_is() -> None:
    """Both are the same moment: a minute in one sentence and a second in the next would look like two."""
    until_ms = 1_800_000_036_999
    latest = eta_text(EtaView(low_ms=1_800_000_000_000, high_ms=until_ms, vague=False, latest_ms=until_ms))
    assert "at the latest about 08:00:37" in latest
    assert Kept("spot to come", until_ms).sentence().endswith("until 2027-01-15 08:00:37 UTC")


def test_why_saves_the_snapshot(terminal: Terminal, tmp_path: Path) -> None:
    terminal.server.view(f"/jobs/{JOB}/why", WhyView, why_view())
    terminal.server.view(f"/jobs/{JOB}", JobView, job_view())
    terminal.server.on("GET", "/snapshot", Said(200, '{"now_ms": 1}'))
    shown = terminal("why", JOB, "--save-snapshot", str(tmp_path / "snap.json"), "-o", "json")
    assert (shown.code, json.loads(shown.out)["job"]) == (0, JOB)
    assert shown.err.startswith(f"Saved in {tmp_path}/snap.json")
    assert (tmp_path / "snap.json").read_text() == '{"now_ms": 1}'
    refused = terminal("why", JOB, "--save-snapshot", str(tmp_path / "no" / "snap.json"))
    assert refused.code == 2
    assert "--save-snapshot" in refused.err


def test_plan_shows_placement_cost_and_queue(terminal: Terminal, spec: str) -> None:
    terminal.server.on("POST", "/plan", said(PlanView, plan_view()))
    out = terminal("plan", spec, "--set", "num_nodes=2").out
    assert out.startswith("mine: would start now. Nothing was submitted.\n")
    for text in (
        "n-0   H100  devices 0, 1",
        "16 x H100",
        "40.00 USD",
        "80.00 USD",
        "research      8       24     16      -  3 of 100",
    ):
        assert text in out
    assert json.loads(terminal.server.asked[0].body)["spec"]["num_nodes"] == 2
    assert terminal.server.paths("POST") == ["/plan"]


def test_plan_of_an_array_is_of_one_of_its_jobs_and_says_so(terminal: Terminal, spec: str) -> None:
    half = (QueueEffectView(queue="research", held=0.5, after=1, quota=None, limit=None),)
    terminal.server.on("POST", "/plan", said(PlanView, plan_view(jobs=3, num_devices=0.5, queues=half)))
    out = terminal("plan", spec).out
    for text in (
        "mine (the first of an array of 3): would start now.",
        "0.5 x H100, for each of 3 jobs",
        "80.00 USD, for each of 3 jobs, 240.00 USD for all",
        "research    0.5        1",
    ):
        assert text in out


def test_plan_of_a_job_that_waits(terminal: Terminal, spec: str) -> None:
    waits = plan_view(
        answer="waits", sentence="would start once a-1 made room for it", placed=(), position=2, eta=ETA, changes=CHANGES[:1],
        evicts=(JobId("a-1"), JobId("b-2")), smaller=(JobId("b-2"),),
        cost_per_hour=None, cost_of_limit=None, notes=("no price is known for X9, so there is no cost",),
    )  # fmt: skip
    terminal.server.on("POST", "/plan", said(PlanView, waits))
    out = terminal("plan", spec).out
    assert out.startswith("mine: would start once a-1 made room for it; position 2 in its queue. Nothing was submitted.\nExpected")
    assert "It would start now with one of these:\n  max_duration: 90m instead of 4h" in out
    assert "Ends for it   a-1\n" in out
    assert "Made smaller  b-2\n" in out
    assert "no price is known for X9" in out
    shown = json.loads(terminal("plan", spec, "-o", "json").out)
    assert (shown["answer"], shown["cost_per_hour"], shown["evicts"]) == ("waits", None, ["a-1", "b-2"])
