"""One control group of version 2 for each attempt, below the agent's own: bounds that the kernel keeps, and an end of all in it.

A group is a folder, named after the attempt; that it is there is all that has to be known of it after a crash. The shim puts each
rank into it before the rank becomes another user. Standard library only.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phalanx.core import isolation as names

PREFIX: Final = "phalanx-"
LEAF: Final = "phalanx-agent"
"""Where the agent steps aside to: a group that has processes of its own may not share out what it has."""
COUNT_MAX: Final = 32_768
"""Processes and threads of one attempt on one node: 8 ranks with loaders and compilers have some thousand."""
WEIGHT_OF_CPU: Final = 100  # the kernel's usual weight of a whole group
WEIGHT_MAX: Final = 10_000
END_S_MAX: Final = 5.0
_NAMES: Final = {"memory": names.MEMORY, "cpu": names.CPU, "pids": names.COUNTS}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one attempt on one node. 0: none in particular."""

    memory_bytes: int = 0
    cpus: float = 0.0


@dataclass(frozen=True, slots=True)
class Cgroups:
    """May be made in `base`, with the `controllers` that may be had there. lacks: why not, as `core.isolation` names it."""

    base: Path | None
    controllers: tuple[str, ...] = ()
    lacks: Mapping[str, str] | None = None

    def can(self) -> tuple[str, ...]:
        kill = (names.KILL,) if self.base is not None and names.KILL not in (self.lacks or {}) else ()
        return (*(_NAMES[controller] for controller in self.controllers), *kill)

    def made(self, owner: str, bounds: Bounds) -> Path | None:
        """The group of `owner`, a name of an attempt and its home, bounded; None where none can be had. Raises OSError."""
        if self.base is None:
            return None
        group = self.base / group_name(owner)
        group.mkdir(exist_ok=True)
        for file, value in settings(self.controllers, bounds).items():
            (group / file).write_text(value)
        return group

    def of(self, owner: str) -> Path | None:
        """Where that group is, or was."""
        return None if self.base is None else self.base / group_name(owner)


def settings(controllers: Sequence[str], bounds: Bounds) -> dict[str, str]:
    """What is written into a group's files. CPUs are shared by weight, so that what nobody uses is not lost."""
    wanted: dict[str, str] = {}
    if "memory" in controllers and bounds.memory_bytes:
        wanted |= {"memory.max": str(bounds.memory_bytes)}
    if "cpu" in controllers and bounds.cpus:
        wanted |= {"cpu.weight": str(max(1, min(WEIGHT_MAX, round(bounds.cpus * WEIGHT_OF_CPU))))}
    if "pids" in controllers:
        wanted |= {"pids.max": str(COUNT_MAX)}
    return wanted


def group_name(owner: str) -> str:
    return f"{PREFIX}{hashlib.sha256(owner.encode()).hexdigest()[:24]}"


def find(proc: Path = Path("/proc/self")) -> Cgroups:
    """What this process may share out, found by trying; leaves nothing behind but the right to."""
    everything = (*_NAMES.values(), names.KILL)
    try:
        base = _own(proc)
        trial = base / f"{PREFIX}trial-{os.getpid()}"
        trial.mkdir()
    except OSError as error:
        return Cgroups(None, (), dict.fromkeys(everything, error.strerror or str(error)))
    try:
        lacks = {name: why for controller, name in _NAMES.items() if (why := _shared(base, controller))}
        if not (trial / "cgroup.kill").exists():
            lacks[names.KILL] = "the kernel is older than 5.14"
    finally:
        with contextlib.suppress(OSError):
            trial.rmdir()
    return Cgroups(base, tuple(controller for controller, name in _NAMES.items() if name not in lacks), lacks)


def _own(proc: Path) -> Path:
    """The folder of this process's group of version 2. Raises OSError."""
    path = next((line[3:] for line in (proc / "cgroup").read_text().splitlines() if line.startswith("0::")), None)
    mounts = [line.split(" - ") for line in (proc / "mountinfo").read_text().splitlines() if " - cgroup2 " in line]
    if path is None or not mounts:
        raise OSError("control groups of version 2 are not mounted")
    fields = mounts[0][0].split(" ")
    root, place = fields[3], fields[4]
    own = Path(place, os.path.relpath(path, root)) if root != "/" else Path(f"{place}{path.rstrip('/')}")
    return own.parent if own.name == LEAF else own  # an agent before this one has stepped aside, and started it there


def _shared(base: Path, controller: str) -> str:
    """'' once groups in `base` have that controller, else why not."""
    try:
        if controller not in (base / "cgroup.controllers").read_text().split():
            return f"the controller {controller} is not given to {base}"
        if controller in (base / "cgroup.subtree_control").read_text().split():
            return ""
        _step_aside(base)
        (base / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _step_aside(base: Path) -> None:
    """Where this process is alone in its group, as in a systemd unit with `Delegate=yes`; others are not ours to move."""
    if (base / "cgroup.procs").read_text().split() == [str(os.getpid())]:
        (base / LEAF).mkdir(exist_ok=True)
        (base / LEAF / "cgroup.procs").write_text(str(os.getpid()))


def join(group: str) -> None:
    """This process, and what it starts from here on. Raises OSError."""
    Path(group, "cgroup.procs").write_text("0")


def ooms(group: str) -> int:
    """How many of its processes the kernel has killed for the group's memory."""
    with contextlib.suppress(OSError, ValueError):
        words = dict(line.split() for line in Path(group, "memory.events").read_text().splitlines())
        return int(words.get("oom_kill", 0))
    return 0


def ended(group: Path) -> bool:
    """Kills what is left in it and removes it; False where it is still there."""
    until = time.monotonic() + END_S_MAX
    while group.is_dir():
        with contextlib.suppress(OSError):
            (group / "cgroup.kill").write_text("1")
        with contextlib.suppress(OSError):
            group.rmdir()
        if time.monotonic() > until:
            return False
        if group.is_dir():
            time.sleep(0.01)
    return True
