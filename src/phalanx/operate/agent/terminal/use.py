"""How much an attempt's processes and devices do: counters of the kernel and of the GPU's driver, looked at now and then."""

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

BUSY_SHARE: Final = 0.05
"""Of one core, over the time between two looks. A Jupyter server that is only asked how it is takes a hundredth."""
BUSY_PERCENT: Final = 1
_PPID, _TIMES = 4 - 3, slice(14 - 3, 18 - 3)
"""Fields of proc(5), counted from the third on: own and waited-for children's time, in user and system mode."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def cpu_s(shim: int, proc: Path = Path("/proc")) -> float | None:
    """Seconds of processor time of all that descend from the shim, with those that have ended and were waited for. None when there
    are none, so that nothing is known."""
    parents: dict[int, int] = {}
    times: dict[int, float] = {}
    for entry in proc.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[_PPID])
        times[int(entry.name)] = sum(map(int, fields[_TIMES])) / _TICKS_PER_S
    found = [time_s for pid, time_s in times.items() if pid != shim and _descends(pid, shim, parents)]
    return sum(found) if found else None


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    for _ in range(len(parents)):
        pid = parents.get(pid, 0)
        if pid in (0, ancestor):
            return pid == ancestor
    return False


def gpu_percent(uuids: Sequence[str]) -> int | None:
    """The busiest of them; None where the driver does not say."""
    nvml: Any = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        try:
            handles = [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
            return max(int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) for handle in handles)
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        return None


class Meter:
    """When a counter last grew by enough. `now_s` is monotonic; the first look counts as work."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self._busy_s: float | None = None
        self.share = 0.0

    def look(self, count_s: float, now_s: float) -> float:
        """Seconds since it was busy."""
        if self._last is None:
            self._busy_s = now_s
        elif now_s > self._last[1]:
            self.share = max(0.0, count_s - self._last[0]) / (now_s - self._last[1])
            if self.share >= BUSY_SHARE:
                self._busy_s = now_s
        self._last = (count_s, now_s)
        return now_s - (now_s if self._busy_s is None else self._busy_s)

    def saw(self, busy: bool, now_s: float) -> float:
        """Likewise of what is busy or not at the moment."""
        if busy or self._busy_s is None:
            self._busy_s = now_s
        return now_s - self._busy_s
