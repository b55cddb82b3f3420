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
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from phalanx.core.messages import RankExit
from phalanx.core.views import AttemptView, JobView, LogPage, ModelView, Progress, RecoveryView, StatusView, WhyView
from phalanx.show.cli.follow import PlainScreen, notices, progress_text
from phalanx.show.cli.job_page import job_page
from tests.recorded import (
    CPU,
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
    status_view,
    why_view,
)

ROOT = Path(__file__).resolve().parents[3]
COMMAND = (sys.executable, "-m", "tests.show.cli.phalanx_under_test")
DEADLINE_S = 60.0
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
        f"Submitted {JOB}.",
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
        f"{JOB}  finished  step 37/400  loss 6.2500  5,120 tokens/s  restarts 1",
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
    assert f"Detached; {JOB} goes on. Come back with `phalanx follow {JOB}`, look with `phalanx describe {JOB}`".encode() in err
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


def waits(why: str) -> JobView:
    return job_view(state="pending", why=why, attempts=())


def test_notices_tell_each_change_once() -> None:
    assert list(notices(SECOND, SECOND)) == []
    assert list(notices(FIRST, SECOND)) == [f"{JOB}.1 is running"]
    assert list(notices(None, waits("waits"))) == [f"{JOB} waits"]
    assert list(notices(waits("restarts in 9s: too soon"), waits("restarts in 8s: too soon"))) == [], "a countdown is no news"
    assert list(notices(waits("restarts in 1s: too soon"), waits("waits for room"))) == [f"{JOB} waits for room"]
    odd = killed_attempt()
    assert list(notices(job_view(attempts=()), job_view(attempts=(odd,))))[-1] == f"{JOB}.1 ended: rank 1 was killed by SIGKILL"


def test_a_recovery_inside_the_gang_is_told_once() -> None:
    one = RecoveryView(
        at_ms=1, generation=2, why="rank 0 was killed by SIGKILL", replaced=(0,), step=36, steps_lost=1, recovery_ms=397
    )
    before, after = (job_view(attempts=(attempt_view(2, recoveries=them),)) for them in ((), (one,)))
    assert list(notices(before, after)) == [f"{JOB}.2 recovered in 0.4 s and goes on after step 36: rank 0 was killed by SIGKILL"]
    assert list(notices(after, after)) == []
    alone = replace(one, replaced=(), absent=(0,))
    grown = replace(one, generation=3, why="the gang grows from 1 to 2 ranks", planned=True, steps_lost=0)
    both = job_view(attempts=(attempt_view(2, recoveries=(alone, grown)),))
    assert list(notices(before, both)) == [
        f"{JOB}.2 recovered in 0.4 s and goes on after step 36 without rank 0: rank 0 was killed by SIGKILL",
        f"{JOB}.2 grew in 0.4 s and goes on after step 36: the gang grows from 1 to 2 ranks",
    ]
    page = Console(width=160, file=(shown := io.StringIO()))
    for part in job_page(after, "runs", CPU):
        page.print(part)
    assert "Recoveries" in shown.getvalue()
    assert "step 36" in shown.getvalue()


def test_one_device_is_not_devices() -> None:
    one = attempt_view(1, ranks=attempt_view(1).ranks[:1], running_ms=None)
    assert list(notices(None, job_view(attempts=(one,)))) == [f"{JOB}.1 was placed on 1 device of node-a"]


def failing(rank: int = 1, attempt: int = 1) -> AttemptView:
    exits = (RankExit(1 - rank, -15, 8_900), RankExit(rank, 3, 8_800, first=True))
    return attempt_view(attempt, ended_ms=9_000, detail=f"rank {rank} exited with code 3", exits=exits)


def failed_view(rank: int = 1, **changes: object) -> JobView:
    given = {"attempts": (failing(rank),), "detail": f"rank {rank} exited with code 3", "model": None, "restarts": 0, **changes}
    return finished_view("failed", **given)


def test_a_failed_end_shows_what_the_first_fallen_rank_wrote_last(server: RecordedServer, tmp_path: Path) -> None:
    log = "".join(f"work {number}\n" for number in range(30)) + "KeyError\x1b[2J: 'x'\n"
    server.view(f"/jobs/{JOB}", JobView, failed_view())
    server.view(f"/jobs/{JOB}/logs", LogPage, log_page(log, ended=True, attempt=1))
    done = run(tmp_path, *COMMAND, "follow", JOB)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-13:] == [
        "Last lines of rank 1:",
        *(f"  work {number}" for number in range(21, 30)),
        "  KeyError\\x1b[2J: 'x'",
        f"All of it: `phalanx logs {JOB} --rank 1`",
        f"{JOB} failed: rank 1 exited with code 3 (restarts 0)",
    ]
    assert server.asked[-1].query == {"rank": "1", "attempt": f"{JOB}.1", "offset": "0", "limit": "65536"}


def test_a_job_without_steps_streams_its_log_before_its_end(server: RecordedServer, tmp_path: Path) -> None:
    running = job_view(state="running", progress=None, restarts=0, attempts=(attempt_view(1),))
    server.view(f"/jobs/{JOB}", JobView, running, running, failed_view(rank=0, progress=None))
    pages = (log_page("one\ntw", attempt=1), log_page("", 6), log_page("o\nbye", 6, ended=True))
    server.view(f"/jobs/{JOB}/logs", LogPage, *pages)
    done = run(tmp_path, *submit_follow(tmp_path))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[lines.index(f"{JOB}.1 is running") + 1] == "  one"
    assert lines[-6:] == [
        "  two",
        "  bye",
        f"{JOB}.1 ended: rank 0 exited with code 3",
        f"{JOB}  finished  restarts 0",
        f"All of its log: `phalanx logs {JOB} --rank 0`",
        f"{JOB} failed: rank 0 exited with code 3 (restarts 0)",
    ]


def test_a_job_with_steps_streams_no_log(server: RecordedServer, tmp_path: Path) -> None:
    run(tmp_path, *submit_follow(tmp_path))
    assert f"/jobs/{JOB}/logs" not in server.paths("GET")[2:]


def test_follow_is_the_way_back_to_the_live_view(server: RecordedServer, tmp_path: Path) -> None:
    done = run(tmp_path, *COMMAND, "follow", JOB)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"{JOB} succeeded: all ranks exited 0 (restarts 1; model tiny-lm:1)"
    as_json = run(tmp_path, *COMMAND, "follow", JOB, "-o", "json")
    assert json.loads(as_json.stdout)["outcome"] == "succeeded"


def test_the_last_line_on_a_terminal_is_the_result(server: RecordedServer, tmp_path: Path) -> None:
    server.view(f"/jobs/{JOB}", JobView, job_view(), finished_view())
    _, seen = on_terminal(tmp_path, *submit_follow(tmp_path))
    result = f"{JOB} succeeded: all ranks exited 0 (restarts 1; model tiny-lm:1)\r\n".encode()
    after = seen[seen.rfind(result) + len(result) :]
    assert seen.count(result) == 1
    assert after.endswith(b"\x1b[2K") or b"\x1b[2K" in after, after  # the bar that was drawn below it is wiped


@pytest.mark.parametrize("arguments", [("logs", JOB), ("logs", JOB, "-o", "json"), ("describe", JOB)])
def test_a_reader_that_leaves_early_is_no_failure(server: RecordedServer, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    server.view(f"/jobs/{JOB}/logs", LogPage, *(log_page("x\n" * 200_000, 400_000 * page) for page in range(3)), log_page("", 9))
    spec = {**job_view().spec, "env": {f"LEVEL_{number}": "1" * 100 for number in range(3_000)}}
    server.view(f"/jobs/{JOB}", JobView, job_view(spec=spec))
    server.view(f"/jobs/{JOB}/why", WhyView, why_view())
    server.view("/status", StatusView, status_view())
    with started(tmp_path, *COMMAND, *arguments) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert (process.wait(DEADLINE_S), process.stderr.read()) == (0, b"")


def test_a_log_without_a_last_newline_leaves_the_prompt_on_its_own_line(server: RecordedServer, tmp_path: Path) -> None:
    server.view(f"/jobs/{JOB}/logs", LogPage, log_page("a\nbye"), log_page("", 5, ended=True))
    assert on_terminal(tmp_path, *COMMAND, "logs", JOB) == (0, b"a\r\nbye\r\n")
    server.view(f"/jobs/{JOB}/logs", LogPage, log_page("a\nbye"), log_page("", 5, ended=True))
    assert run(tmp_path, *COMMAND, "logs", JOB).stdout == "a\nbye"


def test_preparing_data_shows_sizes_with_units(tmp_path: Path) -> None:
    _, seen = on_terminal(tmp_path, *COMMAND, "data", "prepare", "x", "--out", str(tmp_path / "out"))
    assert b"2 B of 2 B" in seen and b"None" not in seen


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
