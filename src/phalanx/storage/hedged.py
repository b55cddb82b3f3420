"""Ranges of objects, asked for a second time where an answer takes longer than nearly all before: the first answer counts.

After J. Dean and L. A. Barroso, The Tail at Scale (CACM 56(2), 2013): a request that is later than the 95th percentile is sent
again, which costs a few percent more requests and cuts the tail that a reader of many ranges would wait for.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final

RangeRead = Callable[[str, int, int], memoryview]
"""Of an object's key, from a byte on, so many of them."""

SEEN_MIN: Final = 20
SEEN_MAX: Final = 200
QUANTILE: Final = 0.95
AFTER_S_MIN: Final = 0.02
HEDGES_AT_ONCE: Final = 2
"""A store that is slow for everyone gets no flood of second requests."""


class Times:
    """How long requests took lately, in kinds of alike sizes."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[float]] = {}
        self._lock = threading.Lock()

    def add(self, size_bytes: int, seconds: float) -> None:
        with self._lock:
            self._seen.setdefault(size_bytes.bit_length(), deque(maxlen=SEEN_MAX)).append(seconds)

    def late_s(self, size_bytes: int) -> float | None:
        """From when on a request of this size is late; None while too few were seen."""
        with self._lock:
            seen = sorted(self._seen.get(size_bytes.bit_length(), ()))
        return max(AFTER_S_MIN, seen[int(QUANTILE * len(seen))]) if len(seen) >= SEEN_MIN else None


class HedgedReads:
    """Reads of so many threads at once. hedges, won: second requests sent, and those that answered first."""

    def __init__(self, read: RangeRead, threads: int) -> None:
        self._read = read
        self._times = Times()
        self._free = threading.Semaphore(HEDGES_AT_ONCE)
        self._pool = ThreadPoolExecutor(threads + HEDGES_AT_ONCE, "range")
        self.hedges = 0
        self.won = 0

    def close(self) -> None:
        self._pool.shutdown(wait=False)

    def read(self, key: str, start: int, length: int) -> memoryview:
        """Raises what the reading does, where no request succeeds."""
        first = self._pool.submit(self._timed, key, start, length)
        late_s = self._times.late_s(length)
        done, _ = wait([first], late_s)
        if done or not self._free.acquire(blocking=False):
            return first.result()
        self.hedges += 1
        second = self._pool.submit(self._timed, key, start, length)
        second.add_done_callback(lambda _: self._free.release())
        winner = _first_good(first, second)
        self.won += winner is second
        return winner.result()

    def _timed(self, key: str, start: int, length: int) -> memoryview:
        began = time.monotonic()
        data = self._read(key, start, length)
        self._times.add(length, time.monotonic() - began)
        return data


def _first_good(first: Future[memoryview], second: Future[memoryview]) -> Future[memoryview]:
    """The one that succeeds first; where none does, the first."""
    done, waiting = wait((first, second), return_when=FIRST_COMPLETED)
    for future in (first, second):
        if future in done and future.exception() is None:
            return future
    wait(waiting)
    return second if first.exception() is not None and second.exception() is None else first
