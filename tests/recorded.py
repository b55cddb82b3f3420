"""Recorded answers of a control plane, and a small real HTTP server that gives them."""

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from phalanx.core import wire
from phalanx.core.devices import Device
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.messages import RankExit
from phalanx.core.spec import JobSpec
from phalanx.core.views import (
    AttemptView,
    CheckpointView,
    JobView,
    LedgerView,
    LogPage,
    ModelView,
    NodeView,
    Progress,
    RankView,
    StatusView,
    WhyView,
)

TOKEN = "recorded-token"
JOB = JobId("tiny-lm-7")
CPU = "CPU slots (this machine has no GPU)"


def attempt_view(number: int, **changes: Any) -> AttemptView:
    """An attempt that runs, unless changed."""
    ranks = tuple(RankView(rank=rank, node=NodeId("node-a"), device=rank, pid=100 + rank) for rank in range(2))
    base = AttemptView(
        attempt=AttemptId(f"{JOB}.{number}"), placed_ms=2_000, running_ms=3_000, ended_ms=None, detail="", exits=(),
        resumed_step=None, ranks=ranks,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def killed_attempt() -> AttemptView:
    exits = (RankExit(0, -15, 8_900), RankExit(1, -9, 8_800, first=True))
    return attempt_view(1, ended_ms=9_000, detail="rank 1 was killed by SIGKILL", exits=exits)


def job_view(**changes: Any) -> JobView:
    """A running job in its second attempt, unless changed."""
    spec = wire.plain(JobSpec, JobSpec(name="tiny-lm", kind="train", entrypoint=("python", "train.py"), env={"LEVEL": "1"}))
    base = JobView(
        id=JOB, name="tiny-lm", project="default", kind="train", queue="default", priority=50, state="running", outcome=None,
        detail="", why=None, restarts=1, num_nodes=1, devices="2", submitted_by="admin", submitted_ms=1_000, started_ms=2_000,
        finished_ms=None, code="c0de" * 16, config="c0f1" * 16, spec=spec,
        progress=Progress(step=37, total_steps=400, loss=6.25, tokens_per_s=5_120.0, mfu=0.0, eta_ms=80_000),
        attempts=(killed_attempt(), attempt_view(2, resumed_step=20)),
        checkpoints=(
            CheckpointView(
                attempt=AttemptId(f"{JOB}.1"), step=20, path="/jobs/ckpt-20", digest="d1" * 32, size_bytes=3 << 20, at_ms=5_000
            ),
        ),
        model=None,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def finished_view(outcome: str = "succeeded", **changes: Any) -> JobView:
    ended = attempt_view(2, resumed_step=20, ended_ms=20_000, exits=(RankExit(0, 0, 19_999), RankExit(1, 0, 19_999)))
    given = {"state": "finished", "outcome": outcome, "detail": "all ranks exited 0", "finished_ms": 20_000, "model": "tiny-lm:1"}
    return job_view(**{**given, "attempts": (killed_attempt(), ended), **changes})


def why_view(**changes: Any) -> WhyView:
    base = WhyView(job=JOB, state="running", sentence="runs on 2 devices of node-a", reason=None, position=None)
    return dataclasses.replace(base, **changes)


def node_view(**changes: Any) -> NodeView:
    """A node of two CPU slots, one of them held, unless changed."""
    devices = (Device(0, "cpu", "CPU slot 0"), Device(1, "cpu", "CPU slot 1"))
    base = NodeView(
        node=NodeId("node-a"), state="up", address="127.0.0.1", devices=devices, held={0: AttemptId(f"{JOB}.2")}, cpus=2.0,
        memory_bytes=8 << 30, seen_ms=9_000,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def status_view(**changes: Any) -> StatusView:
    node = node_view()
    base = StatusView(
        version="0.1.0", home="/srv/phalanx", url="http://127.0.0.1:8720", epoch=3, devices_are=CPU, devices_total=2,
        devices_held=1, jobs={"running": 1, "pending": 0}, nodes=(node,), outbox=0, processes={"server": 41, "agent": 42},
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def ledger_view(**changes: Any) -> LedgerView:
    base = LedgerView(
        job=None, since_ms=0, until_ms=10_000, capacity=20_000_000, categories={"idle": 5_000_000, "productive": 15_000_000},
        balanced=True, devices_are=CPU, cost=0.0123, notes=("prices of CPU slots are a guess",),
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def model_view(**changes: Any) -> ModelView:
    lineage = {
        "attempts": "1, 2",
        "code": "c0de" * 16,
        "data_manifest": "da7a" * 16,
        "environment.torch": "2.13.0",
        "environment.python": "3.11",
    }
    base = ModelView(
        name="tiny-lm", version=1, job=JOB, path="/jobs/model", weights_digest="3e16" * 16, metrics={"val_loss": 5.5},
        lineage=lineage, created_ms=20_000,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def log_page(text: str, offset: int = 0, ended: bool = False, attempt: int = 2) -> LogPage:
    end = offset + len(text.encode())
    return LogPage(attempt=AttemptId(f"{JOB}.{attempt}"), rank=0, offset=offset, next_offset=end, text=text, ended=ended)


@dataclass(frozen=True)
class Asked:
    """One request that came in."""

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes
    token: str
    last: str = ""
    """Of a stream: the id of the last event that was heard."""


@dataclass(frozen=True)
class Said:
    """One answer to give."""

    status: int = 200
    body: str = ""
    kind: str = "application/json"
    location: str = ""


def said(kind: Any, value: Any, status: int = 200) -> Said:
    return Said(status, wire.dumps(kind, value))


def refusal(status: int, field_name: str = "", value: str = "", fix: str = "", detail: str = "", title: str = "") -> Said:
    """A problem+json answer, with the keys of the contract."""
    body = {"title": title, "status": status, "detail": detail, "field": field_name, "value": value, "fix": fix}
    return Said(status, wire.dumps(dict, body), "application/problem+json")


Answer = Callable[[Asked], Said]


@dataclass
class RecordedServer:
    """Gives what was recorded for a method and path, one answer after the other; the last one again and again."""

    url: str = ""
    answers: dict[tuple[str, str], list[Said | Answer]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    def on(self, method: str, path: str, *answers: Said | Answer) -> None:
        self.answers[method, f"/api/v1{path}"] = list(answers)

    def view(self, path: str, kind: Any, *values: Any) -> None:
        self.on("GET", path, *(said(kind, value) for value in values))

    def reply(self, asked: Asked) -> Said:
        self.asked.append(asked)
        left = self.answers.get((asked.method, asked.path))
        if left is None:
            return refusal(404, "path", asked.path, "ask for something that was recorded")
        answer = left[0] if len(left) == 1 else left.pop(0)
        return answer if isinstance(answer, Said) else answer(asked)

    def paths(self, method: str) -> list[str]:
        return [one.path.removeprefix("/api/v1") for one in self.asked if one.method == method]


@contextmanager
def recorded_server(home: Path | None = None) -> Iterator[RecordedServer]:
    """A server on a free loopback port. With `home`, its address and token stand there as `phalanx up` would leave them."""
    recorded = RecordedServer()
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(recorded))
    http.daemon_threads = True
    recorded.url = f"http://127.0.0.1:{http.server_address[1]}"
    if home is not None:
        write_home(home, recorded.url)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield recorded
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def write_home(home: Path, url: str) -> None:
    (home / "run").mkdir(parents=True, exist_ok=True)
    (home / "run" / "server.json").write_text(wire.dumps(dict, {"url": url, "pid": 1, "started_ms": 1}))
    (home / "token").write_text(TOKEN + "\n")


def _handler(recorded: RecordedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """One request of the recorded server."""

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            last = self.headers.get("Last-Event-ID", "")
            answer = recorded.reply(Asked(self.command, parts.path, dict(parse_qsl(parts.query)), body, token, last))
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.kind)
            if answer.location:
                self.send_header("Location", answer.location)
            self.send_header("Content-Length", str(len(answer.body.encode())))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body.encode())

        do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
            """Silent: a test reads what the command says."""

    return Handler
