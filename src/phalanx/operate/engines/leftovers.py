"""Processes of this home's attempts that are alive, known by what they carry: found and ended also when nobody holds them."""

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import psutil

from phalanx.core.errors import SetupError
from phalanx.operate import daemons

GRACE_S: Final = 8.0
"""A shim gives its ranks 5 s from SIGTERM to SIGKILL, and then writes down how they ended."""

KILL_S_MAX: Final = 10.0
"""SIGKILL ends a process within milliseconds, unless the kernel holds it: in a driver's call, or on a disk that is away."""

POLL_S: Final = 0.05


def attempts(home: Path) -> list[str]:
    """Attempts of `home` with a live process."""
    return sorted({name for _, name in _found(home) if name})


def sweep(home: Path, clock: Callable[[], float], sleep: Callable[[float], None]) -> bool:
    """Ends what is left of every attempt of `home`: shims first, which end their ranks in order; then whatever stays, by force.

    True when there was anything. Raises SetupError when something does not end even so.
    """
    first = _found(home)
    for process, _ in first:
        if _is_shim(process, home):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
    end_s = clock() + GRACE_S
    killing_since_s: float | None = None
    while first and (left := _found(home)):
        if clock() >= end_s or not any(_is_shim(process, home) for process, _ in left):
            killing_since_s = clock() if killing_since_s is None else killing_since_s
            if clock() - killing_since_s >= KILL_S_MAX:
                raise unkillable([process for process, _ in left])
            for process, _ in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        sleep(POLL_S)
    return bool(first)


def unkillable(left: Sequence[psutil.Process]) -> SetupError:
    """The error to raise for processes that SIGKILL does not end."""
    pids = ",".join(str(process.pid) for process in left)
    fix = "do not end although they were killed: the kernel holds them, in a driver's call or on a disk that does not answer"
    return SetupError("processes", pids, f"{fix}; see `ps -o pid,stat,wchan,cmd -p {pids}`, and reboot if they stay")


def end_children(home: Path) -> None:
    """Ends the scheduler and tracker of a server that was killed, which end by themselves but not before what they are at; and
    whoever is about to start an agent again that was killed on request (agent.faults).

    Raises SetupError when one does not end.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            line = process.cmdline()
            if "phalanx.app" in line and str(home) in line and {"scheduler", "tracking", "revive"} & set(line):
                process.kill()
                try:
                    process.wait(KILL_S_MAX)
                except psutil.TimeoutExpired as error:
                    raise unkillable([process]) from error


def _found(home: Path) -> list[tuple[psutil.Process, str]]:
    """Live processes whose command line (shims) or environment (ranks and their children) lies in this home's attempts, each with
    its attempt's name: '' for a shim that has none yet."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            folder = _attempt_folder(process, home)
            if folder is not None and process.status() != psutil.STATUS_ZOMBIE:
                found.append((process, folder))
    return found


def _attempt_folder(process: psutil.Process, home: Path) -> str | None:
    root = home / "node" / "attempts"
    is_shim = _is_shim(process, home)
    named = [process.environ().get("PHALANX_RECORDS", ""), *(process.cmdline() if is_shim else ())]
    parts = [part for text in named if text.startswith(f"{root}/") for part in Path(text).relative_to(root).parts[:1]]
    return parts[0] if parts else _claimed(process, root) if is_shim else None


def _claimed(process: psutil.Process, root: Path) -> str:
    """The attempt of a shim that was started before there was one, by its claim."""
    itself = (process.pid, daemons.start_ticks(process.pid), daemons.boot_id())
    for claim in root.glob("*/shim-pid.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            found = json.loads(claim.read_bytes())
            if (found["pid"], found["start"], found["boot"]) == itself:
                return claim.parent.name
    return ""


def _is_shim(process: psutil.Process, home: Path) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        line = process.cmdline()
        return any(word.endswith("/shim.py") for word in line) and any(word.startswith(f"{home}/node/attempts/") for word in line)
    return False
