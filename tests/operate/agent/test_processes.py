"""What the kernel says of processes."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phalanx.operate.agent.processes import fatal_signal, start_ticks

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


FIRST_THREAD_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print(flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_who_has_a_thread_left_is_not_gone() -> None:
    """Its first thread is a zombie by then, and the state that the kernel tells is that one's."""
    with subprocess.Popen([sys.executable, "-c", FIRST_THREAD_ENDS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        began = start_ticks(process.pid)
        while Path(f"/proc/{process.pid}/stat").read_text().split()[2] != "Z":
            time.sleep(0.01)
        assert began is not None and start_ticks(process.pid) == began
        process.kill()
        while start_ticks(process.pid) is not None:
            time.sleep(0.01)
        assert process.poll() == -signal.SIGKILL, "then it can be collected"
