"""Processes that a benchmark has started, told by a mark in their environment, and their end."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path


def end(processes: Sequence["subprocess.Popen[bytes]"], grace_s: float) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
        process.kill()
        process.wait()


def sweep(folder: Path) -> None:
    """Ends what has that folder's mark and nobody to end it: keepers of killed ranks, workers of a killed torchrun."""
    while found := marked(folder):
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def marked(folder: Path) -> dict[int, list[bytes]]:
    """Processes with that folder's mark, and their environments."""
    found, mark = {}, f"PHALANX_MARK={folder}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "environ").read_bytes().split(b"\0")
            if mark in words:
                found[int(process.name)] = words
    return found


def child_of(pid: int) -> int:
    """The newest process that it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return max(map(int, children))
