"""What the daemons of one home leave in `run/`: who they are, so that they can be found again and never mistaken for others."""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import psutil

from phalanx.core import wire
from phalanx.core.errors import SetupError
from phalanx.storage.atomic import write_atomic

Daemon = Literal["server", "agent"]
DEFAULT_PORT: Final = 8720
RECORD_MS_MAX: Final = 60_000
"""A daemon leaves its record this soon after its process began; an import on a busy machine takes seconds."""

CLOCK_SLACK_MS: Final = 5_000
"""A process's start time is computed from the boot time, which moves when the machine's clock is set."""


@dataclass(frozen=True, slots=True)
class Record:
    """run/<daemon>.json. `started_ms`: when it was written, soon after the process began; `url`: where the server listens."""

    pid: int
    started_ms: int
    url: str = ""


def record_self(home: Path, daemon: Daemon, url: str) -> None:
    """Leaves this process's record."""
    write_atomic(_file(home, daemon), wire.dumps(Record, Record(os.getpid(), time.time_ns() // 1_000_000, url)).encode())


def erase_self(home: Path, daemon: Daemon) -> None:
    """Takes it away again, unless another process has written its own meanwhile."""
    found = read(home, daemon)
    if found is not None and found.pid == os.getpid():
        _file(home, daemon).unlink(missing_ok=True)


def read(home: Path, daemon: Daemon) -> Record | None:
    """The record left by the daemon that was started last, alive or not; None when there is none to be read."""
    try:
        found: Record = wire.loads(Record, _file(home, daemon).read_bytes())
    except (OSError, ValueError):
        return None
    return found


def alive(home: Path, daemon: Daemon) -> psutil.Process | None:
    """The process of the record, or None when it is gone and its number perhaps somebody else's.

    Proof is a start just before the record was written, and a command line that names the daemon and this home.
    """
    found = read(home, daemon)
    if found is None:
        return None
    try:
        process = psutil.Process(found.pid)
        age_ms = found.started_ms - round(process.create_time() * 1000)
        line = process.cmdline()
        ours = process.status() != psutil.STATUS_ZOMBIE and daemon in line and str(home) in line
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
    return process if ours and -CLOCK_SLACK_MS <= age_ms <= RECORD_MS_MAX else None


@contextlib.contextmanager
def only_one(home: Path, name: str, fix: str) -> Iterator[None]:
    """Holds run/<name>.lock. Raises SetupError with `fix` when another process holds it; the kernel drops it with the holder."""
    try:
        handle = os.open(home / "run" / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SetupError("home", str(home), f"cannot be used ({error.strerror}: {error.filename}); make it writable") from error
    try:
        _take(handle, home, fix)
        yield
    finally:
        os.close(handle)


def _take(handle: int, home: Path, fix: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SetupError("home", str(home), fix) from error


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises SetupError when the port cannot be had."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except (OSError, OverflowError) as error:
        listener.close()
        why = getattr(error, "strerror", None) or str(error)
        raise SetupError(
            "port", port, f"cannot listen on it ({why}); choose another with --port, or --port 0 for any free one"
        ) from error
    return listener


def _file(home: Path, daemon: Daemon) -> Path:
    return home / "run" / f"{daemon}.json"
