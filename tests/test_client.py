"""The client: typed answers, typed refusals, and calls that outlive a restart without doing anything twice."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from phalanx.client import Client, connect, home_folder
from phalanx.core import wire
from phalanx.core.errors import (
    Bug,
    CheckpointError,
    Conflict,
    NotFound,
    PhalanxError,
    ServerUnreachable,
    SetupError,
    SpecError,
    StoreUnavailable,
    Unauthorized,
    UserError,
    WaitTimeout,
)
from phalanx.core.spec import JobSpec
from phalanx.core.views import EventView, JobView, LedgerView, LogPage, ModelView, StatusView, StepPage, SubmitRequest
from tests.recorded import (
    JOB,
    TOKEN,
    attempt_view,
    finished_view,
    job_view,
    ledger_view,
    log_page,
    model_view,
    recorded_server,
    refusal,
    status_view,
    write_home,
)

SPEC = {"name": "tiny-lm", "entrypoint": "python train.py"}
Handle = Callable[[httpx.Request], httpx.Response]


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def client_of(handle: Handle, time: Time | None = None, **more: Any) -> Client:
    time = time or Time()
    return Client("http://127.0.0.1:1", TOKEN, httpx.MockTransport(handle), clock=time.clock, sleep=time.sleep, **more)


def answer(kind: Any, value: Any) -> httpx.Response:
    return httpx.Response(200, content=wire.dumps(kind, value))


def refused(status: int, **body: Any) -> httpx.Response:
    return httpx.Response(status, content=json.dumps(body), headers={"Content-Type": "application/problem+json"})


def test_every_reading_call_asks_its_path_and_gives_its_view(tmp_path: Path) -> None:
    page = StepPage(steps=(), metrics=(), attempts=(), next="n1")
    event = EventView(seq=4, at_ms=1, kind="job_submitted", job=JOB, body={"by": "admin"})
    with recorded_server(tmp_path) as server, connect(tmp_path, {}) as client:
        server.view("/status", StatusView, status_view())
        server.view("/jobs", tuple[JobView, ...], (job_view(),))
        server.view(f"/jobs/{JOB}", JobView, job_view())
        server.view(f"/jobs/{JOB}/steps", StepPage, page)
        server.view(f"/jobs/{JOB}/logs", LogPage, log_page("hi\n", offset=5))
        server.view(f"/jobs/{JOB}/events", tuple[EventView, ...], (event,))
        server.view("/ledger", LedgerView, ledger_view())
        server.view("/models/tiny-lm", tuple[ModelView, ...], (model_view(), model_view(version=2)))
        server.view("/models/tiny-lm/1", ModelView, model_view())
        assert client.status() == status_view()
        assert client.jobs(state="running", limit=3) == (job_view(),)
        assert client.job(JOB) == job_view()
        assert client.steps(JOB, "n0") == page
        assert client.logs(JOB, offset=5) == log_page("hi\n", offset=5)
        assert client.events(JOB, 3) == (event,)
        assert client.ledger(JOB, since_ms=7) == ledger_view()
        assert client.model("tiny-lm").version == 2
        assert client.model("tiny-lm", 1) == model_view()
        assert {one.token for one in server.asked} == {TOKEN}
        assert server.asked[1].query == {"state": "running", "limit": "3"}
        assert server.asked[3].query == {"after": "n0"}
        assert server.asked[6].query == {"job": JOB, "since_ms": "7"}


def test_a_path_for_a_job_is_refused_before_anything_is_sent() -> None:
    client = client_of(lambda _: refused(500, detail="sent"))
    for ask in (client.submit, client.plan):
        with pytest.raises(SpecError, match=r"job: 'jobs/ok.yaml': give a mapping of its fields, or load_spec\(path\)"):
            ask("jobs/ok.yaml")  # type: ignore[arg-type]  # as untyped code may
        with pytest.raises(SpecError, match="write a mapping of fields"):
            ask(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, SpecError), (401, Unauthorized), (403, Unauthorized), (404, NotFound), (409, Conflict), (422, SpecError)],
)
def test_a_refusal_is_the_error_it_stands_for(status: int, kind: type[UserError]) -> None:
    client = client_of(lambda _: refused(status, title="no", detail="long", field="queue", value="x", fix="write y"))
    with pytest.raises(kind) as caught:
        client.status()
    assert (caught.value.field, caught.value.value, caught.value.fix) == ("queue", "x", "write y")


def test_a_title_that_names_an_error_is_believed_only_for_users_errors() -> None:
    with pytest.raises(CheckpointError):
        client_of(lambda _: refused(400, title="CheckpointError", field="f", value=1, fix="x")).status()
    with pytest.raises(SpecError):
        client_of(lambda _: refused(400, title="Bug", field="f", value=1, fix="x")).status()


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (refused(503, detail="disk full"), StoreUnavailable),
        (refused(502, detail="proxy"), ServerUnreachable),
        (refused(500, detail="oops"), Bug),
        (httpx.Response(404, text="nginx"), ServerUnreachable),
        (httpx.Response(302, headers={"Location": "http://evil.example/"}), ServerUnreachable),
        (httpx.Response(200, text="<html>"), ServerUnreachable),
        (httpx.Response(200, text="{}"), ServerUnreachable),
    ],
)
def test_what_is_not_an_answer_is_never_taken_for_one(response: httpx.Response, kind: type[PhalanxError]) -> None:
    with pytest.raises(kind):
        client_of(lambda _: response).status()


def test_reading_is_repeated_while_a_server_starts_again() -> None:
    asked = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if len(asked) < 4:
            raise httpx.ConnectError("refused")
        return answer(StatusView, status_view())

    assert client_of(handle).status() == status_view()


def test_a_server_that_stays_away_is_named_with_the_way_to_start_it() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(ServerUnreachable, match="phalanx up") as caught:
        client_of(handle).status()
    assert TOKEN not in str(caught.value)


def test_a_server_that_comes_back_elsewhere_is_found_again(tmp_path: Path) -> None:
    write_home(tmp_path, "http://127.0.0.1:9")  # nobody listens on the discard port
    with connect(tmp_path, {}) as client, recorded_server(tmp_path) as server:
        server.view("/status", StatusView, status_view(epoch=4))
        assert client.status().epoch == 4
        assert client.url == server.url


class OneJobServer:
    """Makes one job per key, and loses the first answer on the way back."""

    def __init__(self) -> None:
        self.made: list[SubmitRequest] = []
        self.uploaded: list[str] = []
        self.lost = 0

    def handle(self, request: httpx.Request) -> httpx.Response:
        if request.method in ("HEAD", "PUT"):
            return self.blob(request)
        asked = wire.loads(SubmitRequest, request.content)
        if asked.key not in [one.key for one in self.made] or not asked.key:
            self.made.append(asked)
        if not self.lost:
            self.lost += 1
            raise httpx.ReadError("the server was killed after it committed")
        return httpx.Response(201, content=wire.dumps(JobView, job_view()))

    def blob(self, request: httpx.Request) -> httpx.Response:
        if request.method == "PUT":
            self.uploaded.append(hashlib.sha256(request.content).hexdigest())
            assert request.url.path.endswith(self.uploaded[-1])
        known = request.url.path.split("/")[-1] in self.uploaded
        return httpx.Response(200 if known else 404)


def test_a_lost_answer_does_not_submit_twice() -> None:
    server = OneJobServer()
    assert client_of(server.handle).submit(SPEC, None, "key-1").id == JOB
    assert len(server.made) == 1
    assert server.made[0].spec["entrypoint"] == "python train.py"


def test_without_a_key_a_lost_answer_is_an_unknown_outcome() -> None:
    server = OneJobServer()
    with pytest.raises(ServerUnreachable) as caught:
        client_of(server.handle).submit(SPEC)
    assert (len(server.made), caught.value.lost) == (1, True)


@pytest.mark.parametrize("then", [httpx.ConnectError("refused"), httpx.ConnectTimeout("slow")])
def test_what_was_never_sent_is_not_lost_and_one_lost_try_makes_the_outcome_unknown(then: httpx.TransportError) -> None:
    tries: list[httpx.TransportError]

    def handle(request: httpx.Request) -> httpx.Response:
        raise tries.pop() if tries else then

    for lost in (False, True):
        tries = [httpx.ReadTimeout("slow")] if lost else []
        with pytest.raises(ServerUnreachable) as caught:
            client_of(handle).submit(SPEC, None, "key-1")
        assert caught.value.lost is lost


def test_a_workdir_is_uploaded_only_when_the_server_lacks_it() -> None:
    server = OneJobServer()
    server.lost = 1
    client = client_of(server.handle)
    spec = JobSpec(name="tiny-lm", entrypoint=("true",))
    client.submit(spec, b"pack", "a")
    client.submit(spec, b"pack", "b")
    assert server.uploaded == [hashlib.sha256(b"pack").hexdigest()]
    assert {one.code for one in server.made} == set(server.uploaded)


def test_a_bad_spec_is_refused_before_anything_is_sent() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        pytest.fail("nothing should be sent")

    with pytest.raises(SpecError, match="did you mean 'entrypoint'"):
        client_of(handle).submit({"name": "x", "entrypont": "true"}, None, "k")


@pytest.mark.parametrize("name", ["..", "../status", "a/b", "", "A", "x%2f", "x\n", "x?y=1"])
def test_a_name_that_is_no_name_never_becomes_a_path(name: str) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        pytest.fail(f"asked for {request.url}")

    client = client_of(handle)
    for call in (client.job, client.why, client.cancel, client.logs, client.steps, client.events, client.model):
        if call == client.model and not name:
            continue
        with pytest.raises(NotFound):
            call(name)


def test_waiting_ends_with_the_job_or_with_the_time() -> None:
    views = [job_view(), job_view(), finished_view()]
    time = Time()
    client = client_of(lambda _: answer(JobView, views.pop(0) if len(views) > 1 else views[0]), time)
    assert client.wait(JOB, timeout_s=10).outcome == "succeeded"
    assert time.now_s == 2.0
    with pytest.raises(WaitTimeout, match="still running"):
        client_of(lambda _: answer(JobView, job_view()), time).wait(JOB, timeout_s=3.5)
    assert time.now_s == pytest.approx(5.5)


def test_a_wait_that_runs_out_while_the_server_is_away_is_still_a_timeout() -> None:
    time = Time()

    def handle(request: httpx.Request) -> httpx.Response:
        if time.now_s < 3:
            return answer(JobView, job_view())
        raise httpx.ConnectError("refused")

    with pytest.raises(WaitTimeout, match="was not seen to finish in 10 s"):
        client_of(handle, time).wait(JOB, timeout_s=10)
    assert time.now_s == pytest.approx(10, abs=3)
    with pytest.raises(ServerUnreachable):
        client_of(handle, time).wait(JOB, timeout_s=1000, patience_s=20)


class LogServer:
    """Two attempts' logs that grow; the server goes away in the middle."""

    def __init__(self) -> None:
        self.logs = {f"{JOB}.1": ["one\n", "two\n"], f"{JOB}.2": ["three\n"]}
        self.calls = 0

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.calls += 1
        if 4 <= self.calls <= 12:
            raise httpx.ConnectError("killed")
        if not request.url.path.endswith("/logs"):
            first_over = self.calls > 12
            attempts = (attempt_view(1), attempt_view(2)) if first_over else (attempt_view(1),)
            return answer(JobView, finished_view(attempts=attempts) if first_over else job_view(attempts=attempts))
        attempt, offset = request.url.params.get("attempt", f"{JOB}.1"), int(request.url.params["offset"])
        whole = "".join(self.logs[attempt])
        text = whole[offset : offset + 4]
        return answer(LogPage, log_page(text, offset, ended=offset + len(text) >= len(whole), attempt=int(attempt[-1])))


def test_following_logs_hops_to_the_next_attempt_and_outlives_a_killed_server() -> None:
    server = LogServer()
    pages = list(client_of(server.handle).follow_logs(JOB, patience_s=60))
    assert "".join(page.text for page in pages) == "one\ntwo\nthree\n"
    assert [page.attempt for page in pages][-1] == f"{JOB}.2"


@pytest.mark.parametrize("size", [0, 5, 65_536, 65_537, 131_072, 3_000_000, 100_000_001])
def test_the_end_of_a_log_is_found_without_reading_all_of_it(size: int) -> None:
    asked: list[int] = []

    def handle(request: httpx.Request) -> httpx.Response:
        offset, limit = int(request.url.params["offset"]), int(request.url.params["limit"])
        asked.append(offset)
        length = max(0, min(limit, size - offset))
        text = "".join("z" if at == size - 1 else "a" for at in range(offset, offset + length))
        page = log_page(text, offset, ended=offset + length >= size)
        return answer(LogPage, page)

    end = client_of(handle).log_end(JOB, 1, f"{JOB}.1")
    assert len(end) >= min(size, 65_536) and len(end) <= 131_072
    assert end.endswith("z") or size == 0
    assert len(asked) < 40


def test_following_one_attempt_stays_with_it() -> None:
    server = LogServer()
    pages = list(client_of(server.handle).follow_logs(JOB, attempt=f"{JOB}.1", patience_s=60))
    assert "".join(page.text for page in pages) == "one\ntwo\n"


def test_following_a_job_that_never_started_ends_with_it() -> None:
    views = [job_view(state="pending", attempts=()), finished_view("cancelled", attempts=())]

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/logs"):
            problem = {"title": "NotFound", "status": 404, "field": "attempt", "value": JOB, "fix": "it has not started yet"}
            return httpx.Response(404, json=problem, headers={"Content-Type": "application/problem+json"})
        return answer(JobView, views.pop(0) if len(views) > 1 else views[0])

    assert list(client_of(handle).follow_logs(JOB)) == []


def test_patience_has_an_end() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("gone")

    time = Time()
    away: list[float] = []
    client = client_of(handle, time)
    with pytest.raises(ServerUnreachable):
        client.patient(client.status, 20.0, away.append)
    assert 20.0 <= time.now_s < 25.0
    assert away == sorted(away)


def test_where_the_server_is(tmp_path: Path) -> None:
    write_home(tmp_path, "http://127.0.0.1:5555/")
    elsewhere = {"PHALANX_URL": "https://phalanx.example", "PHALANX_TOKEN": "t0ken"}
    assert connect(None, elsewhere).url == "https://phalanx.example"
    assert connect(tmp_path, elsewhere).url == "http://127.0.0.1:5555"
    assert connect(None, {"PHALANX_HOME": str(tmp_path)}).url == "http://127.0.0.1:5555"
    assert home_folder(None, {}) == Path.home() / ".phalanx"


def test_a_platform_that_was_never_started_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ServerUnreachable, match=f"no platform runs in {tmp_path}.*phalanx up"):
        connect(tmp_path, {})


@pytest.mark.parametrize(
    ("environ", "field"),
    [
        ({"PHALANX_URL": "http://127.0.0.1:1"}, "PHALANX_TOKEN"),
        ({"PHALANX_URL": "http://[::1", "PHALANX_TOKEN": "t"}, "PHALANX_URL"),
        ({"PHALANX_URL": "http://127.0.0.1:99999", "PHALANX_TOKEN": "t"}, "PHALANX_URL"),
        ({"PHALANX_URL": "http://127.0.0.1:ab", "PHALANX_TOKEN": "t"}, "PHALANX_URL"),
        ({"PHALANX_URL": "http://127.0.0.1:80\0", "PHALANX_TOKEN": "t"}, "PHALANX_URL"),
        ({"PHALANX_URL": "ftp://127.0.0.1:1", "PHALANX_TOKEN": "t"}, "PHALANX_URL"),
        ({"PHALANX_URL": "http://ann:pass@127.0.0.1:1", "PHALANX_TOKEN": "t"}, "PHALANX_URL"),
        ({"PHALANX_URL": "https://phalanx.example/?a=1", "PHALANX_TOKEN": "t"}, "PHALANX_URL"),
        ({"PHALANX_URL": "http://phalanx.example", "PHALANX_TOKEN": "t"}, "PHALANX_URL"),
        ({"PHALANX_URL": "http://127.0.0.1:1", "PHALANX_TOKEN": "se\ncret"}, "PHALANX_TOKEN"),
    ],
)
def test_an_address_that_cannot_be_used_is_named(environ: dict[str, str], field: str) -> None:
    with pytest.raises(SetupError) as caught:
        connect(None, environ)
    assert caught.value.field == field
    assert "cret" not in str(caught.value)


def test_a_damaged_home_is_named(tmp_path: Path) -> None:
    write_home(tmp_path, "http://127.0.0.1:1")
    (tmp_path / "run" / "server.json").write_text("[]")
    with pytest.raises(SetupError, match="phalanx up"):
        connect(tmp_path, {})


def test_a_refused_token_is_said_so(tmp_path: Path) -> None:
    with recorded_server(tmp_path) as server:
        server.on("GET", "/status", refusal(401, "token", "(hidden)", "copy it again"))
        with connect(tmp_path, {}) as client, pytest.raises(Unauthorized, match="copy it again"):
            client.status()
