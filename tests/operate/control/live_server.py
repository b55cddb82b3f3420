"""A real server process on a free port, and an agent played by the test over a real WebSocket."""

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from phalanx.core import wire
from phalanx.core.devices import Device, NodeShape
from phalanx.core.ids import AttemptId, NodeId
from phalanx.core.messages import (
    PROTOCOL,
    AttemptReport,
    Chunk,
    ChunkAck,
    FromAgent,
    Hello,
    Launch,
    Phase,
    RankExit,
    RankProcess,
    Report,
    StartRanks,
    Stream,
    ToAgent,
    Welcome,
)

T = TypeVar("T")
DEADLINE_S = 60.0
NODE = NodeId("node-a")


def until(look: Callable[[], T | None], limit_s: float = DEADLINE_S) -> T:
    """Polls something real until `look` finds it."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.01)
    pytest.fail("what was waited for did not happen in time")


@dataclass
class LiveServer:
    """`phalanx.app server` of one home."""

    home: Path
    process: "subprocess.Popen[bytes] | None" = None

    def start(self, port: int = 0) -> None:
        argv = [sys.executable, "-W", "error", "-m", "phalanx.app", "server", "--home", str(self.home), "--port", str(port)]
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "run" / "server.json").unlink(missing_ok=True)
        with (self.home / "out.log").open("ab") as out:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        until(lambda: (self.home / "run" / "server.json").exists() or self._must_live())

    def _must_live(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.words()
        return False

    def words(self) -> str:
        """Everything it said."""
        log = self.home / "run" / "server.log"
        return (self.home / "out.log").read_text() + (log.read_text() if log.exists() else "")

    @property
    def url(self) -> str:
        return str(json.loads((self.home / "run" / "server.json").read_bytes())["url"])

    def token(self, name: str = "token") -> str:
        return (self.home / name).read_text().strip()

    def http(self, token: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.token() if token is None else token}"}
        return httpx.Client(base_url=f"{self.url}/api/v1", headers=headers, trust_env=False, timeout=DEADLINE_S, verify=False)

    def get(self, path: str, **params: Any) -> Any:
        with self.http() as http:
            answer = http.get(path, params=params)
        assert answer.is_success, answer.text
        return answer.json()

    def submit(self, **spec: Any) -> str:
        with self.http() as http:
            answer = http.post("/jobs", json={"spec": {"entrypoint": "true", **spec}})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        return self.process.wait(DEADLINE_S)


class PlayedAgent:
    """Says what the test wants said, and keeps what it was told."""

    def __init__(self, server: LiveServer, node: NodeId = NODE, slots: int = 2) -> None:
        self.node = node
        self.shape = NodeShape(
            node, "127.0.0.1", tuple(Device(i, "cpu", "CPU slot") for i in range(slots)), 2.0, 2**30, (30000, 30100)
        )
        self._address = f"ws{server.url.removeprefix('http')}/api/v1/agent"
        self._headers = {"Authorization": f"Bearer {server.token('node-token')}"}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "PlayedAgent":
        dialled = connect(self._address, additional_headers=self._headers, proxy=None, max_size=2**23)
        self.socket: ClientConnection = self._open.enter_context(dialled)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def say(self, message: Any) -> None:
        self.socket.send(wire.dumps(FromAgent, message))

    def hear(self, kind: type[T]) -> T:
        """The next message of that kind; others before it are passed over."""
        end = time.monotonic() + DEADLINE_S
        while True:
            message = wire.loads(ToAgent, self.socket.recv(timeout=max(0.0, end - time.monotonic())))
            if isinstance(message, kind):
                return message

    def hello(self, attempts: Sequence[AttemptReport] = (), boot: str = "boot-1") -> Welcome:
        self.say(Hello(self.shape, boot, PROTOCOL, "test", 0, tuple(attempts)))
        return self.hear(Welcome)

    def started(self) -> Launch:
        """Waits for a gang and says that its ranks run."""
        start = self.hear(StartRanks)
        self.report(start.launch, start.epoch, "running")
        return start.launch

    def report(
        self, launch: Launch, epoch: int, phase: Phase, codes: Mapping[int, int] | None = None, lost: str = ""
    ) -> AttemptReport:
        ranks = tuple(RankProcess(launch.first_rank + i, 1000 + i) for i in range(len(launch.devices)))
        exits = tuple(RankExit(rank, code, 1) for rank, code in (codes or {}).items())
        report = AttemptReport(launch.attempt, epoch, phase, ranks, exits, time.time_ns() // 1_000_000, lost, traces=0)
        self.say(Report(report))
        return report

    def ship(self, stream: Stream, attempt: str, rank: int, offset: int, data: bytes) -> ChunkAck:
        self.say(Chunk(stream, AttemptId(attempt), rank, offset, base64.b64encode(data).decode()))
        return self.hear(ChunkAck)
