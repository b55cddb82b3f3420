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

Daemon = Literal["server", "agent", "standby"]
DEFAULT_PORT: Final = 8720

KEEP_IDLE_S: Final = 60
"""After so long without a word TCP asks whether the other side is still there."""


@dataclass(frozen=True, slots=True)
class Record:
    """run/<daemon>.json. `started_ms`: when it was written, for people; `url`: where the server listens.

    start_ticks, boot: when the process began, in clock ticks since that boot: with the pid they name one process for ever, and
    setting the machine's clock changes neither.
    """

    pid: int
    started_ms: int
    url: str = ""
    start_ticks: int = 0
    boot: str = ""


def record_self(home: Path, daemon: Daemon, url: str = "") -> None:
    """Leaves this process's record: it is ready."""
    now_ms = time.time_ns() // 1_000_000
    record = Record(os.getpid(), now_ms, url, start_ticks(os.getpid()), boot_id())
    write_atomic(_file(home, daemon), wire.dumps(Record, record).encode(), 0o600)


def note_progress(home: Path, daemon: Daemon) -> None:
    """Says that a daemon that has long to read before it is ready still gets on."""
    with contextlib.suppress(OSError):  # whoever waits for it gives up sooner then
        _progress_file(home, daemon).touch(0o600)
        now_ns = time.time_ns()  # finer than the clock by which older kernels stamp files
        os.utime(_progress_file(home, daemon), ns=(now_ns, now_ns))


def progress(home: Path, daemon: Daemon) -> int:
    """Grows with each `note_progress`; 0 before the first."""
    try:
        return _progress_file(home, daemon).stat().st_mtime_ns
    except OSError:
        return 0


def start_ticks(pid: int) -> int:
    """When the process began, in clock ticks since boot (field 22 of proc(5)); 0 when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    return int(stat.rpartition(b")")[2].split()[19])  # the name in brackets before may hold anything


def boot_id() -> str:
    """Changes with each boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


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

    Proof is the start that the record names, and a command line that names the daemon and this home.
    """
    found = read(home, daemon)
    if found is None or not found.start_ticks or (found.boot, found.start_ticks) != (boot_id(), start_ticks(found.pid)):
        return None
    try:
        process = psutil.Process(found.pid)
        line = process.cmdline()
        ours = process.status() != psutil.STATUS_ZOMBIE and {daemon, f"--{daemon}"} & {*line} and str(home) in line
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
    return process if ours else None


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
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # and so have the connections that it accepts
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_IDLE_S)
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


def _progress_file(home: Path, daemon: Daemon) -> Path:
    return home / "run" / f"{daemon}.progress"
