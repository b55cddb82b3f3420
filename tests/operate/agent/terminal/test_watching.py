"""Signs of work (P12): of a kernel by its server's word, of processes by the kernel's counters, of files by their times."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from phalanx.core import features
from phalanx.core.activity import Signal
from phalanx.core.channels import NotebookPlace
from phalanx.core.ids import AttemptId
from phalanx.core.messages import Activity
from phalanx.operate.agent.attempt_run import AttemptRun
from phalanx.operate.agent.terminal import jupyter, use, watching
from phalanx.operate.agent.terminal.watching import Watching, newest_notebook_s
from tests.operate.agent.agent_cell import until

TOKEN = "the notebook's own"
NOW_S = 1_700_000_000.0
SESSION = SimpleNamespace(launch=SimpleNamespace(session="notebook"))
RUNS = SimpleNamespace(ranks=(1,), ended=False)


def iso(ago_s: float) -> str:
    return datetime.fromtimestamp(NOW_S - ago_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@contextmanager
def serving(answers: dict[str, Any]) -> Iterator[NotebookPlace]:
    """A server that answers as Jupyter's does, to who has the token."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers["Authorization"] == f"token {TOKEN}" and self.path in answers
            body = json.dumps(answers.get(self.path)).encode()
            self.send_response(200 if known else 403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield NotebookPlace(server.server_port, TOKEN)
        server.shutdown()
        thread.join()


def kernel(state: str, ago_s: float) -> dict[str, Any]:
    return {"id": "k", "name": "python3", "execution_state": state, "last_activity": iso(ago_s), "connections": 1}


@pytest.mark.parametrize(
    ("kernels", "age_ms", "said"),
    [
        ([kernel("busy", 18_000), kernel("idle", 60)], 0, "1 of 2 at work"),  # P12: a silent five-hour cell
        ([kernel("restarting", 1)], 0, "1 of 1 at work"),
        ([kernel("starting", 60)], 60_000, "1 idle"),
        ([kernel("idle", 1_800), kernel("dead", 2_000)], 1_800_000, "2 idle"),  # P12: whatever loops beside it
        ([], 7_200_000, "none"),  # since the server's start
    ],
)
def test_p12_a_kernel_s_word_for_itself(kernels: list[dict[str, Any]], age_ms: int, said: str) -> None:
    status = {"started": iso(7_200), "last_activity": iso(0), "connections": 3, "kernels": len(kernels)}
    with serving({"/api/status": status, "/api/kernels": kernels}) as place:
        signal = asyncio.run(jupyter.kernels(place, NOW_S))
    assert (signal.name, signal.age_ms, signal.said) == ("kernel", age_ms, said)


@pytest.mark.parametrize("answers", [{}, {"/api/status": {}, "/api/kernels": [{}]}, {"/api/status": [], "/api/kernels": 7}])
def test_p12_a_server_that_does_not_say_is_not_known(answers: dict[str, Any]) -> None:
    with serving(answers) as place:
        assert asyncio.run(jupyter.kernels(place, NOW_S)).age_ms is None
    assert asyncio.run(jupyter.kernels(place, NOW_S)).age_ms is None  # nobody listens there any more


@contextmanager
def answering(*pieces: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """A server of whatever mind, and what it was asked. The last piece is sent again and again, a byte at a time."""
    asked: list[bytes] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection, contextlib.suppress(OSError):
                    asked.append(connection.recv(65536))
                    for piece in pieces[:-1]:
                        connection.sendall(piece)
                    while pieces[-1]:
                        connection.sendall(pieces[-1][:1])
                        stopped.wait(0.02)

    stopped = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1], asked
        stopped.set()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_notebook_server_sends_the_agent_nowhere_with_its_token() -> None:
    with serving({"/api/status": {}}) as other:
        moved = f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{other.port}/api/status\r\nContent-Length: 0\r\n\r\n"
        with answering(moved.encode(), b"") as (port, asked):
            said = asyncio.run(jupyter.kernels(NotebookPlace(port, TOKEN), NOW_S))
    assert (said.age_ms, said.said) == (None, "the notebook server does not say: ValueError")
    assert len(asked) == 1


def test_an_answer_that_comes_byte_by_byte_ends_with_the_limit() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
    with answering(head, b" ") as (port, _):
        said = asyncio.run(jupyter.kernels(NotebookPlace(port, TOKEN), NOW_S, limit_s=0.3))
    assert (said.age_ms, said.said) == (None, "the notebook server does not say: TimeoutError")


class Held(Watching):
    """Whose look at `slow-1.1` never ends."""

    async def _signals(self, run: AttemptRun) -> tuple[Signal, ...]:
        if run.folder.attempt == "slow-1.1":
            await asyncio.Event().wait()
        return (Signal("cpu", 0, ""),)


def test_a_job_that_does_not_answer_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs are plain facts here: what is looked at is whose turn it is."""
    monkeypatch.setattr(watching, "LOOK_S", 0.0)
    facts = [
        SimpleNamespace(folder=SimpleNamespace(attempt=AttemptId(f"{name}-1.1"), accepted=SESSION), seen=RUNS)
        for name in ("slow", "quick")
    ]

    async def watched() -> list[str]:
        said: list[str] = []
        enough = asyncio.Event()

        def heard(activity: Activity) -> None:
            said.append(activity.attempt)
            if len(said) == 3:
                enough.set()

        held = Held(lambda: cast("Any", facts), cast("Any", None), cast("Any", None), cast("Any", None), heard)
        held.welcome([features.ACTIVITY])
        running = asyncio.create_task(held.run())
        async with asyncio.timeout(60):
            await enough.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert len(asyncio.all_tasks()) == 1, "it leaves nothing behind"
        return said

    assert set(asyncio.run(watched())) == {"quick-1.1"}


def test_p12_a_stalled_process_uses_no_processor_and_a_busy_one_does() -> None:
    code = (
        "import os, subprocess, sys; subprocess.Popen(['sleep', '1000']); print('up', flush=True); sys.stdin.read(1)\nwhile 1: pass"
    )
    shim = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        assert shim.stdout is not None
        assert shim.stdin is not None
        assert shim.stdout.readline() == b"up\n"
        before = use.cpu_s(shim.pid)
        assert before is not None
        shim.stdin.write(b"x")
        shim.stdin.flush()
        until(lambda: (use.cpu_s(shim.pid) or 0) > before + 0.2)
    finally:
        os.killpg(shim.pid, signal.SIGKILL)
        shim.communicate()
    assert use.cpu_s(shim.pid) is None  # nothing is there, so nothing is known


def test_a_meter_counts_from_when_it_was_last_busy() -> None:
    meter = use.Meter()
    assert meter.look(100.0, 10.0) == 0  # what was before nobody knows
    assert meter.look(100.2, 25.0) == 15  # about a hundredth of a core, as of a server that is asked how it is
    assert meter.look(101.2, 40.0) == 0
    assert round(meter.share, 3) == 0.067
    assert meter.look(101.2, 100.0) == 60
    assert meter.look(3.0, 115.0) == 75  # a busy child has gone and nobody waited for it: no work, and no error


def test_saved_notebooks_are_a_sign(tmp_path: Path) -> None:
    assert newest_notebook_s(tmp_path) is None
    assert newest_notebook_s(tmp_path / "none") is None
    (tmp_path / "one.ipynb").write_text("{}")
    (tmp_path / "other.txt").write_text("")
    assert newest_notebook_s(tmp_path) == (tmp_path / "one.ipynb").stat().st_mtime
