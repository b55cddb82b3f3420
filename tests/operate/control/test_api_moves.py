"""pause, resume, retry, nodes and the log, over HTTP of a real server with an agent played by the test."""

from collections.abc import Iterator
from typing import Any, get_args

import httpx
import pytest

from phalanx.core import wire
from phalanx.core.events import EventBody
from phalanx.core.messages import Launch, StartRanks, StopRanks
from phalanx.core.views import EventView, JobView, NodeView
from phalanx.operate.control.api.events import KINDS
from tests.operate.control.live_server import LiveServer, PlayedAgent, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path_factory.mktemp("moves") / "home")
    live.start()
    yield live
    assert live.end() == 0, live.words()
    assert "Traceback" not in live.words(), live.words()


@pytest.fixture
def agent(server: LiveServer) -> Iterator[PlayedAgent]:
    with PlayedAgent(server) as played:
        played.hello()
        until(lambda: [node for node in server.get("/nodes") if node["state"] == "up"])
        yield played


@pytest.fixture
def http(server: LiveServer) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


def started(agent: PlayedAgent) -> tuple[Launch, int]:
    start = agent.hear(StartRanks)
    agent.report(start.launch, start.epoch, "running")
    return start.launch, start.epoch


def stopped(agent: PlayedAgent, launch: Launch, epoch: int) -> None:
    """Obeys the order to stop that attempt."""
    assert agent.hear(StopRanks).attempt == launch.attempt
    agent.report(launch, epoch, "ended", dict.fromkeys(range(len(launch.devices)), -15))


def in_state(server: LiveServer, job: str, state: str) -> JobView:
    view: JobView = until(lambda: one if (one := seen(server, job)).state == state else None)
    return view


def seen(server: LiveServer, job: str) -> JobView:
    view: JobView = wire.build(JobView, server.get(f"/jobs/{job}"))
    return view


def problem(answer: httpx.Response) -> tuple[int, str]:
    body: dict[str, Any] = answer.json()
    return answer.status_code, body["title"]


def test_a_job_is_paused_resumed_cancelled_and_opened_again(server: LiveServer, agent: PlayedAgent, http: httpx.Client) -> None:
    job = server.submit(name="moves", resources={"gpus": "2"}, max_restarts=0)
    launch, epoch = started(agent)
    assert in_state(server, job, "running").why
    assert problem(http.post(f"/jobs/{job}/retry")) == (409, "Conflict")
    assert http.post(f"/jobs/{job}/resume").json()["state"] == "running", "one that runs is left alone"
    for _ in range(2):
        assert http.post(f"/jobs/{job}/pause").json()["state"] == "stopping"
    assert problem(http.post(f"/jobs/{job}/resume")) == (409, "Conflict")
    stopped(agent, launch, epoch)
    paused = in_state(server, job, "paused")
    assert "phalanx resume" in (paused.why or "")
    assert http.post(f"/jobs/{job}/pause").json()["state"] == "paused"
    assert [one["id"] for one in http.get("/jobs", params={"state": "paused"}).json()] == [job]
    assert http.post(f"/jobs/{job}/resume").json()["state"] in ("pending", "starting")
    launch, epoch = started(agent)
    assert launch.attempt == f"{job}.2"
    http.post(f"/jobs/{job}/cancel")
    stopped(agent, launch, epoch)
    assert in_state(server, job, "finished").outcome == "cancelled"
    for verb in ("pause", "resume", "cancel"):
        assert problem(http.post(f"/jobs/{job}/{verb}")) == (409, "Conflict")
    assert http.post(f"/jobs/{job}/retry").status_code == 200
    launch, epoch = started(agent)
    agent.report(launch, epoch, "ended", {0: 0, 1: 0})
    assert in_state(server, job, "finished").outcome == "succeeded"
    assert problem(http.post(f"/jobs/{job}/retry")) == (409, "Conflict")


def test_a_drained_node_gets_nothing_new_and_may_be_emptied(server: LiveServer, agent: PlayedAgent, http: httpx.Client) -> None:
    job = server.submit(name="drained", resources={"gpus": "1"}, max_restarts=0)
    launch, epoch = started(agent)
    in_state(server, job, "running")
    view = wire.loads(NodeView, http.post("/nodes/node-a/drain", json={"reason": "a fan"}).content)
    assert (view.state, view.drained, set(view.held.values())) == ("up", "a fan", {launch.attempt})
    waiting = server.submit(name="later", resources={"gpus": "1"})
    until(lambda: "drained" in (seen(server, waiting).why or ""))
    assert http.post("/nodes/node-a/drain", json={"reason": "a fan", "now": True}).json()["drained"] == "a fan"
    stopped(agent, launch, epoch)
    assert in_state(server, job, "pending").attempts[-1].ended_ms is not None, "and no restart was used up: there was none"
    assert http.get("/nodes").json() == [http.get("/status").json()["nodes"][0]]
    assert http.post("/nodes/node-a/undrain").json()["drained"] == ""
    both = {started(agent)[0].attempt for _ in range(2)}
    assert both == {f"{job}.2", f"{waiting}.1"}
    kinds = [event["kind"] for event in server.get("/events") if event["kind"].startswith("node_") and "drain" in event["kind"]]
    assert kinds == ["node_drained", "node_undrained"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "field"),
    [
        ("POST", "/nodes/none/drain", {"reason": "x"}, 404, "node"),
        ("POST", "/nodes/none/undrain", None, 404, "node"),
        ("POST", "/nodes/..%2Fx/undrain", None, 404, ""),
        ("POST", "/nodes/node-a/drain", {}, 422, "reason"),
        ("POST", "/nodes/node-a/drain", {"reason": ""}, 422, "reason"),
        ("POST", "/nodes/node-a/drain", {"reason": "x" * 501}, 422, "reason"),
        ("POST", "/jobs/none-1/pause", None, 404, "job"),
        ("GET", "/jobs/none-1/events", None, 404, "job"),
        ("GET", "/events?kind=odd", None, 422, "kind"),
        ("GET", "/events?limit=0", None, 422, "limit"),
        ("GET", "/events?limit=1001", None, 422, "limit"),
        ("GET", "/events?since_ms=-1", None, 422, "since_ms"),
        ("GET", "/events?after=x", None, 422, "after"),
    ],
)
def test_bad_input_is_one_error_that_names_the_field(
    agent: PlayedAgent, http: httpx.Client, method: str, path: str, body: object, status: int, field: str
) -> None:
    answer = http.request(method, path, json=body)
    assert answer.status_code == status
    assert answer.json()["field"] == field or not field
    assert answer.json()["fix"]


def test_the_log_in_pages_by_kind_by_time_and_from_its_end(server: LiveServer, agent: PlayedAgent, http: httpx.Client) -> None:
    job = server.submit(name="told", queue="none", resources={"gpus": "1"})
    http.post(f"/jobs/{job}/cancel")

    def log(path: str = "/events", **query: object) -> list[EventView]:
        answer = http.get(path, params={name: str(value) for name, value in query.items()})
        assert answer.status_code == 200, answer.text
        return list(wire.loads(tuple[EventView, ...], answer.content))

    whole = log()
    assert [one.seq for one in whole] == sorted(one.seq for one in whole)
    assert {one.job for one in whole} >= {None, job}
    assert log(newest="true", limit=2) == log()[-2:]
    paged: list[EventView] = []
    while page := log(after=paged[-1].seq if paged else 0, limit=3):
        paged += page
    assert paged[: len(whole)] == whole
    submitted = log(kind="job_submitted")
    assert {one.kind for one in submitted} == {"job_submitted"} and submitted == [one for one in log() if one in submitted]
    late = whole[len(whole) // 2].at_ms
    assert all(one.at_ms >= late for one in log(since_ms=late)) and log(since_ms=late)[0] in whole
    mine = log(f"/jobs/{job}/events")
    assert {one.job for one in mine} == {job}
    assert log(f"/jobs/{job}/events", newest="true", limit=1) == mine[-1:]
    assert log(f"/jobs/{job}/events", kind="stop_requested")[0].body["cause"] == "cancel"


def test_the_kinds_are_those_of_the_log() -> None:
    assert {"job_submitted", "node_drained", "part_lost"} <= set(KINDS)
    assert len(set(KINDS)) == len(KINDS) == len(get_args(get_args(EventBody)[0]))
