"""Joining over HTTP, and what a node's credential opens: its own connection, blobs, and nothing of another's."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from phalanx.core import features
from phalanx.core.activity import Signal
from phalanx.core.ids import NodeId
from phalanx.core.messages import (
    Activity,
    ArtifactAck,
    ArtifactSaved,
    AttemptReport,
    Granted,
    RankExit,
    Renew,
    Report,
    StartRanks,
)
from phalanx.operate.control.auth import digest
from phalanx.operate.home import node_name
from tests.operate.control.live_server import LiveServer, PlayedAgent, until


@dataclass(frozen=True)
class Pair:
    """Two nodes that no other test uses, and a credential for each."""

    number: int

    @property
    def a(self) -> str:
        return f"rack-a{self.number}"

    @property
    def b(self) -> str:
        return f"rack-b{self.number}"

    @property
    def own(self) -> str:
        return f"own-{self.number}-" * 9

    @property
    def other(self) -> str:
        return f"other-{self.number}-" * 9


NUMBERS = count()


@pytest.fixture
def pair() -> Pair:
    return Pair(next(NUMBERS))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path_factory.mktemp("joining") / "home")
    live.start()
    yield live
    assert live.end() == 0, live.words()
    assert "Traceback" not in live.words(), live.words()


def token(server: LiveServer, lifetime_ms: int = 60_000) -> str:
    with server.http() as http:
        answer = http.post("/agent/tokens", json={"lifetime_ms": lifetime_ms})
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    return str(answer.json()["token"])


def join(server: LiveServer, token: str, node: str, credential: str) -> httpx.Response:
    with server.http(token) as http:
        return http.post("/agent/join", json={"node": node, "credential_sha256": digest(credential)})


class Member(PlayedAgent):
    """An agent with a credential of its own."""

    def __init__(self, server: LiveServer, node: str, credential: str, slots: int = 2) -> None:
        super().__init__(server, NodeId(node), slots)
        self._headers = {"Authorization": f"Bearer {credential}"}


def refused(agent: PlayedAgent) -> str:
    """Why the server hung up on this agent's hello."""
    with agent, pytest.raises(ConnectionClosed) as closed:
        agent.hello()
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
    return closed.value.rcvd.reason


def problem(answer: httpx.Response) -> tuple[int, str, str]:
    body: dict[str, Any] = answer.json()
    return answer.status_code, body["title"], body["fix"]


def test_a_node_joins_and_is_given_work(server: LiveServer, pair: Pair) -> None:
    known = token(server)
    assert join(server, known, pair.a, pair.own).json() == {"node": pair.a}
    assert join(server, known, pair.a, pair.own).status_code == 200, "a lost answer is asked for again"
    with Member(server, pair.a, pair.own) as agent:
        agent.hello()
        server.submit(name="work", resources={"gpus": "2"})
        assert agent.hear(StartRanks).launch.devices == (0, 1)
        assert pair.a in {node["node"] for node in server.get("/nodes")}


def test_what_a_credential_opens(server: LiveServer, pair: Pair) -> None:
    join(server, token(server), pair.a, pair.own)
    with server.http() as admin:
        sha = digest("code")
        assert admin.put(f"/blobs/{sha}", content=b"code").status_code == 204
        assert problem(admin.get("/agent/membership"))[0] == 403
    with server.http(pair.own) as node:
        assert node.get("/agent/membership").json() == {"node": pair.a}
        assert node.get(f"/blobs/{sha}").content == b"code"
        closed = [
            "GET /status",
            "GET /jobs",
            "GET /nodes",
            "GET /events",
            "GET /secrets",
            f"PUT /blobs/{sha}",
            "POST /agent/tokens",
        ]
        for method, _, path in (route.partition(" ") for route in (*closed, f"DELETE /agent/credentials/{pair.a}")):
            assert node.request(method, path).status_code == (401 if method == "PUT" else 403), path
        assert problem(node.get("/attempts/x-1.1/secrets", params={"node": pair.b}))[:2] == (401, "Unauthorized")
        assert node.get("/attempts/x-1.1/secrets", params={"node": pair.a}).status_code == 404
    with server.http(server.token("node-token")) as home:
        assert home.get("/agent/membership").json() == {"node": ""}


def test_a_credential_may_not_call_itself_another_node(server: LiveServer, pair: Pair) -> None:
    join(server, token(server), pair.a, pair.own)
    join(server, token(server), pair.b, pair.other)
    assert pair.a in refused(Member(server, pair.b, pair.own))
    assert pair.a in refused(Member(server, "never-heard-of", pair.own))
    with Member(server, pair.b, pair.other) as right:
        right.hello()
        refused(Member(server, pair.b, pair.own))
        until(lambda: [node for node in server.get("/nodes") if node["node"] in (pair.a, pair.b)])
        assert right.socket.ping().wait(60), "its connection was not taken over"
    assert not {node["node"] for node in server.get("/nodes")} & {pair.a, "never-heard-of"}


def test_what_a_node_says_of_anothers_attempt_changes_nothing(server: LiveServer, pair: Pair) -> None:
    """By each message of the protocol and each route of nodes, with a credential of its own; from the right node each is heard."""
    join(server, token(server), pair.a, pair.own)
    join(server, token(server), pair.b, pair.other)
    record = b'{"kind": "metric", "rank": 0, "step": 1, "name": "forged", "value": 1.0, "at_ms": 1}\n'
    file = digest("file")
    with server.http() as admin, Member(server, pair.a, pair.own, 7) as victim:
        assert admin.put(f"/blobs/{file}", content=b"file").status_code == 204
        assert admin.put("/secrets/OF_A", content="tiger-canary").status_code == 204
        victim.shape = replace(victim.shape, features=(features.SECRETS, features.ARTIFACTS))
        victim.hello()
        job = server.submit(name="victim", secrets=["OF_A"], resources={"gpus": "7"})
        launch = victim.started()
        until(lambda: server.get(f"/jobs/{job}")["state"] == "running")
        ended = AttemptReport(launch.attempt, 1, "ended", (), (RankExit(0, 9, 1, first=True),), 2**53, "forged", ended_ms=1)

        def tell(agent: PlayedAgent, log: bytes) -> None:
            agent.ship("log", launch.attempt, 0, 0, log)
            agent.ship("records", launch.attempt, 0, 0, record)
            agent.say(ArtifactSaved(launch.attempt, "result", file, 4, 1))
            assert agent.hear(ArtifactAck).name == "result"
            agent.say(Activity(launch.attempt, (Signal("terminal", 10**9),)))
            agent.say(Renew(1))
            agent.hear(Granted)

        def known() -> tuple[Any, ...]:
            logs = server.get(f"/jobs/{job}/logs")["text"]
            return (
                server.get(f"/jobs/{job}")["state"],
                logs,
                len(server.get(f"/jobs/{job}/artifacts")),
                len(server.get(f"/jobs/{job}/steps")["metrics"]),
            )

        with Member(server, pair.b, pair.other) as forger:
            forger.hello([ended])
            tell(forger, b"forged\n")
            forger.say(Report(replace(ended, epoch=2**40)))
            forger.say(Report(replace(ended, phase="running", devices=(0, 1))))
            forger.say(Renew(2))
            forger.hear(Granted)
        with server.http(pair.other) as node:
            for named, status in ((pair.a, 401), (pair.b, 404)):
                query = {"node": named, "attempt": launch.attempt}
                assert node.get(f"/attempts/{launch.attempt}/secrets", params=query).status_code == status
                assert node.put(f"/blobs/{file}", params=query, content=b"file").status_code == status
        assert known() == ("running", "", 0, 0)
        tell(victim, b"mine\n")
        assert known() == ("running", "mine\n", 1, 1)
        with server.http(pair.own) as node:
            found = node.get(f"/attempts/{launch.attempt}/secrets", params={"node": pair.a})
            assert found.status_code == 200 and "tiger-canary" in found.text
        victim.report(launch, 1, "ended", dict.fromkeys(range(7), 0))
        until(lambda: server.get(f"/jobs/{job}")["outcome"] == "succeeded")


def test_the_homes_own_token_keeps_working_but_not_by_a_name_that_a_credential_holds(server: LiveServer, pair: Pair) -> None:
    join(server, token(server), pair.a, pair.own)
    with PlayedAgent(server) as own:
        own.hello()
    assert "joined" in refused(PlayedAgent(server, NodeId(pair.a)))


def test_a_name_that_is_taken_is_a_conflict_and_the_token_stays_good(server: LiveServer, pair: Pair) -> None:
    known = token(server)
    join(server, token(server), pair.a, pair.other)
    assert problem(join(server, known, node_name(server.home), pair.own))[:2] == (409, "Conflict")
    assert problem(join(server, known, pair.a, pair.own))[:2] == (409, "Conflict")
    with PlayedAgent(server) as agent:
        agent.hello()
        status, title, fix = problem(join(server, known, agent.node, pair.own))
        assert (status, title, "--name" in fix) == (409, "Conflict", True)
    assert join(server, known, pair.b, pair.own).status_code == 200


def test_a_token_that_is_used_expired_or_unknown_says_how_to_get_a_new_one(server: LiveServer, pair: Pair) -> None:
    known = token(server)
    assert join(server, known, pair.a, pair.own).status_code == 200
    used, unknown = join(server, known, pair.b, pair.other), join(server, "made-up", pair.b, pair.other)
    short = token(server, 1_000)
    expired = until(lambda: late(server, pair, short))
    assert [problem(one)[:2] for one in (used, unknown, expired)] == [
        (409, "Conflict"),
        (401, "Unauthorized"),
        (401, "Unauthorized"),
    ]
    assert all("phalanx agent token" in problem(one)[2] for one in (used, unknown, expired))


def late(server: LiveServer, pair: Pair, token: str) -> httpx.Response | None:
    """The answer once it is about the token's time; before, it is about the credential, which is another node's."""
    answer = join(server, token, pair.b, pair.own)
    return answer if answer.status_code == 401 else None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "node"),
        ({"node": "../x", "credential_sha256": "0" * 64}, "node"),
        ({"node": "x" * 64, "credential_sha256": "0" * 64}, "node"),
        ({"node": "rack-a", "credential_sha256": "short"}, "credential_sha256"),
    ],
)
def test_bad_input_names_its_field(server: LiveServer, pair: Pair, body: dict[str, str], field: str) -> None:
    with server.http(token(server)) as http:
        answer = http.post("/agent/join", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)
    with server.http() as admin:
        assert problem(admin.post("/agent/join", json=body))[0] == 401, "the admin's token lets no node join"
        for lifetime_ms in (0, 999, 31 * 86_400_000):
            assert admin.post("/agent/tokens", json={"lifetime_ms": lifetime_ms}).json()["field"] == "lifetime_ms"


def test_a_revoked_node_is_cut_off_and_stays_out_when_the_server_starts_again(server: LiveServer, pair: Pair) -> None:
    join(server, token(server), pair.a, pair.own)
    join(server, token(server), pair.b, pair.other)
    with Member(server, pair.a, pair.own) as agent, server.http() as admin:
        agent.hello()
        until(lambda: [node for node in server.get("/nodes") if node["node"] in (pair.a, pair.b)])
        assert admin.delete(f"/agent/credentials/{pair.a}").status_code == 204
        assert admin.delete(f"/agent/credentials/{pair.a}").status_code == 404
        with pytest.raises(ConnectionClosed) as closed:
            agent.hear(StartRanks)
        assert closed.value.rcvd is not None and "revoked" in closed.value.rcvd.reason
    server.end()
    server.start()
    with pytest.raises(InvalidStatus), Member(server, pair.a, pair.own):
        pass
    with Member(server, pair.b, pair.other) as still:
        still.hello()
