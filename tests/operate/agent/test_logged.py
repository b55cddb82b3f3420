"""What a program's end means, and that giving it up leaves nothing behind."""

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from phalanx.operate.agent.logged import REASON_MAX, Outcome, quiet_code, run_logged, say
from phalanx.operate.agent.together import cancelled, to_its_end

UV_AWAY = """error: Request failed after 3 retries in 8.7s
  cause: Failed to fetch: http://127.0.0.1:9/simple/toy/
  cause: error sending request for url (http://127.0.0.1:9/simple/toy/)
"""
UV_FULL = "error: Failed to install: toy.whl\n  cause: failed to copy file\n  cause: No space left on device (os error 28)\n"
UV_BAD = "Using Python 3.11.7\nerror: No solution found when resolving dependencies\n  cause: Because there is no toy==3\n"
UV_GONE = "error: Failed to fetch: `https://x/y`\n  cause: HTTP status client error (404 Not Found) for url (https://x/y)\n"
UV_OLD = "  \u00d7 No solution found when resolving dependencies:\n  \u2570\u2500\u25b6 Because there is no version\n"
PODMAN_AWAY = (
    "Trying to pull a/b:1...\nError: initializing source docker://a/b:1: dial tcp 127.0.0.1:443: connect: connection refused\n"
)
PODMAN_BAD = "Error: initializing source docker://a/b:1: reading manifest 1 in a/b: manifest unknown\n"


@pytest.mark.parametrize(
    ("code", "said", "mends", "reason"),
    [
        (2, UV_AWAY, True, "Request failed after 3 retries in 8.7s; Failed to fetch: http://127.0.0.1:9/simple/toy/"),
        (2, UV_FULL, True, "No space left on device (os error 28)"),
        (1, UV_BAD, False, "No solution found when resolving dependencies; Because there is no toy==3"),
        (2, UV_GONE, False, "HTTP status client error (404 Not Found)"),
        (1, UV_OLD, False, "Because there is no version"),
        (125, PODMAN_AWAY, True, "connection refused"),
        (125, PODMAN_BAD, False, "manifest unknown"),
        (-9, "", True, "it was killed by signal 9"),
        (3, "", False, "it ended with code 3"),
    ],
)
def test_a_bad_lock_and_a_bad_day_are_told_apart(code: int, said: str, mends: bool, reason: str) -> None:
    outcome = Outcome(code, said)
    assert outcome.mends is mends
    assert reason in outcome.reason
    assert "\n" not in outcome.reason


def test_a_reason_has_an_end() -> None:
    assert len(Outcome(1, f"error: {'x' * 5000}").reason) <= REASON_MAX + 3


def test_words_go_to_the_log_as_they_come(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    say(log, "first")
    command = [sys.executable, "-c", "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)"]
    outcome = asyncio.run(run_logged(command, tmp_path, os.environ, log, "PHALANX_BUILD=x"))
    assert (outcome.code, outcome.said) == (3, "out\nerr\n")
    assert log.read_text() == "phalanx: first\nout\nerr\n"
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_question_that_nobody_waits_for_any_more_is_ended(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    command = [sys.executable, "-c", f"import os, signal; open({str(note)!r}, 'w').write(f'{{os.getpid()}}.'); signal.pause()"]

    async def scenario() -> None:
        asked = asyncio.create_task(quiet_code(command))
        end = time.monotonic() + 60
        while not (note.exists() and note.read_text().endswith(".")):
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        while Path(f"/proc/{note.read_text()[:-1]}").exists():
            assert time.monotonic() < end
            await asyncio.sleep(0.01)

    asyncio.run(scenario())
    assert asyncio.run(quiet_code([sys.executable, "-c", "import os; print('x'); raise SystemExit(len(os.environ))"], {})) <= 1


def test_a_thread_is_waited_for_however_often_its_waiter_is_reminded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.operate.agent.together.REMIND_S", 0.01)
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(60)
        ended.set()

    async def scenario() -> None:
        task = asyncio.create_task(to_its_end(work))
        await asyncio.to_thread(begun.wait, 30)
        ending = asyncio.create_task(cancelled([task]))
        reminded = 0
        while reminded < 20:  # turns in which it could have given up
            await asyncio.sleep(0.01)
            reminded = task.cancelling()
            assert not task.done()
        may_end.set()
        await ending
        assert task.cancelled()
        assert ended.is_set()

    asyncio.run(scenario())


def test_what_the_thread_raised_or_returned_is_the_callers() -> None:
    def fail() -> None:
        raise ValueError("no")

    assert asyncio.run(to_its_end(lambda: 7)) == 7
    with pytest.raises(ValueError, match="no"):
        asyncio.run(to_its_end(fail))
