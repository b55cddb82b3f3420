"""Times of the week: when a window is open, and when it opens next."""

from collections.abc import Iterable, Iterator
from typing import Final

from phalanx.core.policy import Window

DAY_MS: Final = 86_400_000
MINUTE_MS: Final = 60_000
_THURSDAY: Final = 3
"""Weekday of Unix time 0, where Monday is 0."""


def opens_ms(windows: Iterable[Window], now_ms: int) -> int:
    """Unix time at which one of `windows` (at least one) is open next; `now_ms` itself when one is open."""
    return min(max(begins, now_ms) for window in windows for begins, ends in _turns(window, now_ms) if ends > now_ms)


def weekday(day: int) -> int:
    """Of a day counted from Unix time 0; 0 is Monday."""
    return (day + _THURSDAY) % 7


def _turns(window: Window, now_ms: int) -> Iterator[tuple[int, int]]:
    """Its times from yesterday, which may go on over midnight, until this day of the next week."""
    begins, ends = window.minutes
    days = window.weekdays
    today = now_ms // DAY_MS
    for day in range(today - 1, today + 8):
        if weekday(day) in days:
            yield day * DAY_MS + begins * MINUTE_MS, day * DAY_MS + ends * MINUTE_MS
