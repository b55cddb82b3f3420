"""Virtual time: a queue of things to come, and clocks that read it. Nothing here waits."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

Act = Callable[[], object]

UNIX_START_MS: Final = 1_700_000_000_000
"""Wall time at the start of every history."""


class Timeline:
    """What happens next, in order of time; what is due in the same millisecond happens in the order in which it was asked for."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self._queue: list[tuple[int, int, Act]] = []
        self._asked = 0

    def after(self, delay_ms: int, act: Act) -> None:
        """Does `act` once that much time has passed. Nobody can take it back: `act` looks whether it still matters."""
        self._asked += 1
        heappush(self._queue, (self.now_ms + max(0, delay_ms), self._asked, act))

    def step(self, until_ms: int) -> bool:
        """The next thing, if it is due by `until_ms`; else time moves there. False when nothing was left to do by then."""
        if not self._queue or self._queue[0][0] > until_ms:
            self.now_ms = max(self.now_ms, until_ms)
            return False
        self.now_ms, _, act = heappop(self._queue)
        act()
        return True


class SimClock:
    """One machine's clocks: the monotonic one is everybody's, the wall clock is set at will."""

    def __init__(self, timeline: Timeline, skew_ms: int = 0) -> None:
        self._timeline = timeline
        self._offset_ms = UNIX_START_MS + skew_ms

    def now_ms(self) -> int:
        return self._timeline.now_ms + self._offset_ms

    def monotonic_ms(self) -> int:
        return self._timeline.now_ms

    def jump(self, ms: int) -> None:
        """Somebody sets the wall clock."""
        self._offset_ms += ms
