"""The client's verbs on jobs, nodes, the log and membership: what is sent, what is repeated, what never is."""

import json
from pathlib import Path

import httpx
import pytest

from phalanx.client import connect
from phalanx.client.address import checked_url
from phalanx.core import wire
from phalanx.core.errors import Conflict, NotFound, ServerUnreachable, SetupError, WaitTimeout
from phalanx.core.views import (
    DrainRequest,
    EventView,
    JobView,
    JoinRequest,
    JoinTokenView,
    MembershipView,
    NodeView,
)
from tests.recorded import JOB, Said, finished_view, job_view, node_view, recorded_server, refusal, said
from tests.test_client import Time, client_of

EVENT = EventView(seq=4, at_ms=1, kind="job_submitted", job=JOB, body={"by": "admin"})


def test_every_call_asks_its_path_and_gives_its_view(tmp_path: Path) -> None:
    token, member = JoinTokenView(token="t" * 43, expires_ms=5), MembershipView(node="node-b")
    with recorded_server(tmp_path) as server, connect(tmp_path, {}) as client:
        for verb in ("pause", "resume", "retry"):
            server.on("POST", f"/jobs/{JOB}/{verb}", said(JobView, job_view(state=verb)))
        server.view("/events", tuple[EventView, ...], (EVENT,))
        server.view(f"/jobs/{JOB}/events", tuple[EventView, ...], (EVENT,))
        server.view("/nodes", tuple[NodeView, ...], (node_view(),))
        server.on("POST", "/nodes/node-a/drain", said(NodeView, node_view(drained="x")))
        server.on("POST", "/nodes/node-a/undrain", said(NodeView, node_view()))
        server.on("POST", "/agent/tokens", said(JoinTokenView, token, 201))
        server.on("POST", "/agent/join", said(MembershipView, member))
        server.view("/agent/membership", MembershipView, member)
        server.on("DELETE", "/agent/credentials/node-b", Said(204))
        assert [act(JOB).state for act in (client.pause, client.resume, client.retry)] == ["pause", "resume", "retry"]
        assert client.events(limit=3, kind="node_up", since_ms=9, newest=True) == (EVENT,)
        assert server.asked[-1].query == {"after": "0", "limit": "3", "kind": "node_up", "since_ms": "9", "newest": "true"}
        assert client.events(JOB, 7) == (EVENT,)
        assert server.asked[-1].query == {"after": "7"}
        assert client.nodes() == (node_view(),)
        assert client.drain("node-a", "x", now=True).drained == "x"
        assert wire.loads(DrainRequest, server.asked[-1].body) == DrainRequest(reason="x", now=True)
        assert client.undrain("node-a") == node_view()
        assert client.make_join_token(60_000) == token
        assert json.loads(server.asked[-1].body) == {"lifetime_ms": 60_000}
        assert client.join("node-b", "ab" * 32) == client.membership() == member
        assert wire.loads(JoinRequest, server.asked[-2].body) == JoinRequest(node="node-b", credential_sha256="ab" * 32)
        client.revoke_node("node-b")
        assert server.asked[-1].method == "DELETE"


@pytest.mark.parametrize("verb", ["pause", "resume", "retry"])
def test_a_refusal_is_a_conflict_and_what_is_no_id_is_not_sent(tmp_path: Path, verb: str) -> None:
    with recorded_server(tmp_path) as server, connect(tmp_path, {}) as client:
        server.on("POST", f"/jobs/{JOB}/{verb}", refusal(409, "job", JOB, "it has finished", title="Conflict"))
        with pytest.raises(Conflict, match="finished"):
            getattr(client, verb)(JOB)
        for bad in ("", "../x", "A B", "x?y"):
            with pytest.raises(NotFound):
                getattr(client, verb)(bad)
            with pytest.raises(NotFound):
                client.undrain(f"/{bad}")
        assert len(server.asked) == 1


@pytest.mark.parametrize(("verb", "tries"), [("pause", 5), ("resume", 5), ("retry", 1)])
def test_only_what_is_the_same_twice_is_sent_again(verb: str, tries: int) -> None:
    asked: list[str] = []

    def away(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        raise httpx.ConnectError("refused")

    with pytest.raises(ServerUnreachable):
        getattr(client_of(away), verb)(JOB)
    assert len(asked) == tries


def test_a_client_in_a_hurry_asks_once() -> None:
    asked: list[object] = []

    def away(request: httpx.Request) -> httpx.Response:
        asked.append(request.extensions["timeout"]["read"])
        raise httpx.ReadTimeout("slow")

    client = client_of(away)
    client.hurry(0.3)
    with pytest.raises(ServerUnreachable):
        client.nodes()
    assert asked == [0.3]


def test_waiting_goes_on_while_a_job_is_paused() -> None:
    time = Time()
    states = [job_view(state="paused")] * 3 + [finished_view()]
    client = client_of(lambda _: httpx.Response(200, content=wire.dumps(JobView, states.pop(0))), time)
    assert client.wait(JOB, poll_s=1.0).outcome == "succeeded"
    assert time.now_s == 3.0
    paused = client_of(lambda _: httpx.Response(200, content=wire.dumps(JobView, job_view(state="paused"))), time)
    with pytest.raises(WaitTimeout, match=rf"still paused after 5 s; `phalanx resume {JOB}`"):
        paused.wait(JOB, timeout_s=5)


@pytest.mark.parametrize(
    "url", ["https://far.example", "https://far.example:8443/", "http://127.0.0.1:1", "http://[::1]:2", "http://localhost"]
)
def test_addresses_that_a_token_may_be_sent_to(url: str) -> None:
    assert checked_url("URL", url) == url.rstrip("/")


@pytest.mark.parametrize(
    "url", ["http://far.example", "http://10.0.0.1", "ws://127.0.0.1", "", "http://", "http://localhost.evil.example"]
)
def test_addresses_that_it_may_not(url: str) -> None:
    with pytest.raises(SetupError, match="URL"):
        checked_url("URL", url)
