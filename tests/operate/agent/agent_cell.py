"""A real agent process, and a small real WebSocket server that plays the control plane."""

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

from phalanx.core import wire
from phalanx.core.ids import AttemptId
from phalanx.core.messages import (
    AttemptReport,
    Chunk,
    ChunkAck,
    FromAgent,
    Granted,
    Hello,
    Launch,
    Renew,
    Report,
    StartRanks,
    ToAgent,
    Welcome,
)
from phalanx.operate.agent.processes import start_ticks
from tests.forked import Forked, Forks
from tests.operate.goldens import protocol_1
from tests.ports import free_port

T = TypeVar("T")
ROOT = Path(__file__).parents[3]
DEADLINE_S = 60.0
PACE_MS = 300
"""A third of what a Welcome grants is the agent's pace: this makes it renew as often as it ever does, every 100 ms."""
TOKEN = "node-token"  # of this test's far side only


def until(look: Callable[[], T | None], limit_s: float = DEADLINE_S) -> T:
    """Polls real processes until `look` finds something."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.005)
    pytest.fail("what was waited for did not happen in time")


def alive(pid: int) -> bool:
    """Running, not merely a zombie."""
    return start_ticks(pid) is not None


def outside(pid: int, rank: int) -> int:
    """The number on this machine of the process that calls itself `pid` in the PID namespace of the process `rank`."""
    space = Path(f"/proc/{rank}/ns/pid").readlink()
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            numbers = next(line for line in status.read_text().splitlines() if line.startswith("NSpid:")).split()[1:]
            if numbers[-1] == str(pid) and (status.parent / "ns" / "pid").readlink() == space:
                return int(numbers[0])
    raise LookupError(f"nobody is {pid} in {space}")


@dataclass
class FarSide:
    """Writes chunks at their offsets and acks, keeps every message, says what the test tells it to. `old`: in the words of the
    release that spoke protocol 1 first. `lease_ms`: long, since a busy machine renews late; who wants one to end makes it short.
    `welcome_ms`: the Welcome's, where it is another; a third of it is the agent's pace from then on."""

    home: Path
    epoch: int = 1
    lease_ms: int = 60_000
    welcome_ms: int | None = None
    granting: bool = True
    grants_late_s: float = 0.0
    old: bool = False
    acking: bool = True
    blobs_away: bool = False
    blobs: dict[str, bytes] = field(default_factory=dict)
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    streams: dict[str, bytearray] = field(default_factory=dict)
    heard: list[tuple[float, Hello | Report | Renew | Chunk]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    _server: Server | None = None
    _agent: ServerConnection | None = None
    _threads: list[threading.Thread] = field(default_factory=list)

    def up(self) -> None:
        self._server = serve(self._serve, "127.0.0.1", 0, process_request=self._http)
        serving = threading.Thread(target=self._server.serve_forever)
        serving.start()
        self._threads.append(serving)
        url = f"http://127.0.0.1:{self._server.socket.getsockname()[1]}"
        run = self.home / "run"
        run.mkdir(parents=True, exist_ok=True)
        (run / "server.json").write_text(json.dumps({"url": url, "pid": os.getpid()}))

    def down(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            if self._agent is not None:
                self._agent.close()
            for thread in self._threads:
                thread.join()
            self._threads.clear()
            self._server.socket.close()
        self._server = self._agent = None

    def say(self, message: ToAgent) -> None:
        self._send(until(lambda: self._agent), message)

    def _send(self, connection: ServerConnection, message: ToAgent) -> None:
        text = wire.dumps(ToAgent, message)
        if self.old:
            text = wire.dumps(protocol_1.ToAgent, wire.loads(protocol_1.ToAgent, text))
        connection.send(text)

    def start(self, launch: Launch, epoch: int | None = None) -> None:
        self.say(StartRanks(launch, self.epoch if epoch is None else epoch))

    def reports(self, attempt: str) -> list[AttemptReport]:
        """Everything said of the attempt, in Hello or Report, oldest first."""
        found: list[AttemptReport] = []
        for _, message in list(self.heard):
            said = (message.report,) if isinstance(message, Report) else message.attempts if isinstance(message, Hello) else ()
            found += [report for report in said if report.attempt == attempt]
        return found

    def phase(self, attempt: str, phase: str, after: int = 0) -> AttemptReport:
        """Waits until the attempt is reported in that phase; `after` skips that many reports."""
        return until(lambda: next((report for report in self.reports(attempt)[after:] if report.phase == phase), None))

    def text(self, stream: str, attempt: str, rank: int) -> str:
        return bytes(self.streams.get(f"{stream}/{attempt}/{rank}", b"")).decode()

    def renewals(self) -> int:
        return sum(isinstance(message, Renew) for _, message in list(self.heard))

    def grants(self, lease_ms: int) -> None:
        """From here on such leases; several were granted when this returns."""
        self.lease_ms = lease_ms
        before = self.renewals()
        until(lambda: self.renewals() > before + 3)

    def hellos(self) -> list[Hello]:
        return [message for _, message in list(self.heard) if isinstance(message, Hello)]

    def _http(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.refused.append(request.path)
            return connection.respond(HTTPStatus.UNAUTHORIZED, "no\n")
        if request.path == "/api/v1/agent":
            return None
        if (answer := self.answers.get(request.path)) is not None:
            return Response(answer[0], "", Headers({"Content-Length": str(len(answer[1])), "Connection": "close"}), answer[1])
        if self.blobs_away:
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "later\n")
        body = self.blobs.get(request.path.rpartition("/")[2])
        if body is None:
            return connection.respond(HTTPStatus.NOT_FOUND, "no\n")
        return Response(200, "OK", Headers({"Content-Length": str(len(body)), "Connection": "close"}), body)

    def _serve(self, connection: ServerConnection) -> None:
        self._threads.append(threading.current_thread())
        try:
            for text in connection:
                wire.loads(protocol_1.FromAgent, text)  # nothing that an old control plane could not read
                self._hear(connection, wire.loads(FromAgent, text))
        except ConnectionClosed:
            pass

    def _hear(self, connection: ServerConnection, message: Hello | Report | Renew | Chunk) -> None:
        at = time.monotonic()
        if isinstance(message, Hello):
            acked = {key: len(data) for key, data in self.streams.items()}
            welcome_ms = self.lease_ms if self.welcome_ms is None else self.welcome_ms
            self._send(connection, Welcome(self.epoch, welcome_ms, acked))
            self._agent = connection  # before anybody sees that it is here: what is said next must go this way
        self.heard.append((at, message))
        match message:
            case Renew(number=number) if self.granting:
                self._grant(connection, Granted(number, self.lease_ms))
            case Chunk() if self.acking:
                self._send(connection, self.written(message))

    def _grant(self, connection: ServerConnection, granted: Granted) -> None:
        def send() -> None:
            with contextlib.suppress(ConnectionClosed):
                self._send(connection, granted)

        if not self.grants_late_s:
            self._send(connection, granted)
            return
        later = threading.Timer(self.grants_late_s, send)
        later.start()
        self._threads.append(later)

    def written(self, chunk: Chunk) -> ChunkAck:
        held = self.streams.setdefault(f"{chunk.stream}/{chunk.attempt}/{chunk.rank}", bytearray())
        if chunk.offset <= len(held):
            data = base64.b64decode(chunk.data)
            held[chunk.offset : chunk.offset + len(data)] = data
        return ChunkAck(chunk.stream, chunk.attempt, chunk.rank, len(held))


DEV: Final = ("-X", "dev", "-W", "error")
PROGRAM: Final = "tests.operate.agent.agent_program"
FORKS: Final = Forks(f"{PROGRAM}:main", [PROGRAM], DEV)


@dataclass
class AgentProcess:
    """`run_agent` in its own process, as `phalanx up` runs it."""

    home: Path
    process: subprocess.Popen[bytes] | Forked | None = None
    namespaces: bool = True  # whether its shims may make them, where its user may
    version: str = ""  # what it takes itself for
    looks: bool = True  # at files that nobody rings for, ten times a second

    def start(self) -> None:
        bounded = "" if self.namespaces else "__import__('ctypes').CDLL(None).prctl(24, 21, 0, 0, 0); "  # drops CAP_SYS_ADMIN
        imported = "from phalanx.operate.agent import agent; " if self.version or not self.looks else ""
        named = f"agent.version = lambda _: {self.version!r}; " if self.version else ""
        blind = "" if self.looks else "agent.LOOK_S = 3600; "
        changed = bounded + imported + named + blind
        found = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from {PROGRAM} import main; main(*sys.argv[1:])"
        words = [str(self.home), TOKEN]
        argv = [sys.executable, *DEV, "-c", changed + found, *words]
        with (self.home / "agent.log").open("ab") as log:
            if changed:
                self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=log)
            else:
                self.process = FORKS.start(words, argv, log)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def log(self) -> str:
        return (self.home / "agent.log").read_text()


@dataclass
class Cell:
    """One node and its control plane."""

    home: Path
    far: FarSide
    agent: AgentProcess

    def launch(self, script: str, attempt: str = "demo-1.1", ranks: int = 2, **changes: Any) -> Launch:
        """A launch of `script` (Python source) on `ranks` CPU slots."""
        values: Mapping[str, Any] = {
            "attempt": AttemptId(attempt), "argv": ("", "-c", script), "python": "", "env": {}, "code": "",
            "folder": str(self.home / "jobs"), "first_rank": 0, "world_size": ranks, "node_rank": 0, "num_nodes": 1,
            "devices": tuple(range(ranks)), "cpus": 0.0, "master_address": "127.0.0.1", "master_port": free_port(),
            "hyperparameters": {"lr": 0.5}, "checkpoint_every": 7, "checkpoint_keep_last": 2, "restarts": 0,
        }  # fmt: skip
        return Launch(**{**values, **changes})

    def on_terms(self, welcome_ms: int, lease_ms: int | None = None) -> None:
        """Makes the agent connect anew, to a control plane with such leases: the Welcome's, and those that follow."""
        until(self.far.hellos)
        before = len(self.far.hellos())
        self.far.down()
        self.far.welcome_ms = welcome_ms
        self.far.lease_ms = welcome_ms if lease_ms is None else lease_ms
        self.far.up()
        until(lambda: len(self.far.hellos()) > before)

    def folder(self, attempt: str = "demo-1.1") -> Path:
        return self.home / "node" / "attempts" / attempt

    def shim_pid(self, attempt: str = "demo-1.1") -> int:
        return int(json.loads((self.folder(attempt) / "shim-pid.json").read_bytes())["pid"])


def end_shim(pid: int) -> None:
    if alive(pid) and b"shim.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
        os.kill(pid, signal.SIGTERM)
        until(lambda: not alive(pid))


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    home = tmp_path / "home"
    home.mkdir()
    made = Cell(home, FarSide(home), AgentProcess(home))
    made.far.up()
    made.agent.start()
    yield made
    if made.agent.process is not None and made.agent.process.poll() is None:
        made.agent.end()
    for claim in (home / "node" / "attempts").glob("*/shim-pid.json"):
        end_shim(json.loads(claim.read_bytes())["pid"])
    made.far.down()
    sys.stderr.write(made.agent.log())  # shown of a test that failed: what was waited for may have been refused
    assert "Traceback" not in made.agent.log(), made.agent.log()
