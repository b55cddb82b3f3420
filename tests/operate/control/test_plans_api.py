"""why, plan and snapshot of a real server: a job that runs, one that waits for it, and what would be of a third."""

from collections.abc import Iterator

import httpx
import pytest

from phalanx.core import wire
from phalanx.core.views import PlanView, WhyView
from phalanx.decide.scheduler.snapshot import Snapshot
from tests.operate.control.live_server import LiveServer, PlayedAgent, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path_factory.mktemp("plans") / "home")
    live.start()
    yield live
    assert live.end() == 0, live.words()
    assert "Traceback" not in live.words(), live.words()


@pytest.fixture(scope="module")
def waiting(server: LiveServer) -> Iterator[str]:
    """It asks for both slots of the only node, of which a running job holds one."""
    with PlayedAgent(server) as agent:
        agent.hello()
        server.submit(name="runs", resources={"gpus": "1"}, max_duration="1h")
        agent.started()
        job = server.submit(name="waits", resources={"gpus": "2"})
        until(lambda: server.get(f"/jobs/{job}/why")["reason"] is not None)
        until(lambda: server.get(f"/jobs/{job}/why", changes="true")["changes"])
        yield job


def planned(server: LiveServer, **spec: object) -> PlanView:
    with server.http() as http:
        answer = http.post("/plan", json={"spec": {"name": "mine", "entrypoint": "true", **spec}})
    assert answer.status_code == 200, answer.text
    view: PlanView = wire.loads(PlanView, answer.content)
    return view


def test_why_says_when_and_what_would_help_to_those_who_ask(server: LiveServer, waiting: str) -> None:
    plain = wire.loads(WhyView, wire.dumps(dict, server.get(f"/jobs/{waiting}/why")))
    assert (plain.eta, plain.changes) == (None, None)
    full = wire.loads(WhyView, wire.dumps(dict, server.get(f"/jobs/{waiting}/why", changes="true")))
    assert full.sentence == plain.sentence
    assert full.reason["kind"] == "no_room"
    assert full.eta.low_ms <= full.eta.high_ms
    assert [(one.field, one.value, one.was) for one in full.changes] == [("resources.gpus", "1", "2")]


def test_a_plan_places_prices_and_submits_nothing(server: LiveServer, waiting: str) -> None:
    before = server.get("/jobs")
    view = planned(server, resources={"gpus": "2"}, max_duration="2h")
    assert (view.answer, view.type, view.num_devices, view.position) == ("waits", "cpu", 2, 2)
    assert [(one.field, one.value) for one in view.changes] == [("resources.gpus", "1")] or view.changes == ()
    assert view.cost_per_hour == pytest.approx(0.10)
    assert view.cost_of_limit == pytest.approx(0.20)
    assert [(one.queue, one.held, one.after, one.quota, one.limit) for one in view.queues] == [("default", 1, 3, None, None)]
    assert [one["id"] for one in server.get("/jobs")] == [one["id"] for one in before]


def test_a_plan_of_shares_and_of_an_array_counts_them(server: LiveServer, waiting: str) -> None:
    view = planned(server, priority=90, resources={"gpus": "0.25"}, array={"count": 3})
    assert (view.jobs, view.num_devices) == (3, 0.25)
    assert [(one.held, one.after) for one in view.queues] == [(1, 1.25)]


def test_a_plan_of_what_starts_at_once_names_the_node(server: LiveServer, waiting: str) -> None:
    view = planned(server, priority=90)
    assert (view.answer, view.sentence, view.reason) == ("starts", "would start now", None)
    assert [(one.node, one.devices) for one in view.placed] == [("node-a", (1,))]


def test_a_plan_waits_for_the_jobs_that_it_comes_after_as_why_says_once_it_is_submitted(server: LiveServer, waiting: str) -> None:
    view = planned(server, priority=90, after=[waiting])
    assert (view.answer, view.sentence) == ("waits", f"waits for {waiting} to succeed")
    gone = server.submit(name="gone", resources={"gpus": "2"})
    with server.http() as http:
        assert http.post(f"/jobs/{gone}/cancel").status_code < 300
    until(lambda: server.get(f"/jobs/{gone}")["state"] == "finished")
    failed = planned(server, priority=90, after=[waiting, gone])
    assert failed.sentence.startswith(f"never starts: {gone}, which must succeed before it, did not")
    assert (failed.reason or {})["kind"] == "dependencies"


def test_a_plan_of_what_never_fits_says_so(server: LiveServer, waiting: str) -> None:
    view = planned(server, resources={"gpus": "64"})
    assert view.answer == "never"
    assert view.sentence.endswith("the largest possible is 2 (node-a); set resources.gpus: 2, or add nodes")
    assert view.eta is None


def test_a_plan_is_checked_like_a_submit(server: LiveServer, waiting: str) -> None:
    for field, value in (("num_nodes", 0), ("window", "nights"), ("after", ["nobody-9"])):
        with server.http() as http:
            answer = http.post("/plan", json={"spec": {"name": "mine", "entrypoint": "true", field: value}})
        assert answer.status_code == 422
        assert answer.json()["field"] == field


def test_the_snapshot_is_what_was_decided_from(server: LiveServer, waiting: str) -> None:
    with server.http() as http:
        answer: httpx.Response = http.get("/snapshot")
    saved: Snapshot = wire.loads(Snapshot, answer.content)
    assert [job.facts.job for job in saved.pending] == [waiting]
    assert [node.node for node in saved.nodes] == ["node-a"]
