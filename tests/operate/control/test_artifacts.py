"""Artifacts as the control plane takes them: of the node that holds the attempt, with bytes that are there, by sane names."""

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from phalanx.core import features, wire
from phalanx.core.ids import AttemptId
from phalanx.core.messages import ArtifactAck, ArtifactSaved, Launch, RequestTraces, StartRanks
from phalanx.core.profile import ProfileView, RankTrace, StepTrace, trace_name
from phalanx.core.records import RankRecord, StepRecord
from phalanx.core.trace_request import TraceMissed, TraceRequest, TraceRequestView
from phalanx.operate.control import artifacts
from tests.operate.control.control_bench import Bench, a_spec
from tests.operate.control.live_server import LiveServer, PlayedAgent, until

pytestmark = pytest.mark.both_databases


@dataclass(frozen=True)
class Playing:
    """A job whose ranks run on a node that the test plays."""

    server: LiveServer
    agent: PlayedAgent
    job: str
    launch: Launch

    def put(self, data: bytes, **query: str) -> httpx.Response:
        asked = {"node": self.agent.node, "attempt": self.launch.attempt, **query}
        with self.server.http(self.server.token("node-token")) as node:
            return node.put(f"/blobs/{sha(data)}", content=data, params=asked)

    def saved(self, name: str, data: bytes, attempt: str = "") -> ArtifactSaved:
        return ArtifactSaved(AttemptId(attempt or self.launch.attempt), name, sha(data), len(data), time.time_ns() // 1_000_000)

    def give(self, name: str, data: bytes) -> ArtifactAck:
        assert self.put(data).status_code == 204
        self.agent.say(self.saved(name, data))
        return self.agent.hear(ArtifactAck)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path_factory.mktemp("artifacts") / "home")
    live.start()
    yield live
    assert live.end() == 0, live.words()
    assert "Traceback" not in live.words(), live.words()


@pytest.fixture
def playing(server: LiveServer) -> Iterator[Playing]:
    with PlayedAgent(server) as agent:
        agent.shape = replace(agent.shape, features=(features.TRACES,))
        assert features.ARTIFACTS in agent.hello().features
        job = server.submit(name="giver", kind="train", resources={"gpus": "2"}, max_restarts=5)
        start = agent.hear(StartRanks)
        agent.report(start.launch, start.epoch, "running")
        until(lambda: server.get(f"/jobs/{job}")["state"] == "running")
        yield Playing(server, agent, job, start.launch)
        with server.http() as http:
            http.post(f"/jobs/{job}/cancel")
    with PlayedAgent(server) as agent:  # the last connection may have been closed on purpose
        agent.hello()
        agent.report(start.launch, start.epoch, "ended", {0: -15, 1: -15})
        until(lambda: server.get(f"/jobs/{job}")["state"] == "finished")


def test_the_newest_version_of_each_file_is_listed_and_its_bytes_are_there(server: LiveServer, playing: Playing) -> None:
    first = playing.give("out/loss.csv", b"1")
    assert (first.name, first.sha256) == ("out/loss.csv", sha(b"1"))
    playing.give("out/loss.csv", b"1,2")
    playing.give("a", b"")
    listed = server.get(f"/jobs/{playing.job}/artifacts")
    assert [(one["name"], one["sha256"], one["size_bytes"]) for one in listed] == [
        ("a", sha(b""), 0),
        ("out/loss.csv", sha(b"1,2"), 3),
    ]
    one = server.get(f"/jobs/{playing.job}/artifact", name="out/loss.csv", attempt="1")
    with server.http() as http:
        assert http.get(f"/blobs/{one['sha256']}").content == b"1,2"
        assert http.get(f"/jobs/{playing.job}/artifact", params={"name": "../loss.csv"}).status_code == 404
    pages = server.get(f"/jobs/{playing.job}/artifacts", limit=1)
    assert [one["name"] for one in pages] == ["a"]
    rest = server.get(f"/jobs/{playing.job}/artifacts", limit=1, after_attempt=pages[0]["attempt"], after_name="a")
    assert [one["name"] for one in rest] == ["out/loss.csv"]


def test_summaries_of_traces_are_read_together_and_what_is_none_is_named(server: LiveServer, playing: Playing) -> None:
    where = f"/jobs/{playing.job}/profile"
    with server.http() as http:
        assert "it has no traces" in http.get(where).text and http.get(where).status_code == 404
        for rank, exposed_ms in ((0, 10.0), (1, 20.0), (2, 30.0)):  # there is no third rank
            steps = (StepTrace(step=7, wall_ms=50, communication_ms=30, exposed_communication_ms=exposed_ms),)
            text = wire.dumps(RankTrace, RankTrace(rank=rank, on_gpu=False, steps=steps))
            playing.give(f"profile/{trace_name(rank, 7, 7)}.summary.json", text.encode())
        playing.give(f"profile/{trace_name(0, 5, 7)}.summary.json", text.encode())
        playing.give(f"profile/{trace_name(1, 5, 7)}.summary.json", text.replace("50", "1e308").encode())
        playing.give(f"profile/{trace_name(0, 3, 4)}.summary.json", b"{}")
        playing.give(f"profile/{trace_name(1, 3, 4)}.summary.json", b" " * 300_000)
        view = wire.loads(ProfileView, http.get(where).text)
        assert (view.first, view.last, view.others, view.unread) == (7, 7, ((3, 4), (5, 7)), ())
        assert [one.exposed_communication_ms for one in (*view.ranks, view.whole)] == [10, 20, 15]
        assert http.get(where, params={"first": 5}).json()["unread"] == [1]
        assert http.get(where, params={"attempt": "1", "first": 7}).json()["attempt"] == playing.launch.attempt
        assert "can be read" in http.get(where, params={"first": 3}).text
        assert "has traces of 3 to 4, 5 to 7, 7 to 7" in http.get(where, params={"first": 6}).text


def test_a_running_job_is_asked_for_traces_and_says_how_they_come_on(server: LiveServer, playing: Playing) -> None:
    where, agent = f"/jobs/{playing.job}/profile", playing.agent
    asked = {"steps": 2}
    with server.http() as http:
        assert "not said a step yet" in http.post(where, json=asked).text
        assert http.get(f"{where}/request").status_code == 404
        begun_ms = time.time_ns() // 1_000_000 + 60_000  # by a clock that is ahead: no stall of this machine makes its steps old
        agent.ship("records", playing.launch.attempt, 0, 0, record(7, begun_ms) + record(8, begun_ms))
        assert http.post(where, json={"steps": 0}).status_code == 422
        made = wire.loads(TraceRequestView, http.post(where, json=asked).text)
        assert (made.number, made.first, made.at_step, made.left) == (1, 8 + 2 + 5, 8, (0, 1)), "of steps of a second"
        assert agent.hear(RequestTraces).request == TraceRequest(number=1, first=15, count=2)
        again = http.post(where, json=asked)
        assert again.status_code == 409 and "asked for already" in again.json()["fix"]
        (said,) = [one for one in server.get("/events") if one["kind"] == "traces_requested" and one["job"] == playing.job]
        assert said["body"]["by"] == "admin"
        text = wire.dumps(RankTrace, RankTrace(rank=0, on_gpu=False, steps=(StepTrace(step=15, wall_ms=50),)))
        playing.give(f"profile/{trace_name(0, 15, 16)}.summary.json", text.encode())
        missed = TraceMissed(rank=1, step=14, number=1, why="it was late", at_ms=1)
        agent.ship("records", playing.launch.attempt, 1, 0, wire.dumps(RankRecord, missed).encode() + b"\n")
        done = until(lambda: view if not (view := progress(server, playing)).left else None)
        assert (done.traced, [(one.rank, one.why) for one in done.missed]) == (1, [(1, "it was late")])
        assert http.get(f"{where}/request", params={"number": 2}).status_code == 404
        assert [one["rank"] for one in http.get(where).json()["ranks"]] == [0]


def progress(server: LiveServer, playing: Playing) -> TraceRequestView:
    with server.http() as http:
        said = http.get(f"/jobs/{playing.job}/profile/request", params={"attempt": "1", "number": 1}).text
    view: TraceRequestView = wire.loads(TraceRequestView, said)
    return view


def record(step: int, begun_ms: int) -> bytes:
    """Of a step that took a second, in a run that began then."""
    made = StepRecord(
        rank=0, step=step, total_steps=100, loss=1.0, loss_hex="", grad_norm=1.0, lr=1.0, tokens=1, tokens_per_s=1.0, mfu=0.0,
        started_ms=begun_ms + 1_000 * step, ended_ms=begun_ms + 1_000 * step + 1_000,
    )  # fmt: skip
    return wire.dumps(StepRecord, made).encode() + b"\n"


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "a/../../b", "a\nb", "esc\x1b[2J", "", "x" * 600])
def test_a_name_that_cannot_be_breaks_the_protocol(server: LiveServer, playing: Playing, name: str) -> None:
    assert playing.put(b"data").status_code == 204
    playing.agent.say(playing.saved(name, b"data"))
    with pytest.raises(ConnectionClosed) as closed:
        playing.agent.hear(ArtifactAck)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
    assert server.get(f"/jobs/{playing.job}/artifacts") == []


def test_bytes_that_are_not_here_are_asked_for_again_by_a_new_connection(server: LiveServer, playing: Playing) -> None:
    playing.agent.say(playing.saved("gone", b"never sent"))
    with pytest.raises(ConnectionClosed) as closed:
        playing.agent.hear(ArtifactAck)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1013
    assert server.get(f"/jobs/{playing.job}/artifacts") == []


def test_what_is_not_the_nodes_to_tell_is_answered_and_dropped(server: LiveServer, playing: Playing) -> None:
    assert playing.put(b"data").status_code == 204
    playing.agent.say(playing.saved("mine", b"data", attempt="another-99.1"))
    assert playing.agent.hear(ArtifactAck).attempt == "another-99.1"
    assert server.get(f"/jobs/{playing.job}/artifacts") == []


def test_a_node_stores_blobs_of_its_attempts_only(server: LiveServer, playing: Playing) -> None:
    assert playing.put(b"held").status_code == 204
    assert playing.put(b"x", node="").status_code == 401
    assert playing.put(b"x", attempt="").status_code == 401
    assert playing.put(b"x", node="node-b").status_code == 404
    assert playing.put(b"x", attempt="another-99.1").status_code == 404
    with server.http(server.token("node-token")) as node:
        wrong = node.put(f"/blobs/{'0' * 64}", content=b"x", params={"node": playing.agent.node, "attempt": playing.launch.attempt})
        assert wrong.status_code == 422
        assert node.get(f"/jobs/{playing.job}/artifacts").status_code == 403


def test_an_attempt_has_no_more_rows_than_files_are_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "FILES_MAX", 2)
    bench.add("a")
    job = bench.submit(a_spec())
    bench.tick(2)
    attempt = bench.attempt(job).id
    kept = [
        artifacts.note(bench.store, bench.control.epoch, ArtifactSaved(attempt, name, sha(data), len(data), 1))
        for name, data in (("a", b"1"), ("b", b"2"), ("c", b"3"), ("a", b"4"))
    ]
    assert kept == [True, True, False, True]
    views = artifacts.of_attempts(bench.store, [attempt], ("", ""), 10)
    assert [(view.name, view.sha256) for view in views] == [("a", sha(b"4")), ("b", sha(b"2"))]
