"""How long ranks were in steps. Of an attempt that is over and lies in a window whole, its measurements are read once."""

import threading
from collections import OrderedDict
from typing import Final

from phalanx.operate.control.usage_views import Window
from phalanx.operate.control.world import AttemptRecord
from phalanx.record.telemetry.series import SeriesStore

KEPT: Final = 100_000
"""Numbers, of the attempts that were asked for last: some 20 MB."""

_IN_STEPS: Final = (
    "SELECT coalesce(sum(greatest(0, least(ended_ms, ?) - greatest(started_ms, ?))), 0)::BIGINT AS ms FROM rows WHERE name = ''"
)


_WHOLE: Final = Window(0, 2**62)
"""Whose reader asked first must not decide how much of it is counted: a node's clock may differ from ours."""


class StepTimes:
    """Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, int], int] = OrderedDict()

    def of(self, series: SeriesStore, attempt: AttemptRecord, window: Window) -> int:
        """Milliseconds that all ranks of it together spent in steps, of a window; 0 where none were measured."""
        parts = series.parts_sealed(attempt.id) if _lies_in(attempt, window) else 0
        if not parts:
            return _read(series, attempt, window)
        key = (attempt.id, parts)  # what comes late makes one more part
        with self._lock:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return known
        found = _read(series, attempt, _WHOLE)
        with self._lock:
            self._known[key] = found
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return found


def _lies_in(attempt: AttemptRecord, window: Window) -> bool:
    """Whole, and so does every step of it that counts."""
    ended_ms = attempt.ended_ms
    return ended_ms is not None and window.since_ms <= attempt.placed_ms and ended_ms <= window.until_ms


def _read(series: SeriesStore, attempt: AttemptRecord, window: Window) -> int:
    if series.last_step(attempt.id) is None:
        return 0
    return int(series.asked(attempt.id, _IN_STEPS, (window.until_ms, window.since_ms))[0]["ms"])
