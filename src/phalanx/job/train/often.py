"""When a run that saves as often as pays is to save next: from what its own saves and steps take, and how often gangs fail."""

import logging
import statistics
from collections import deque
from collections.abc import Callable
from typing import Final

from phalanx.core.interval import steps_between
from phalanx.job.checkpoint.together import decided_by_rank_zero

_log: Final = logging.getLogger(__name__)

FIRST_STEP: Final = 10
"""Of the first save, whose cost is not known yet. Steps before it warm up."""
_WINDOW: Final = 50
"""Steps and saves that count: machines and stores change."""


class Often:
    """What was measured, on one rank. mtbf_s: mean seconds between failures of the gang."""

    def __init__(self, mtbf_s: float) -> None:
        self._mtbf_s = mtbf_s
        self._steps_s: deque[float] = deque(maxlen=_WINDOW)
        self._costs_s: deque[float] = deque(maxlen=_WINDOW)
        self._writes_s: deque[float] = deque(maxlen=_WINDOW)

    def stepped(self, took_s: float) -> None:
        self._steps_s.append(took_s)

    def saved(self, stalled_s: float) -> None:
        """A save held training up for so long."""
        self._costs_s.append(stalled_s)

    def durable(self, after_s: float) -> None:
        """A save was committed so long after it was begun."""
        self._writes_s.append(after_s)

    def steps(self) -> int:
        """Until the next save. Before one is known to be durable as many as until the first."""
        if not (self._steps_s and self._costs_s and self._writes_s):
            return FIRST_STEP
        cost_s, step_s = statistics.median(self._costs_s), statistics.median(self._steps_s)
        return steps_between(cost_s, statistics.median(self._writes_s), step_s, self._mtbf_s)

    def sentence(self) -> str:
        cost_s, write_s, step_s = (statistics.median(one or [0.0]) for one in (self._costs_s, self._writes_s, self._steps_s))
        return (
            f"a save holds training up for {1e3 * cost_s:.1f} ms and is durable after {write_s:.1f} s, "
            f"a step takes {step_s:.3g} s, and a failure is expected every {self._mtbf_s / 3600:,.1f} h"
        )


class Rhythm:
    """The steps at which a gang saves, the same on every rank: rank 0 decides at each save when the next one is."""

    def __init__(self, mtbf_s: float, clock_s: Callable[[], float]) -> None:
        self._often = Often(mtbf_s)
        self._clock_s = clock_s
        self._next: int | None = None
        self._steps = FIRST_STEP
        self._stepped_s: float | None = None
        self._stalled_s: float | None = None  # of the newest save, until its copy was waited for
        self._begun_s: dict[int, float] = {}

    def is_due(self, step: int) -> bool:
        """Asked after every step."""
        if self._next is None:
            self._next = step - 1 + FIRST_STEP
        return step >= self._next

    def stepped(self, waited_s: float) -> None:
        """A step is over, whose update waited so long for a copy."""
        now_s = self._clock_s()
        if self._stalled_s is not None:
            self._often.saved(self._stalled_s + waited_s)
            self._stalled_s = None
        elif self._stepped_s is not None:
            self._often.stepped(now_s - self._stepped_s)
        self._stepped_s = now_s

    def begun(self, step: int, stalled_s: float) -> None:
        """A save is begun on all ranks. A collective of them."""
        self._begun_s[step], self._stalled_s = self._clock_s(), stalled_s
        steps = decided_by_rank_zero(self._often.steps)
        self._next = step + steps
        if steps != self._steps:
            self._steps = steps
            _log.info("checkpoints every %d steps from here: %s", steps, self._often.sentence())

    def durable(self, step: int) -> None:
        """On rank 0, which hears of it."""
        began_s = self._begun_s.pop(step, None)
        if began_s is not None:
            self._often.durable(self._clock_s() - began_s)
