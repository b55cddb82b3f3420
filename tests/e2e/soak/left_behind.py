"""What a job or a whole platform leaves on a machine that it should not: processes, shared memory, sockets, ports, folders."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import psutil

from phalanx.operate.agent.sockets import agent_socket, socket_folder

SHARED = Path("/dev/shm")


def processes(home: Path, job: str = "") -> list[str]:
    """Of the home, or of one job of it, by command line and environment: 'pid command'."""
    return [f"{process.pid} {' '.join(_line(process))[:800]}" for process in _all(home) if not job or _is_of(process, job)]


def descriptors(home: Path) -> list[str]:
    """Anonymous shared memory that processes of the home still hold."""
    found = []
    for process in _all(home):
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    target = str(entry.readlink())
                    found += [f"{process.pid} {target}"] if target.startswith("/memfd:") else []
    return found


def shared_memory() -> set[str]:
    """Names in /dev/shm that no living process is named by."""
    with contextlib.suppress(FileNotFoundError):
        return {path.name for path in SHARED.iterdir() if not any(map(_lives, re.findall(r"\d+", path.name)))}
    return set()


def sockets(home: Path) -> list[str]:
    """Unix sockets of the home but the agent's own."""
    folder = socket_folder(home)
    return [path.name for path in folder.iterdir() if path.is_socket() and path != agent_socket(folder)]


def listening(home: Path) -> list[str]:
    """TCP ports on which something of the home still waits for somebody."""
    pids = {process.pid for process in _all(home)}
    return [str(one.laddr) for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN and one.pid in pids]


def attempts(home: Path) -> list[str]:
    """Folders of attempts that were not cleared away."""
    return sorted(path.name for path in (home / "node" / "attempts").iterdir())


def _all(home: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            environment = process.environ()
            words = (*_line(process), environment.get("PHALANX_RECORDS", ""), environment.get("PHALANX_SOCKET", ""))
            if any(str(home) in word for word in words):
                yield process


def _is_of(process: psutil.Process, job: str) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return process.environ().get("PHALANX_MARK", "").startswith(f"{job}.") or any(f"/{job}." in word for word in _line(process))
    return False


def _line(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return process.cmdline()
    return []


def _lives(number: str) -> bool:
    return len(number) < 8 and psutil.pid_exists(int(number))
