"""What the kernel says of processes."""

import signal
import subprocess
import sys

import pytest

from phalanx.operate.agent.processes import fatal_signal

SLEEPS = "import time; print(flush=True); time.sleep(600)"


@pytest.mark.parametrize("number", [None, signal.SIGSTOP, signal.SIGCONT])
def test_who_lives_or_is_stopped_is_not_being_ended(number: signal.Signals | None) -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        if number is not None:
            process.send_signal(number)
        assert fatal_signal(process.pid) is None
        process.kill()


def test_who_has_ended_or_was_never_there_is_not_being_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as process:
        process.wait()
        assert fatal_signal(process.pid) is None
    assert fatal_signal(2**22 + 1) is None, "beyond the largest number"
