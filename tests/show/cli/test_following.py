"""`submit --follow` and `logs -f` as processes: plain lines, a live bar on a real terminal, Ctrl-C, a server that is away."""

import contextlib
import dataclasses
import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from phalanx.core.views import JobView, LogPage, ModelView, Progress
from phalanx.show.cli.follow import PlainScreen, notices, progress_text
from tests.recorded import (
    JOB,
    RecordedServer,
    attempt_view,
    finished_view,
    job_view,
    killed_attempt,
    log_page,
    model_view,
    recorded_server,
    refusal,
    said,
)

ROOT = Path(__file__).resolve().parents[3]
COMMAND = (sys.executable, "-m", "tests.show.cli.phalanx_under_test")
DEADLINE_S = 30.0
FIRST = job_view(state="starting", restarts=0, progress=None, attempts=(attempt_view(1, running_ms=None),), checkpoints=())
SECOND = job_view(state="running", restarts=0, attempts=(attempt_view(1),), checkpoints=())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RecordedServer]:
    with recorded_server(tmp_path / "home") as recorded:
        recorded.on(
            "POST", "/jobs", said(JobView, job_view(state="pending", why="waits for nodes", attempts=(), progress=None), 201)
        )
        recorded.view(f"/jobs/{JOB}", JobView, FIRST, SECOND, job_view(), finished_view())
        recorded.view(f"/jobs/{JOB}/logs", LogPage, log_page("a\x1b[31mb\n"), log_page("", 8))
        yield recorded


def environ(tmp_path: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PHALANX_")}
    return {**clean, "PHALANX_HOME": str(tmp_path / "home"), "TERM": "xterm", "COLUMNS": "120"}


def submit_follow(tmp_path: Path, *options: str) -> tuple[str, ...]:
    file = tmp_path / "job.yaml"
    file.write_text("{name: tiny-lm, entrypoint: python train.py}")
    return (*COMMAND, "submit", str(file), "--follow", *options)


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, env=environ(tmp_path), cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S)


@pytest.mark.parametrize(("outcome", "code"), [("succeeded", 0), ("failed", 1)])
def test_a_pipe_gets_plain_lines_and_the_exit_code_is_the_outcome(
    server: RecordedServer, tmp_path: Path, outcome: str, code: int
) -> None:
    server.view(f"/jobs/{JOB}", JobView, FIRST, job_view(), finished_view(outcome))
    done = run(tmp_path, *submit_follow(tmp_path))
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.splitlines() == [
        f"Submitted {JOB}: waits for nodes.",
        f"{JOB} waits for nodes",
        f"{JOB}  pending  restarts 1",
        f"{JOB}.1 was placed on 2 devices of node-a",
        f"{JOB}  starting  restarts 0",
        f"{JOB}.1 is running",
        f"{JOB}.1 ended: rank 1 was killed by SIGKILL",
        f"{JOB}.2 was placed on 2 devices of node-a",
        f"{JOB}.2 is running",
        f"{JOB}.2 resumed after step 20",
        f"{JOB}  running  step 37/400  loss 6.2500  5,120 tokens/s  ETA 1m 20s  restarts 1",
        f"{JOB}.2 ended: all ranks exited 0",
        f"{JOB}  finished  step 37/400  loss 6.2500  5,120 tokens/s  ETA 1m 20s  restarts 1",
        f"{JOB} {outcome}: all ranks exited 0 (restarts 1; model tiny-lm:1)",
    ]


def test_with_json_the_answer_is_the_last_view_and_progress_goes_to_stderr(server: RecordedServer, tmp_path: Path) -> None:
    done = run(tmp_path, *submit_follow(tmp_path, "-o", "json"))
    assert json.loads(done.stdout)["outcome"] == "succeeded"
    assert "step 37/400" in done.stderr


def test_a_server_that_is_away_for_a_while_is_waited_for(server: RecordedServer, tmp_path: Path) -> None:
    gone = refusal(502, detail="starting")
    server.on("GET", f"/jobs/{JOB}", said(JobView, FIRST), *[gone] * 6, said(JobView, finished_view()))
    done = run(tmp_path, *submit_follow(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "The server does not answer; the ranks go on without it." in done.stdout
    assert "The server is back." in done.stdout


def test_a_server_that_comes_back_at_another_port_is_found(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with contextlib.ExitStack() as stack:
        with recorded_server(home) as first:
            first.view(f"/jobs/{JOB}", JobView, job_view())
            first.view(f"/jobs/{JOB}/logs", LogPage, log_page("one\n"), log_page("", 4))
            process = stack.enter_context(started(tmp_path, *COMMAND, "logs", "-f", JOB))
            assert process.stdout is not None
            assert process.stdout.readline() == b"one\n"
        with recorded_server(home) as second:
            second.view(f"/jobs/{JOB}", JobView, finished_view())
            second.view(f"/jobs/{JOB}/logs", LogPage, log_page("two\n", 4), log_page("", 8, ended=True))
            out, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (0, b"two\n")
    assert {one.query.get("offset") for one in second.asked} <= {None, "4", "8"}


@contextlib.contextmanager
def started(
    tmp_path: Path, *arguments: str, stdin: int | None = None, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(arguments, env=environ(tmp_path), cwd=ROOT, stdin=stdin, stdout=stdout, stderr=stderr) as process:
        try:
            yield process
        finally:
            process.kill()


def until(true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < end_s, "it did not come to that"
        time.sleep(0.02)


def test_ctrl_c_detaches_and_never_cancels(server: RecordedServer, tmp_path: Path) -> None:
    server.view(f"/jobs/{JOB}", JobView, job_view())
    with started(tmp_path, *submit_follow(tmp_path)) as process:
        until(lambda: len(server.paths("GET")) >= 2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert f"Detached; {JOB} goes on. Look again with `phalanx describe {JOB}`".encode() in err
    assert f"`phalanx cancel {JOB}`".encode() in err
    assert server.paths("POST") == ["/jobs"]
    assert b"step 37/400" in out


@pytest.mark.parametrize("arguments", [("wait", JOB), ("logs", "-f", JOB)])
def test_ctrl_c_stops_looking_and_nothing_else(server: RecordedServer, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    server.view(f"/jobs/{JOB}", JobView, job_view())
    with started(tmp_path, *COMMAND, *arguments) as process:
        until(lambda: len(server.asked) >= (1 if arguments[0] == "wait" else 3))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, server.paths("POST")) == (130, [])
    assert err.startswith(f"Detached; {JOB}".encode())


def on_terminal(tmp_path: Path, *arguments: str, interrupt_at: bytes = b"") -> tuple[int, bytes]:
    """The command on a real terminal: its exit code and everything the terminal was sent."""
    ours, theirs = pty.openpty()
    seen = b""
    with started(tmp_path, *arguments, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while part := os.read(ours, 65_536):
                seen += part
                if interrupt_at and interrupt_at in seen:
                    process.send_signal(signal.SIGINT)
                    interrupt_at = b""
        os.close(ours)
        return process.wait(DEADLINE_S), seen


def test_a_terminal_gets_a_live_bar(server: RecordedServer, tmp_path: Path) -> None:
    code, seen = on_terminal(tmp_path, *submit_follow(tmp_path))
    assert code == 0
    for part in (
        "step 37/400",
        "━",
        "loss 6.2500  5,120 tokens/s  ETA 1m 20s  restarts 1",
        f"{JOB}.2 resumed after step 20",
        "succeeded",
    ):
        assert part in seen.decode(), part


def test_ctrl_c_leaves_the_terminal_with_its_cursor(server: RecordedServer, tmp_path: Path) -> None:
    server.view(f"/jobs/{JOB}", JobView, job_view())
    code, seen = on_terminal(tmp_path, *submit_follow(tmp_path), interrupt_at=b"step 37/400")
    assert code == 130
    assert seen.rfind(b"\x1b[?25h") > seen.rfind(b"\x1b[?25l")
    assert b"Detached" in seen


def test_logs_on_a_terminal_cannot_steer_it(server: RecordedServer, tmp_path: Path) -> None:
    code, seen = on_terminal(tmp_path, *COMMAND, "logs", JOB)
    assert (code, seen) == (0, b"a\\x1b[31mb\r\n")


def test_a_sample_on_a_terminal_cannot_steer_it(server: RecordedServer, tmp_path: Path) -> None:
    server.view("/models/tiny-lm/1", ModelView, model_view())
    code, seen = on_terminal(tmp_path, *COMMAND, "model", "sample", "tiny-lm:1")
    assert (code, b"\\x1b[2J" in seen, b"\x1b[2J" in seen) == (0, True, False)


def test_notices_tell_each_change_once() -> None:
    assert notices(SECOND, SECOND) == []
    assert notices(FIRST, SECOND) == [f"{JOB}.1 is running"]
    assert notices(None, job_view(state="pending", why="waits", attempts=())) == [f"{JOB} waits"]
    odd = killed_attempt()
    assert notices(job_view(attempts=()), job_view(attempts=(odd,)))[-1] == f"{JOB}.1 ended: rank 1 was killed by SIGKILL"


def test_plain_lines_come_on_change_or_now_and_then() -> None:
    written = io.StringIO()
    screen = PlainScreen(written)
    views = [job_view(), *(job_view(progress=at_step(step)) for step in range(38, 44)), job_view(restarts=2)]
    for now_s, view in enumerate(views):
        screen.show(view, float(now_s))
    assert written.getvalue().splitlines() == [progress_text(views[0]), progress_text(views[5]), progress_text(views[7])]


def at_step(step: int) -> Progress:
    progress = job_view().progress
    assert progress is not None
    return dataclasses.replace(progress, step=step)
