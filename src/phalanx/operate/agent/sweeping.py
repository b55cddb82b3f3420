"""Finding and ending what an attempt's ranks left. Standard library only: the shim imports this."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from phalanx.operate.agent.processes import children, dead_children, start_ticks

SWEEP_S_MAX: Final = 5.0
SAVES_S_MAX: Final = 8.0
"""For keepers that write a checkpoint which a dead rank had begun: a little longer than they wait for each other's part of it."""
KEEPER: Final = b"phalanx.job.checkpoint.keeper"
"""The module that their processes run (job.checkpoint.keeper)."""


def sweep(marks: Sequence[str], reap: Callable[[], object] = lambda: None) -> set[int]:
    """SIGKILLs every process that carries all `marks` in its environment until none is left; the pids it killed."""
    wanted = [mark.encode() for mark in marks]
    killed: set[int] = set()
    until = time.monotonic() + SWEEP_S_MAX
    quiet = 0  # an empty pass may have met a process in the middle of exec, so it takes two
    while quiet < 2 and time.monotonic() < until:
        found = [pid for pid in _pids() if _carries(pid, wanted) and _kill_marked(pid, wanted)]
        killed.update(found)
        quiet = 0 if found else quiet + 1
        if found:
            time.sleep(0.01)
        reap()
    return killed


def finish_saves(folder: Path, marks: Sequence[str], reap: Callable[[], object]) -> set[int]:
    """Has the keepers of the attempt, whose sockets lie in `folder`, write what they are writing and end. Kills none."""
    if not any(folder.glob("*.sock")):
        return set()
    wanted = [mark.encode() for mark in marks]
    keepers = [pid for pid in _pids() if _is_keeper(pid) and _carries(pid, wanted)]
    for pid in keepers:
        _signal_marked(pid, wanted, signal.SIGTERM)
    until = time.monotonic() + SAVES_S_MAX
    while any(_is_keeper(pid) for pid in keepers) and time.monotonic() < until:
        reap()
        time.sleep(0.01)
    return set()


def end_namespace(init: int) -> set[int]:
    """Its init is gone once everything in it is."""
    left = children(init)
    with contextlib.suppress(ProcessLookupError):
        os.kill(init, signal.SIGKILL)
    until = time.monotonic() + SWEEP_S_MAX
    while start_ticks(init) is not None and time.monotonic() < until:
        dead_children()
        time.sleep(0.002)
    dead_children()
    return left


def kill_orphans() -> set[int]:
    """What hid from the marks by clearing its environment is the shim's child by now, since the shim is its subreaper."""
    killed: set[int] = set()
    until = time.monotonic() + SWEEP_S_MAX
    while time.monotonic() < until:
        dead_children()
        left = children(os.getpid())
        if not left:
            break
        for pid in left:
            with contextlib.suppress(PermissionError):  # it has become another user's, as with sudo
                os.kill(pid, signal.SIGKILL)  # a child that nobody else can reap: the number is still its own
                killed.add(pid)
        time.sleep(0.01)
    return killed


def _pids() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit() and int(entry.name) != os.getpid()]


def _carries(pid: int, wanted: Sequence[bytes]) -> bool:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return all(mark in words for mark in wanted)


def _is_keeper(pid: int) -> bool:
    try:
        return KEEPER in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")  # empty once it has ended and waits to be reaped
    except OSError:
        return False


def _kill_marked(pid: int, wanted: Sequence[bytes]) -> bool:
    return _signal_marked(pid, wanted, signal.SIGKILL)


def _signal_marked(pid: int, wanted: Sequence[bytes], number: signal.Signals) -> bool:
    """Signals through a pidfd and looks again after opening it, so that a reused pid is never hit."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not _carries(pid, wanted):
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
