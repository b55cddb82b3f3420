"""Processes of this machine, as the kernel knows them. Standard library only: the shim imports this."""

import os
import socket
import struct
from pathlib import Path
from typing import Final

_STATE: Final = 3 - 3
_FLAGS: Final = 9 - 3
_START: Final = 22 - 3
_EXIT_CODE: Final = 52 - 3
"""Fields of proc(5), counted from the third on; the second, the name, may hold anything."""
_PF_EXITING: Final = 0x4  # include/linux/sched.h
_SIGNAL: Final = 0x7F
"""Of an exit code as waitpid gives it."""


def start_ticks(pid: int) -> int | None:
    """When the process began, in clock ticks since boot; with the pid and the boot it names one process. None when gone, be it
    that nobody has collected it yet: then its files are closed and its memory is given back.

    Raises OSError when that cannot be known, as with no file descriptor left: a process is not gone for that.
    """
    try:
        fields = _stat(pid)
        return None if _has_ended(pid, fields) else int(fields[_START])
    except (FileNotFoundError, ProcessLookupError):
        return None


def fatal_signal(pid: int) -> int | None:
    """The signal by which the kernel is ending that process; None where it is not, or where it has ended. Whoever had tens of
    gigabytes of locked memory is seen here seconds before it can be collected, and runs nothing of its program any more."""
    try:
        fields = _stat(pid)
        is_exiting = int(fields[_FLAGS]) & _PF_EXITING and not _has_ended(pid, fields)
    except OSError:
        return None
    return int(fields[_EXIT_CODE]) & _SIGNAL or None if is_exiting else None


def _stat(pid: int) -> list[bytes]:
    """From field 3 of proc(5) on; the name before may hold anything."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def _has_ended(pid: int, fields: list[bytes]) -> bool:
    """The state is the first thread's alone: others may still be in a write, or give back the memory of all of them."""
    return fields[_STATE] in (b"Z", b"X") and sum(1 for _ in Path(f"/proc/{pid}/task").iterdir()) <= 1


def peer_uid(channel: socket.socket) -> int:
    """The user at the other end of a unix socket, as it was when it connected. Raises OSError."""
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def children(pid: int) -> set[int]:
    try:
        return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except FileNotFoundError:
        return set()


def dead_children() -> list[tuple[int, int]]:
    """(pid, exit code) of every child that has ended and was not collected; orphans given to us are among them."""
    dead: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return dead
        if pid == 0:
            return dead
        dead.append((pid, os.waitstatus_to_exitcode(status)))
