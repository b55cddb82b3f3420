"""Ranks that are slower than their peers: watched from the records that come in, told once, and quarantined where the policy says.

`Watch` belongs to the event loop's side, where records are taken in; the functions are pure. A gang whose records hold no local
time has no stragglers: its ranks wait for each other wherever they could be timed, and a healthy one's node would be drained.
"""

from collections.abc import Iterable
from typing import Final

from phalanx.core.events import EventBody, StragglerFound
from phalanx.core.health import Straggler
from phalanx.core.ids import AttemptId
from phalanx.core.records import StepRecord
from phalanx.operate.control.quarantine import may_quarantine, quarantined, seats
from phalanx.operate.control.world import World
from phalanx.record.telemetry.health.stragglers import Outlier, Window

TOLD_MAX: Final = 8
"""Of one attempt: with more of them it is the job, or the fleet, and not a node."""


class Watch:
    """The windows of the attempts whose records come in."""

    def __init__(self) -> None:
        self._windows: dict[AttemptId, Window] = {}

    def take(self, world: World, attempt: AttemptId, records: Iterable[object]) -> list[Outlier]:
        """Who turned out to be an outlier by these records of an attempt that goes on."""
        record = world.attempts.get(attempt)
        steps = [one for one in records if isinstance(one, StepRecord)]
        if record is None or record.ended_ms is not None or not steps:
            return []
        if attempt not in self._windows:
            self._windows = {known: window for known, window in self._windows.items() if _goes_on(world, known)}
            known = (one.rank for one in record.findings if isinstance(one, Straggler))
            self._windows[attempt] = Window(len(seats(record)), known)
        self._windows[attempt].goes_on_without(record.absent)
        return self._windows[attempt].take(steps)


def found(world: World, attempt: AttemptId, outlier: Outlier, at_ms: int) -> list[EventBody]:
    """What follows from it: that it is told, and that its node is drained and the job moved where the policy says so and may."""
    record = world.attempts.get(attempt)
    if record is None or record.ended_ms is not None:
        return []
    told = [one for one in record.findings if isinstance(one, Straggler)]
    if len(told) >= TOLD_MAX or any(one.rank == outlier.rank for one in told):
        return []
    node, device = seats(record)[outlier.rank]
    moved = world.policy.health.stragglers == "quarantine" and may_quarantine(world, node)
    straggler = Straggler(
        rank=outlier.rank,
        node=node,
        device=device,
        step=outlier.step,
        ratio=round(outlier.ratio, 3),
        slow=outlier.slow,
        steps=outlier.steps,
        local_us=outlier.local_us,
        peers_us=outlier.peers_us,
        quarantined=moved,
        at_ms=at_ms,
    )
    why = f"rank {outlier.rank} of {attempt} on device {device} took {outlier.ratio:.2f} times its peers' time"
    return [StragglerFound(record.job, attempt, straggler), *(quarantined(world, record, node, why) if moved else ())]


def _goes_on(world: World, attempt: AttemptId) -> bool:
    record = world.attempts.get(attempt)
    return record is not None and record.ended_ms is None
