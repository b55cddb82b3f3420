"""How much host memory a process can still take: the machine's, and that of every control group it is in. Linux; no torch."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_V2: Final = ("memory.max", "memory.current", "inactive_file")
_V1: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def free_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """What can be allocated without swapping or being killed for it: the least of the machine's and of each group's."""
    return min((_of_machine(proc), *_of_groups(proc, cgroups)))


def _of_machine(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _of_groups(proc: Path, cgroups: Path) -> Iterator[int]:
    """Of the process's group and all above it: each may have a limit. A group that is not shown here (a container sees its own as
    the root) counts as the root."""
    with contextlib.suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _upwards(cgroups, path, _V2)
            elif "memory" in controllers.split(","):
                yield from _upwards(cgroups / "memory", path, _V1)


def _upwards(root: Path, path: str, names: tuple[str, str, str]) -> Iterator[int]:
    own = root / path.lstrip("/")
    for folder in (own, *own.parents):
        with contextlib.suppress(OSError, ValueError):  # 'max' is no number: no limit here
            yield _left(folder, names)
        if folder == root:
            return


def _left(folder: Path, names: tuple[str, str, str]) -> int:
    limit, usage, cached = names
    left = int((folder / limit).read_text()) - int((folder / usage).read_text())
    for line in (folder / "memory.stat").read_text().splitlines():
        if line.startswith(f"{cached} "):
            left += int(line.split()[1])  # file cache that the kernel gives back when asked
    return max(left, 0)
