"""Faults that somebody asked for and that befall this agent and its node. A rank says when, by a mark in the attempt's folder.

The agent kills itself, as SIGKILL from outside would; what brings it back is a process of a few kilobytes that waits for its death,
and then becomes the agent by the command line that this one was started with. Where systemd started it, systemd is left to do that.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import structlog

from phalanx.core.chaos import LATE, OF_AGENT, PlannedFault, met_name
from phalanx.core.ids import AttemptId
from phalanx.operate.agent.attempts import AttemptFolder
from phalanx.operate.agent.launch_env import marks
from phalanx.operate.agent.sweeping import sweep
from phalanx.operate.agent.told import read_told

_log = structlog.get_logger()

REVIVE: Final = """
import contextlib, os, select, sys, time
_, word, pid, wait_s, *command = sys.argv
with contextlib.suppress(ProcessLookupError):
    handle = os.pidfd_open(int(pid))
    if os.getppid() == int(pid):
        select.select([handle], [], [])
    os.close(handle)
time.sleep(float(wait_s))
os.execv(command[0], command)
"""
"""Standard input and its like are those of the agent before."""


class NodeFaults:
    """Of the attempts that one agent holds. `end` is called for the last act, which does not come back."""

    def __init__(self, socket: Path, end: Callable[[], NoReturn] | None = None) -> None:
        self._socket = socket
        self._end = end or _kill_self
        self._open: dict[AttemptId, tuple[AttemptFolder, tuple[PlannedFault, ...]]] = {}

    def planned(self, folder: AttemptFolder) -> None:
        """Its plan may be another than before."""
        if not folder.accepted.launch.chaos:
            return
        with contextlib.suppress(OSError):  # looked at again when the next fault is planned
            found = [fault for fault in folder.plan().faults if fault.fault in OF_AGENT and not _done(folder, fault).exists()]
            self._open[folder.attempt] = (folder, tuple(found))

    def drop(self, attempt: AttemptId) -> None:
        self._open.pop(attempt, None)

    def look(self) -> None:
        """Carries out what a rank has come to. Cheap where nothing is planned."""
        for folder, faults in list(self._open.values()):
            for fault in faults:
                mark = folder.chaos / met_name(fault.number, fault.rank)
                if not mark.exists():
                    continue
                if _came_late(mark):
                    self._pass_by(folder, fault)
                else:
                    self._befall(folder, fault)

    def _pass_by(self, folder: AttemptFolder, fault: PlannedFault) -> None:
        left = self._open[folder.attempt][1] if folder.attempt in self._open else ()
        self._open[folder.attempt] = (folder, tuple(other for other in left if other != fault))

    def _befall(self, folder: AttemptFolder, fault: PlannedFault) -> None:
        """Once: the agent after this one finds it done."""
        try:
            os.close(os.open(_done(folder, fault), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:  # it was done, or nobody would know that it was
            _log.warning("fault_not_carried_out", attempt=folder.attempt, fault=fault.sentence(), error=str(error))
            self.planned(folder)
            return
        _log.warning("fault_carried_out", attempt=folder.attempt, fault=fault.sentence())
        _revive_after(fault.for_ms / 1000)
        if fault.fault == "kill-node":
            _kill_attempt(folder, self._socket)
        self._end()


def _came_late(mark: Path) -> bool:
    """Whether the rank was beyond the fault's step when it heard of it."""
    try:
        said = json.loads(read_told(mark))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(said, dict) and said.get(LATE) is True


def _done(folder: AttemptFolder, fault: PlannedFault) -> Path:
    return folder.chaos / f"done-{fault.number}"


def _kill_attempt(folder: AttemptFolder, socket: Path) -> None:
    """Its shim, with which the kernel kills its ranks, and all that carries its marks. Other jobs of the node are let alone: they
    have not asked for it."""
    process = folder.shim_process()
    if process is not None and process.lives():
        with contextlib.suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)
    sweep(marks(folder.accepted.launch, str(socket)))


def _revive_after(wait_s: float) -> None:
    if os.environ.get("SYSTEMD_EXEC_PID") == str(os.getpid()):  # its unit says whether and when it comes back
        return
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", REVIVE, "revive", str(os.getpid()), str(wait_s), *_command()],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    child.returncode = 0  # it outlives this agent on purpose, so Popen need not warn of it


def _command() -> list[str]:
    """This process's own, by the path of its interpreter: it may have been started by a bare name."""
    return [sys.executable, *sys.orig_argv[1:]]


def _kill_self() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)  # the first process of a container cannot kill itself by a signal
