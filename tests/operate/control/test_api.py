"""The HTTP API of a real server: who gets in, what is refused and how, what is answered."""

import functools
import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from starlette.routing import Route

from phalanx.core import wire
from phalanx.core.curves import CurvesView
from phalanx.core.records import Metric, StepRecord
from phalanx.core.views import JobView, LedgerView, LogPage, StepPage
from phalanx.operate.control.api.application import create_app
from phalanx.operate.control.api.jobs import progress_of
from phalanx.operate.control.api.ledger import _steps
from tests.operate.control.live_server import LiveServer, PlayedAgent, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path_factory.mktemp("api") / "home")
    live.start()
    yield live
    assert live.end() == 0, live.words()
    assert "Traceback" not in live.words(), live.words()


@pytest.fixture(scope="module")
def http(server: LiveServer) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


@pytest.fixture(scope="module")
def ran(server: LiveServer) -> Iterator[str]:
    """A job whose one rank of two wrote a log and records; its agent stays."""
    with PlayedAgent(server) as agent:
        agent.hello()
        job = server.submit(name="ran", kind="train", resources={"gpus": "2"})
        launch = agent.started()
        agent.ship("log", launch.attempt, 0, 0, "grüße 🎉\n".encode())
        agent.ship("records", launch.attempt, 0, 0, record(1) + record(2, loss=float("nan")) + metric())
        until(lambda: server.get(f"/jobs/{job}")["state"] == "running")
        yield job


def record(step: int, loss: float = 2.5) -> bytes:
    values: dict[str, Any] = {"rank": 0, "step": step, "total_steps": 10, "loss": loss, "loss_hex": loss.hex(), "grad_norm": 1.0}
    values |= {"lr": 0.1, "tokens": 100, "tokens_per_s": 50.0, "mfu": 0.0, "started_ms": step * 1000, "ended_ms": step * 1000 + 900}
    return wire.dumps(StepRecord, StepRecord(**values)).encode() + b"\n"


def metric() -> bytes:
    return wire.dumps(Metric, Metric(rank=0, step=0, name="val_loss", value=8.0, at_ms=1)).encode() + b"\n"


def routes() -> list[tuple[str, str]]:
    """Every route of the application, as (method, path with something in its braces)."""
    app = create_app(cast(Any, None))
    paths = {(method, route.path) for route in app.routes if isinstance(route, Route) for method in route.methods or ()}
    for part in app.routes:  # FastAPI from 0.130 on keeps an included router whole
        for route in getattr(getattr(part, "original_router", None), "routes", ()):
            if isinstance(route, Route):
                paths |= {(method, f"/api/v1{route.path}") for method in route.methods or ()}
    fill = {"{job}": "ran-1", "{sha256}": "0" * 64, "{name}": "ran", "{version}": "1"}
    found = []
    for method, path in sorted(paths):
        found.append((method, functools.reduce(lambda text, pair: text.replace(*pair), fill.items(), path)))
    return found


def problem(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    body: dict[str, Any] = answer.json()
    assert body["status"] == answer.status_code
    return body


def test_there_are_as_many_routes_as_the_contract_names() -> None:
    assert len(routes()) >= 17


@pytest.mark.parametrize(
    ("method", "path"), [route for route in routes() if route[1] not in ("/healthz", "/api/v1/oidc", "/api/v1/oidc/login")]
)
def test_no_route_answers_without_a_token(server: LiveServer, method: str, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {server.token()}"}):
        answer = httpx.request(method, f"{server.url}{path}", headers=headers, trust_env=False, verify=False)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"


def test_healthz_says_ok_and_nothing_else(server: LiveServer) -> None:
    assert httpx.get(f"{server.url}/healthz", trust_env=False, verify=False).text == "ok"


def test_a_node_may_fetch_blobs_and_nothing_else(server: LiveServer, http: httpx.Client) -> None:
    sha = hashlib.sha256(b"code").hexdigest()
    assert http.put(f"/blobs/{sha}", content=b"code").status_code == 204
    with server.http(server.token("node-token")) as node:
        assert node.get(f"/blobs/{sha}").content == b"code"
        assert node.put(f"/blobs/{sha}", content=b"code").status_code == 401
        assert node.get("/status").status_code == 403
        assert node.post("/halt", json={"but": "a"}).status_code == 403


def test_a_foreign_host_name_is_refused(http: httpx.Client) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:80", ""):
        answer = http.get("/status", headers={"Host": host})
        assert answer.status_code == 400, host
    assert http.get("/status", headers={"Host": "localhost:1"}).status_code == 200


def test_a_foreign_page_may_not_write(server: LiveServer, http: httpx.Client) -> None:
    assert problem(http.post("/jobs", json={"spec": {}}, headers={"Origin": "http://evil.example"}))["status"] == 403
    assert http.post("/jobs/x-1/cancel", headers={"Origin": "null"}).status_code == 403
    assert http.post("/jobs/x-1/cancel", headers={"Origin": server.url}).status_code == 404


def test_a_body_over_the_limit_is_refused(http: httpx.Client) -> None:
    assert problem(http.post("/jobs", content=b" " * (1024 * 1024 + 1)))["status"] == 413
    chunks = (b" " * 65_536 for _ in range(17))
    assert problem(http.post("/jobs", content=chunks))["status"] == 413  # without a Content-Length


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "spec"),
        ({"spec": []}, "spec"),
        ({"spec": {"name": "a", "entrypoint": "true", "gpu": 1}}, "gpu"),
        ({"spec": {"name": "../etc", "entrypoint": "true"}}, "name"),
        ({"spec": {"name": "a", "entrypoint": "true"}, "code": "0" * 64}, "code"),
        ({"spec": {"name": "a", "entrypoint": "true"}, "code": "../../token"}, "code"),
        ({"spec": {"name": "a", "entrypoint": "true"}, "key": "k" * 256}, "key"),
        ({"spec": {"name": "a", "entrypoint": "true", "hyperparameters": {"lr": float("nan")}}}, "hyperparameters.lr"),
        ({"spec": {"name": "a", "entrypoint": "echo \ud800"}}, "entrypoint"),
        ({"spec": {"name": "\ud800", "entrypoint": "true"}}, "name"),
    ],
)
def test_bad_input_is_one_error_that_names_the_field_and_the_fix(http: httpx.Client, body: object, field: str) -> None:
    headers = {"Content-Type": "application/json"}
    said = problem(http.post("/jobs", content=json.dumps(body), headers=headers))  # unlike httpx, json writes NaN
    assert (said["status"], said["title"], said["field"]) == (422, "SpecError", field)
    assert said["fix"]


def test_malformed_json_is_one_error(http: httpx.Client) -> None:
    for content in (b'{"spec": ', b"[" * 500_000, b"\xff\xfe"):
        answer = http.post("/jobs", content=content, headers={"Content-Type": "application/json"})
        assert problem(answer)["status"] in (400, 422)


def test_what_does_not_exist_is_not_found(http: httpx.Client, ran: str) -> None:
    for path in ("/jobs/none-1", "/jobs/..%2f..%2ftoken", "/models/none", "/models/none/1", f"/blobs/{'1' * 64}", "/nothing"):
        assert problem(http.get(path))["title"] == "NotFound", path
    for query in ({"attempt": "9"}, {"attempt": "ran-1.9"}, {"attempt": "../../x.1"}, {"rank": "2"}):
        assert problem(http.get(f"/jobs/{ran}/logs", params=query))["title"] == "NotFound", query
    assert http.get("/ledger", params={"job": "none-1"}).status_code == 404


@pytest.mark.parametrize("query", [{"rank": "-1"}, {"offset": "-1"}, {"limit": "0"}, {"limit": "99999999"}, {"rank": "x"}])
def test_numbers_out_of_range_are_refused(http: httpx.Client, ran: str, query: dict[str, str]) -> None:
    assert problem(http.get(f"/jobs/{ran}/logs", params=query))["field"] == next(iter(query))


def test_a_cursor_that_no_page_gave_is_refused(http: httpx.Client, ran: str) -> None:
    assert problem(http.get(f"/jobs/{ran}/steps", params={"after": "junk"}))["field"] == "after"


def test_a_blob_must_be_what_its_name_says(http: httpx.Client) -> None:
    sha = hashlib.sha256(b"this").hexdigest()
    assert problem(http.put(f"/blobs/{sha}", content=b"that"))["status"] == 422
    assert http.head(f"/blobs/{sha}").status_code == 404
    assert http.get("/blobs/..%2ftoken").status_code in (404, 422)


def test_a_lock_without_the_workdir_that_it_is_in_is_refused(http: httpx.Client) -> None:
    spec = {"name": "locked", "entrypoint": "true", "workdir": "/w", "environment": {"lock": "uv.lock"}}
    assert problem(http.post("/jobs", json={"spec": spec}))["field"] == "environment.lock"


def test_the_same_key_gives_the_same_job(http: httpx.Client) -> None:
    body = {"spec": {"name": "once", "entrypoint": "true", "resources": {"gpus": "H100:1"}}, "key": "a-key"}
    first, second = http.post("/jobs", json=body), http.post("/jobs", json=body)
    if first.status_code == 422:  # a node is known by now and has no H100: then it is refused both times
        assert second.status_code == 422
    else:
        assert first.json()["id"] == second.json()["id"]
    other = http.post("/jobs", json={"spec": {"name": "other", "entrypoint": "true"}, "key": "b-key"}).json()["id"]
    conflict = http.post("/jobs", json={"spec": {"name": "another", "entrypoint": "true"}, "key": "b-key"})
    assert problem(conflict)["title"] == "Conflict"
    assert http.post(f"/jobs/{other}/cancel").status_code == 200
    assert problem(http.post(f"/jobs/{other}/cancel"))["title"] == "Conflict"


def test_a_job_is_shown_with_its_progress(http: httpx.Client, ran: str) -> None:
    view = wire.loads(JobView, http.get(f"/jobs/{ran}").content)
    assert (view.state, view.devices, len(view.attempts[0].ranks)) == ("running", "2", 2)
    assert (view.progress.step, view.progress.total_steps, view.progress.eta_ms) == (2, 10, 8_000)
    assert http.get(f"/jobs/{ran}/why").json()["sentence"].startswith("runs on node-a")


def test_the_time_left_goes_by_many_steps() -> None:
    """A save or a slow step is one among many; only the first one has nothing but itself to go by."""

    def at(step: int, ended_ms: int, tokens_per_s: float) -> StepRecord:
        known: StepRecord = wire.loads(StepRecord, record(step))
        return replace(known, total_steps=1000, ended_ms=ended_ms, tokens_per_s=tokens_per_s)

    newest = at(200, 209_000, 5.0)  # the last one took 20 s instead of one
    assert progress_of(newest, at(10, 0, 100.0)).eta_ms == 880_000
    assert progress_of(newest).eta_ms == 16_000_000
    assert progress_of(at(200, 0, 0.0)).eta_ms is None
    assert progress_of(newest).images_per_s == 0 and progress_of(replace(newest, images=20)).images_per_s == 1
    assert progress_of(at(1000, 209_000, 5.0), at(900, 0, 1.0)).eta_ms == 0
    assert progress_of(newest, at(10, 209_000, 1.0)).eta_ms == 16_000_000, "a clock that stood still says nothing"


def test_jobs_are_listed_newest_first_and_filtered(http: httpx.Client, ran: str) -> None:
    late = http.post("/jobs", json={"spec": {"name": "late", "entrypoint": "true", "queue": "slow"}}).json()["id"]
    assert http.get("/jobs").json()[0]["id"] == late
    assert [job["id"] for job in http.get("/jobs", params={"queue": "slow"}).json()] == [late]
    assert [job["id"] for job in http.get("/jobs", params={"state": "running"}).json()] == [ran]
    assert len(http.get("/jobs", params={"limit": 1}).json()) == 1
    http.post(f"/jobs/{late}/cancel")
    assert {job["state"] for job in http.get("/jobs", params={"state": "cancelled"}).json()} == {"finished"}
    assert http.get("/jobs", params={"state": "cancelled", "queue": "slow"}).json()[0]["id"] == late
    assert http.get("/jobs", params={"state": "failed", "queue": "slow"}).json() == []


def test_a_diverged_loss_travels_as_what_it_is(http: httpx.Client, ran: str) -> None:
    page = wire.loads(StepPage, http.get(f"/jobs/{ran}/steps").content)
    assert [one.step for one in page.steps] == [1, 2]
    assert page.steps[1].loss != page.steps[1].loss
    assert page.attempts == (f"{ran}.1",) * 2
    assert page.metrics[0].name == "val_loss"
    assert wire.loads(StepPage, http.get(f"/jobs/{ran}/steps", params={"after": page.next}).content).steps == ()


def test_log_pages_never_split_a_character(http: httpx.Client, ran: str) -> None:
    for limit in (4, 5, 6, 7, 64):
        offset, text = 0, ""
        while True:
            answer = http.get(f"/jobs/{ran}/logs", params={"offset": offset, "limit": limit, "attempt": "1"})
            page = wire.loads(LogPage, answer.content)
            if page.next_offset == offset:
                break
            text, offset = text + page.text, page.next_offset
        assert text == "grüße 🎉\n"
        assert not page.ended


def test_events_are_the_jobs_part_of_the_log(http: httpx.Client, ran: str) -> None:
    events = http.get(f"/jobs/{ran}/events").json()
    kinds = [event["kind"] for event in events if event["kind"] != "job_waits"]
    assert kinds[:3] == ["job_submitted", "attempt_placed", "attempt_running"]
    assert http.get(f"/jobs/{ran}/events", params={"after": events[-1]["seq"]}).json() == []


def test_the_ledger_balances_for_the_fleet_and_for_a_job(http: httpx.Client, ran: str) -> None:
    for query in ({}, {"job": ran}):
        view = wire.loads(LedgerView, http.get("/ledger", params=query).content)
        assert view.balanced
        assert sum(view.categories.values()) == view.capacity > 0
        assert "CPU slots" in view.devices_are
    assert problem(http.get("/ledger", params={"since_ms": 2, "until_ms": 1}))["field"] == "since_ms"


def test_the_ledger_books_no_time_that_has_not_come(http: httpx.Client, ran: str) -> None:
    for query in ({}, {"job": ran}):
        late = time.time_ns() // 1_000_000 + 3_600_000
        view = wire.loads(LedgerView, http.get("/ledger", params={**query, "until_ms": late}).content)
        assert view.balanced
        assert view.until_ms <= time.time_ns() // 1_000_000


def test_a_jobs_ledger_reads_that_jobs_steps_only(server: LiveServer, http: httpx.Client, ran: str) -> None:
    read: list[str] = []
    services = SimpleNamespace(series=SimpleNamespace(steps=read.append))
    jobs = {name: SimpleNamespace(attempts=[f"{name}.1"]) for name in ("a-1", "b-2")}
    _steps(cast(Any, services), cast(Any, SimpleNamespace(jobs=jobs)), [cast(Any, jobs["a-1"])], 0, 2**53)
    assert read == ["a-1.1"]


def test_long_lists_come_in_pages(http: httpx.Client, ran: str) -> None:
    whole = http.get(f"/jobs/{ran}/events").json()
    found: list[dict[str, Any]] = []
    while page := http.get(f"/jobs/{ran}/events", params={"after": found[-1]["seq"] if found else 0, "limit": 1}).json():
        assert len(page) == 1
        found += page
    assert found[: len(whole)] == whole
    first = wire.loads(StepPage, http.get(f"/jobs/{ran}/steps", params={"limit": 1}).content)
    assert [one.step for one in first.steps] == [1]
    for path in ("events", "steps"):
        assert problem(http.get(f"/jobs/{ran}/{path}", params={"limit": 10**6}))["field"] == "limit"


def test_curves_are_of_the_steps_that_the_job_told_of(http: httpx.Client, ran: str) -> None:
    view = wire.loads(CurvesView, http.get(f"/jobs/{ran}/curves").content)
    assert [one.step for one in view.points] == [1, 2] and view.points[1].loss != view.points[1].loss
    assert (view.total_steps, list(view.metrics)) == (10, ["val_loss"])
    assert [one.steps for one in wire.loads(CurvesView, http.get(f"/jobs/{ran}/curves", params={"points": 1}).content).points] == [
        2
    ]
    assert http.get(f"/jobs/{ran}/curves", params={"points": 0}).status_code == 422


def test_status_names_processes_and_nodes(server: LiveServer, http: httpx.Client, ran: str) -> None:
    view = http.get("/status").json()
    assert view["home"] == str(server.home)
    assert {"server", "scheduler"} <= set(view["processes"])
    assert (view["devices_total"], view["devices_held"], view["nodes"][0]["node"]) == (2, 2, "node-a")


def test_the_description_of_the_api_is_complete(server: LiveServer) -> None:
    with server.http() as http:
        spec = http.get(f"{server.url}/openapi.json").json()
    assert "JobView" in spec["components"]["schemas"]
    assert "/api/v1/jobs/{job}/logs" in spec["paths"]
