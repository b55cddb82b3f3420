"""How long attempts have held their devices, by a clock that nobody sets."""

from phalanx.core.ids import AttemptId
from phalanx.operate.control.world import AttemptRecord, World


class Stopwatch:
    """Counts on the monotonic clock from the first look at an attempt in this process on. What was before that only the wall
    clock knows; a clock that was set back makes it nothing, and so does not having run yet: it may be started only now."""

    def __init__(self) -> None:
        self._since: dict[AttemptId, int] = {}

    def look(self, world: World, now_ms: int, monotonic_ms: int) -> None:
        """Starts counting what holds devices and is new, drops what holds none any more."""
        self._since = {
            attempt.id: self._since.get(attempt.id, monotonic_ms - _before_ms(attempt, now_ms)) for _, attempt in world.holding()
        }

    def held_ms(self, attempt: AttemptRecord, monotonic_ms: int) -> int:
        """0 for an attempt that was never looked at."""
        return monotonic_ms - self._since.get(attempt.id, monotonic_ms)


def _before_ms(attempt: AttemptRecord, now_ms: int) -> int:
    return 0 if attempt.running_ms is None else max(0, now_ms - attempt.placed_ms)
