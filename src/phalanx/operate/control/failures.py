"""How often the fleet's nodes fail, from the attempts that ended on them. Pure."""

import signal
from dataclasses import dataclass
from typing import Final

from phalanx.core import interval
from phalanx.operate.control.world import AttemptRecord, World

_ASKED_TO_END: Final = (-signal.SIGTERM, -signal.SIGINT)
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class FleetFailures:
    """node_hours: for which nodes were held by attempts that have ended."""

    failures: int
    node_hours: float

    @property
    def per_node_hour(self) -> float:
        return interval.failures_per_node_hour(self.failures, self.node_hours)

    def mtbf_s(self, nodes: int) -> float:
        """Mean seconds between failures of a gang of so many nodes."""
        return interval.mtbf_s(self.per_node_hour, nodes)

    def sentence(self, nodes: int) -> str:
        """For people: what a gang of `nodes` has to expect, and why."""
        seen = f"{self.failures} failures in {self.node_hours:,.1f} node-hours"
        why = seen if self.failures else f"{seen}, so one in {1 / self.per_node_hour:,.0f} is assumed"
        return f"a failure every {self.mtbf_s(nodes) / 3600:,.1f} h is expected ({why})"


def seen_by(world: World) -> FleetFailures:
    """From all attempts that ended, as their queues count them. It does not change while nothing ends, so neither do the commands
    that are made of it."""
    queues = world.usage.values()
    return FleetFailures(sum(one.failures for one in queues), sum(one.node_ms for one in queues) / _HOUR_MS)


def failures_of(attempt: AttemptRecord) -> int:
    """Those that its gang recovered from inside, and the one that ended it."""
    return sum(not one.planned for one in attempt.recoveries) + _failed(attempt)


def _failed(attempt: AttemptRecord) -> bool:
    """Whether a node was lost or a process killed. One that ended itself with an error may do so on any machine."""
    if attempt.ok or attempt.evicted_for is not None:
        return False
    return bool(attempt.missed) or any(one.code < 0 and one.code not in _ASKED_TO_END for one in attempt.exits)
