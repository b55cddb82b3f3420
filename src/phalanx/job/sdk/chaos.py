"""Faults that somebody planned for this rank while it runs, see `core.chaos`: found, claimed and acted on once, whoever holds the
rank by then. Standard library only, and one `stat` a step where the job allows faults; nothing where it does not."""

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Final

from phalanx.core import wire
from phalanx.core.chaos import EVERY, LATE, PLAN, Plan, PlannedFault, met_name

ENDS: Final = "ends_ms"


class Chaos:
    """Of one attempt's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: tuple[int, int] | None = None
        self._faults: tuple[PlannedFault, ...] = ()
        self._dealt: set[tuple[int, int]] = set()  # (number, rank) that need no second look

    def claimed(self, rank: int, step: int, kinds: tuple[str, ...]) -> list[tuple[PlannedFault, bool]]:
        """Those of these kinds that `rank`, which is at `step`, shall act on, and whether they came too late for that. Nobody is
        given one of them again. A disk that takes no mark spares the rank."""
        self._look()
        found = []
        for fault in self._faults:
            if (
                fault.fault not in kinds
                or fault.rank not in (rank, EVERY)
                or fault.step > step
                or (fault.number, rank) in self._dealt
            ):
                continue
            late = 0 < fault.step < step
            self._dealt.add((fault.number, rank))
            if self._claim(fault, rank, late):
                found.append((fault, late))
        return found

    def _look(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            status = (self._folder / PLAN).stat()
            seen = (status.st_mtime_ns, status.st_ino)
            if seen != self._seen:
                plan: Plan = wire.loads(Plan, (self._folder / PLAN).read_bytes())
                self._faults, self._seen = plan.faults, seen

    def _claim(self, fault: PlannedFault, rank: int, late: bool) -> bool:
        """The mark appears whole: a keeper may look at any moment."""
        path = self._folder / met_name(fault.number, rank)
        if path.exists():
            return False
        ends_ms = 0 if late else _now_ms() + fault.for_ms
        staged = self._folder / f".met-{fault.number}-{rank}-{os.getpid()}"
        try:
            staged.write_text(json.dumps({"fault": fault.fault, ENDS: ends_ms, LATE: late}))
            os.link(staged, path)
        except OSError:
            return False
        finally:
            with contextlib.suppress(OSError):
                staged.unlink()
        return True


def outage(folder: str, rank: int) -> str:
    """The fault of the store that `rank` has met and that is not over yet, as its kind; '' is none."""
    if not folder:
        return ""
    with contextlib.suppress(OSError, ValueError):
        for path in Path(folder).glob(f"met-*-{rank}"):
            met = json.loads(path.read_text())
            if met["fault"] in ("fill-disk", "drop-store") and _now_ms() < met[ENDS]:
                return str(met["fault"])
    return ""


def _now_ms() -> int:
    """One clock for every process of the machine, which nobody sets."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
