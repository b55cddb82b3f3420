"""How long attempts have held their devices, by a clock that nobody sets."""

from phalanx.core.ids import AttemptId
from phalanx.operate.control.world import AttemptRecord, World


class Stopwatch:
    """Counts on the monotonic clock from the first look at an attempt in this process on. What was before that only the wall
    clock knows; a clock that was set back makes it nothing."""

    def __init__(self) -> None:
        self._since: dict[AttemptId, int] = {}

    def look(self, world: World, now_ms: int, monotonic_ms: int) -> None:
        """Starts counting what holds devices and is new, drops what holds none any more."""
        holding = (attempt for _, attempt in world.holding())
        self._since = {
            attempt.id: self._since.get(attempt.id, monotonic_ms - max(0, now_ms - attempt.placed_ms)) for attempt in holding
        }

    def held_ms(self, attempt: AttemptRecord, monotonic_ms: int) -> int:
        """0 for an attempt that was never looked at."""
        return monotonic_ms - self._since.get(attempt.id, monotonic_ms)
