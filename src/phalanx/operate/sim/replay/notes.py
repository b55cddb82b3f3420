"""What is written down of a fleet as a replay goes on, besides the ledger."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from phalanx.core.devices import WHOLE
from phalanx.decide.scheduler import Start, Wait
from phalanx.operate.sim.replay.fleet import SimFleet
from phalanx.operate.sim.replay.gangs import Gangs
from phalanx.operate.sim.replay.outcome import Series
from phalanx.operate.sim.traces.trace import Trace

SAMPLE_MS: Final = 10 * 60_000
"""How often reasons and shares are looked at."""


class Notes:
    """series: the fleet after each decision. blocked_by: waiting jobs by kind of reason, whenever they were looked at."""

    def __init__(self, trace: Trace, shapes: Gangs) -> None:
        self.series = Series()
        self.blocked_by: Counter[str] = Counter()
        self._larger = _larger_than(trace, shapes)
        self._sampled_ms = 0

    def fleet(self, now_ms: int, fleet: SimFleet, needs: int, waiting: int, waiting_milli: int) -> None:
        """As it is after a decision. needs: devices that the first job in line asks for on each node; 0 when nobody waits."""
        stranded, blocked, whole = 0, 0, 0
        for free, nodes in enumerate(fleet.whole_free):
            if nodes and free:
                whole += free * nodes
                stranded += free * nodes * self._larger[min(free, len(self._larger) - 1)]
                blocked += free * nodes if free < needs else 0
        parts = fleet.idle_milli - WHOLE * whole
        stranded += parts * self._larger[0] // WHOLE
        blocked = blocked * WHOLE + (parts if needs else 0)
        self.series.add(now_ms, fleet.held_milli, fleet.idle_milli, stranded, blocked, waiting, waiting_milli)

    def sample(self, now_ms: int, decisions: Iterable[Start | Wait]) -> bool:
        """Counts reasons, if it is time to; whether it was."""
        if now_ms - self._sampled_ms < SAMPLE_MS:
            return False
        self._sampled_ms = now_ms
        self.blocked_by.update(decision.reason.kind for decision in decisions if isinstance(decision, Wait))
        return True


def _larger_than(trace: Trace, shapes: Gangs) -> list[int]:
    """How many of a thousand jobs of the trace ask for more than so many devices on a node, by that number. A share asks for none
    that is whole."""
    counts: Counter[int] = Counter()
    for job in trace.jobs:
        shape = shapes.shape(job)
        counts[0 if shape.request.is_share else shape.request.count] += 1
    jobs = max(1, len(trace.jobs))
    return [WHOLE * sum(num for count, num in counts.items() if count > free) // jobs for free in range(max(counts, default=0) + 1)]
