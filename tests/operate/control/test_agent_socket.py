"""The agent's WebSocket at a real server: greeting, commands, leases, replacement, and what a broken agent meets."""

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from starlette.websockets import WebSocketState
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from phalanx.core import features, wire
from phalanx.core.devices import Device, NodeShape
from phalanx.core.errors import LinkDown, Unauthorized
from phalanx.core.ids import AttemptId, NodeId
from phalanx.core.messages import (
    PROTOCOL,
    AttemptReport,
    Forget,
    FromAgent,
    Granted,
    Hello,
    Launch,
    RankExit,
    Renew,
    Report,
    StartRanks,
    StopRanks,
    Welcome,
)
from phalanx.operate.control.agent_socket import AGAIN, FRAME_BYTES_MAX, POLICY, QUEUE_MAX, REPLACED, AgentDesk, AgentLink, Close
from phalanx.operate.control.last_words import LastWords
from tests.operate.control.live_server import LiveServer, PlayedAgent, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path_factory.mktemp("agents") / "home")
    live.start()
    yield live
    assert live.end() == 0, live.words()
    assert "Traceback" not in live.words(), live.words()


def closing(agent: PlayedAgent) -> int:
    """Reads until the server closes; the close code."""
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            agent.socket.recv(timeout=60)
    return closed.value.rcvd.code if closed.value.rcvd else 1006


def finish(agent: PlayedAgent, launch: Launch) -> None:
    """Ends a gang well, so that nothing is held when the next test starts."""
    agent.report(launch, 1, "ended", dict.fromkeys(range(len(launch.devices)), 0))
    agent.hear(Forget)


def test_the_handshake_needs_a_node_token(server: LiveServer) -> None:
    address = f"ws{server.url.removeprefix('http')}/api/v1/agent"
    for headers in ({}, {"Authorization": f"Bearer {server.token()}"}, {"Authorization": "Bearer x"}):
        with pytest.raises(InvalidStatus) as refused, connect(address, additional_headers=headers, proxy=None):
            pass
        assert refused.value.response.status_code == 403
    good = {"Authorization": f"Bearer {server.token('node-token')}"}
    for bad in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
        with pytest.raises(InvalidStatus), connect(address, additional_headers={**good, **bad}, proxy=None):
            pass


def test_a_gang_is_started_reported_ended_and_forgotten(server: LiveServer) -> None:
    with PlayedAgent(server) as agent:
        welcome = agent.hello()
        assert (welcome.epoch, welcome.lease_ms, dict(welcome.acked)) == (1, 15_000, {})
        job = server.submit(name="whole", resources={"gpus": "2"})
        launch = agent.started()
        assert (launch.attempt, launch.devices, launch.world_size) == (f"{job}.1", (0, 1), 2)
        until(lambda: server.get(f"/jobs/{job}")["state"] == "running")
        agent.ship("log", launch.attempt, 1, 0, b"hello\n")
        finish(agent, launch)
        assert until(lambda: server.get(f"/jobs/{job}")["outcome"]) == "succeeded"
        page = server.get(f"/jobs/{job}/logs", rank=1)
        assert (page["text"], page["ended"]) == ("hello\n", True)


def test_the_error_of_the_rank_that_fell_is_told_with_its_job_and_attempt(server: LiveServer) -> None:
    """Without the value of a secret, which the agent may not smuggle in as words of its own."""
    with server.http() as http:
        assert http.put("/secrets/LAST_WORDS_KEY", content="tiger-canary-0001").is_success
    with PlayedAgent(server) as agent:
        agent.shape = replace(agent.shape, features=(features.SECRETS,))
        agent.hello()
        job = server.submit(name="fallen", secrets=["LAST_WORDS_KEY"], max_restarts=0, resources={"gpus": "2"})
        launch = agent.started()
        agent.ship("log", launch.attempt, 1, 0, b"reading\nError: no login with tiger-canary-0001\n")
        fell, ended = RankExit(1, 2, 1, first=True), RankExit(0, -15, 2, said="tiger-canary-0001")
        agent.say(Report(AttemptReport(launch.attempt, 1, "ended", (), (ended, fell), 3)))
        agent.hear(Forget)
        assert until(lambda: server.get(f"/jobs/{job}")["outcome"]) == "failed"
        view = server.get(f"/jobs/{job}")
        assert [one["said"] for one in view["attempts"][0]["exits"]] == ["", "no login with ***"]
        assert view["attempts"][0]["detail"] == view["detail"] == "rank 1 exited with code 2: no login with ***"
        assert server.get(f"/jobs/{job}/why")["sentence"].endswith("code 2: no login with ***")
        assert "tiger-canary" not in json.dumps(server.get("/events"))


def test_cancel_stops_the_ranks(server: LiveServer) -> None:
    with PlayedAgent(server) as agent:
        agent.hello()
        job = server.submit(name="stopped")
        launch = agent.started()
        with server.http() as http:
            assert http.post(f"/jobs/{job}/cancel").json()["state"] == "stopping"
        assert agent.hear(StopRanks).attempt == launch.attempt
        agent.report(launch, 1, "ended", {0: -15})
        agent.hear(Forget)
        assert until(lambda: server.get(f"/jobs/{job}")["outcome"]) == "cancelled"


def test_a_lease_is_granted_by_number(server: LiveServer) -> None:
    with PlayedAgent(server) as agent:
        agent.hello()
        agent.say(Renew(7))
        assert agent.hear(Granted) == Granted(7, 15_000)


def test_a_node_that_saw_a_later_leader_is_welcomed_by_a_later_one(server: LiveServer) -> None:
    """As after the database was restored from an older copy; and what no honest node can have seen is refused by name."""
    with PlayedAgent(server) as agent:
        before = agent.hello().epoch
    with PlayedAgent(server) as agent:
        agent.say(Hello(agent.shape, "boot-1", PROTOCOL, "test", before + 40, ()))
        assert agent.hear(Welcome).epoch == before + 41
    with PlayedAgent(server) as agent:
        agent.say(Hello(agent.shape, "boot-1", PROTOCOL, "test", 2**60, ()))
        with pytest.raises(ConnectionClosed, match=r"epoch_seen .* cannot be"):
            agent.socket.recv(timeout=60)
    assert server.get("/status")["epoch"] == before + 41


def test_a_newer_connection_replaces_the_older_and_gets_the_commands(server: LiveServer) -> None:
    with PlayedAgent(server) as older, PlayedAgent(server) as newer:
        older.hello()
        newer.hello()
        assert closing(older) == REPLACED
        server.submit(name="moved")
        finish(newer, newer.started())


def test_a_hello_of_an_older_connection_that_comes_late_takes_nothing_over(server: LiveServer) -> None:
    """It lists nothing, since its agent held nothing when it was sent: the ranks that started since are not lost."""
    with PlayedAgent(server) as older, PlayedAgent(server) as newer:
        newer.hello()
        job = server.submit(name="late", max_restarts=0)
        launch = newer.started()
        until(lambda: server.get(f"/jobs/{job}")["state"] == "running")
        older.say(Hello(older.shape, "boot-1", PROTOCOL, "test", 0, ()))
        assert closing(older) == POLICY
        assert server.get(f"/jobs/{job}")["state"] == "running"
        finish(newer, launch)
        assert until(lambda: server.get(f"/jobs/{job}")["outcome"]) == "succeeded"


def test_an_agent_that_comes_back_is_told_what_is_durable(server: LiveServer) -> None:
    with PlayedAgent(server) as agent:
        agent.hello()
        server.submit(name="back")
        launch = agent.started()
        assert agent.ship("log", launch.attempt, 0, 0, b"12345").offset == 5
        report = agent.report(launch, 1, "running")
    with PlayedAgent(server) as again:
        assert dict(again.hello([report]).acked) == {f"log/{launch.attempt}/0": 5}
        assert again.ship("log", launch.attempt, 0, 9, b"beyond").offset == 5  # a gap: resume from here
        assert again.ship("log", launch.attempt, 0, 3, b"45678").offset == 8
        finish(again, launch)
    assert server.get("/jobs/" + launch.attempt[:-2] + "/logs")["text"] == "12345678"


def test_an_attempt_nobody_asked_for_is_stopped_and_forgotten(server: LiveServer) -> None:
    with PlayedAgent(server) as agent:
        agent.hello()
        server.submit(name="known")
        launch = agent.started()
        finish(agent, launch)
        until(lambda: server.get("/jobs/" + launch.attempt[:-2])["state"] == "finished")
        agent.report(launch, 1, "running")
        assert agent.hear(StopRanks).attempt == launch.attempt


@pytest.mark.parametrize(
    "frame",
    [
        "junk",
        "{}",
        '{"kind": "renew", "number": 1}',
        '{"kind": "hello"}',
        b"\x00\x01",
        "x" * (FRAME_BYTES_MAX + 1),
    ],
)
def test_what_is_no_hello_closes_the_connection(server: LiveServer, frame: str | bytes) -> None:
    with PlayedAgent(server) as agent:
        agent.socket.send(frame)
        assert closing(agent) in (POLICY, 1009, 1011, 1006)
    assert server.get("/status")["version"]


def test_another_protocol_is_refused_by_name(server: LiveServer) -> None:
    with PlayedAgent(server) as agent:
        agent.say(Hello(agent.shape, "boot-1", PROTOCOL + 1, "test", 0, ()))
        with pytest.raises(ConnectionClosed, match="protocol"):
            agent.socket.recv(timeout=60)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("cpus", float("nan")),
        ("cpus", -1),
        ("memory_bytes", -1),
        ("node", "../x"),
        ("node", ""),
        ("node", "n" * 300),
        ("address", ""),
        ("address", "\ud800"),
        ("ports", [0, 10]),
        ("ports", [30_000, 30_000]),
        ("ports", [30_100, 30_000]),
        ("ports", [1, 70_000]),
        ("devices", [{"index": 0, "type": "cpu", "name": "a"}] * 2),
        ("devices", [{"index": -1, "type": "cpu", "name": "a"}]),
        ("devices", [{"index": 0, "type": "cpu", "name": "a", "memory_bytes": -5}]),
        ("devices", [{"index": 0, "type": "", "name": "a"}]),
        ("devices", [{"index": index, "type": "cpu", "name": "a"} for index in range(1_025)]),
    ],
)
def test_a_shape_that_cannot_be_is_refused(server: LiveServer, part: str, value: object) -> None:
    with PlayedAgent(server) as agent:
        hello = wire.plain(Hello, Hello(agent.shape, "boot-1", PROTOCOL, "test", 0, ()))
        agent.socket.send(json.dumps({**hello, "shape": {**hello["shape"], part: value}}))
        assert closing(agent) == POLICY


@pytest.mark.parametrize("part", ["boot", "version"])
def test_what_a_hello_says_of_itself_has_bounds(server: LiveServer, part: str) -> None:
    """Each new boot is an event, which is kept for ever."""
    with PlayedAgent(server) as agent:
        hello = wire.plain(Hello, Hello(agent.shape, "boot-1", PROTOCOL, "test", 0, ()))
        agent.socket.send(json.dumps({**hello, part: "b" * 201}))
        assert closing(agent) == POLICY


def test_a_hello_with_an_attempt_that_is_none_is_refused(server: LiveServer) -> None:
    with PlayedAgent(server) as agent:
        report = AttemptReport(AttemptId("../../token"), 1, "running", (), (), 1)
        agent.say(Hello(agent.shape, "boot-1", PROTOCOL, "test", 0, (report,)))
        assert closing(agent) == POLICY


@pytest.mark.parametrize(
    "change",
    [
        {"attempt": "../../token"},
        {"attempt": "no-attempt"},
        {"rank": -1},
        {"rank": 10**9},
        {"offset": -1},
        {"data": "not base64!"},
        {"stream": "../token"},
        {"kind": "what"},
    ],
)
def test_a_malformed_chunk_closes_the_connection_and_nothing_else(server: LiveServer, change: dict[str, object]) -> None:
    with PlayedAgent(server) as agent:
        agent.hello()
        chunk = {"kind": "chunk", "stream": "log", "attempt": "x-1.1", "rank": 0, "offset": 0, "data": ""}
        agent.socket.send(json.dumps({**chunk, **change}))
        assert closing(agent) == POLICY
    with PlayedAgent(server) as agent:
        assert isinstance(agent.hello(), Welcome)


def test_bytes_of_an_attempt_that_is_not_the_nodes_are_acknowledged_and_dropped(server: LiveServer) -> None:
    with PlayedAgent(server) as agent:
        agent.hello()
        assert agent.ship("log", "stranger-9.1", 0, 0, b"abc").offset == 3
        assert not (server.home / "journal" / "stranger-9.1").exists()


def test_a_full_link_is_down_and_closes() -> None:
    async def scenario() -> None:
        link = AgentLink(NodeId("a"), asyncio.get_running_loop())
        command = StopRanks(AttemptId("x-1.1"), 1, 0)
        await asyncio.to_thread(link.send, [command] * QUEUE_MAX)
        await asyncio.sleep(0)
        with pytest.raises(LinkDown):
            link.send([command])
        link.say(command)
        assert [await link.next() for _ in range(QUEUE_MAX)] == [command] * QUEUE_MAX
        assert await link.next() == Close(AGAIN, "the agent does not read")
        with pytest.raises(LinkDown):
            link.send([command])

    asyncio.run(scenario())


def test_a_killed_server_comes_back_and_places_nothing_before_the_node_says_hello(server: LiveServer) -> None:
    with PlayedAgent(server) as agent:
        epoch = agent.hello().epoch
        server.submit(name="survivor", resources={"gpus": "1"})
        launch = agent.started()
        running = agent.report(launch, 1, "running")
        until(lambda: server.get("/jobs/" + launch.attempt[:-2])["state"] == "running")
        server.end(signal.SIGKILL)
    server.start()
    waiting = server.submit(name="waiting", resources={"gpus": "1"})
    until(lambda: server.get(f"/jobs/{waiting}/why")["reason"])
    assert server.get(f"/jobs/{waiting}")["state"] == "pending"
    with PlayedAgent(server) as agent:
        assert agent.hello([running]).epoch == epoch + 1
        start = agent.hear(StartRanks)
        assert start.launch.attempt == f"{waiting}.1"
        assert start.epoch == epoch + 1
        assert start.launch.devices != launch.devices
        agent.report(start.launch, epoch + 1, "ended", {0: 0})
        agent.report(launch, 1, "ended", {0: 0})
        assert {agent.hear(Forget).attempt, agent.hear(Forget).attempt} == {launch.attempt, start.launch.attempt}


class PlayedSocket:
    """Says hello, and then nothing."""

    client_state = application_state = WebSocketState.CONNECTED

    def __init__(self, hello: Hello) -> None:
        self.frames = [{"type": "websocket.receive", "text": wire.dumps(FromAgent, hello)}]
        self.closed: tuple[int, str] | None = None

    async def receive(self) -> dict[str, str]:
        return self.frames.pop() if self.frames else await asyncio.Future()

    async def send_text(self, text: str) -> None:
        pass

    async def close(self, code: int, reason: str) -> None:
        self.closed = code, reason


class PlayedControl:
    """Acts at once, for a controller that leads and hears everything."""

    epoch = 1

    async def call(self, act: Callable[["PlayedControl"], object]) -> object:
        return act(self)

    change = call

    def lead_above(self, epoch: int) -> int:
        return self.epoch

    def heard(self, node: NodeId, message: object) -> None:
        pass


class NothingAcked:
    async def acknowledged(self, attempts: object) -> dict[str, int]:
        return {}


def test_a_node_revoked_between_its_hello_and_its_welcome_is_not_let_in() -> None:
    """Whoever revokes finds no link to close at that moment."""
    shape = NodeShape(NodeId("rack-a"), "127.0.0.1", (Device(0, "cpu", "CPU slot"),), 2.0, 2**30, (30000, 30100))
    socket, links, answers = PlayedSocket(Hello(shape, "boot-1", PROTOCOL, "test", 0, ())), dict[NodeId, Any](), iter([True, False])

    def check_name(node: NodeId) -> None:
        if not next(answers):
            raise Unauthorized("node", node, "revoked")

    words = LastWords(cast(Any, None), cast(Any, None), cast(Any, None))  # nothing has ended
    control, artifacts = cast(Any, PlayedControl()), cast(Any, None)
    desk = AgentDesk(control, links, cast(Any, NothingAcked()), 15_000, lambda: 0, {}, artifacts, words)
    asyncio.run(asyncio.wait_for(desk.serve(cast(Any, socket), check_name), 20))
    assert socket.closed is not None and socket.closed[0] == POLICY
    assert links == {}
