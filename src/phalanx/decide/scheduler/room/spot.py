"""Nodes that may be taken away: who takes them first, who waits for them, and who has to leave before they go."""

from typing import Final

import numpy as np

from phalanx.decide.scheduler.snapshot import PendingJob
from phalanx.decide.scheduler.where.fleet import Ground, Mask

LEAVES_MS: Final = 600_000
"""Gangs leave a node so long before it goes: time for a checkpoint of many gigabytes, while the clouds' notices, of 30 seconds to
two minutes, count at once."""


def closing(ground: Ground) -> Mask | None:
    """Nodes that were announced to go away; None when there are none."""
    if not ground.closing:
        return None
    found = np.zeros(len(ground.nodes), np.bool_)
    found[list(ground.closing)] = True
    return found


class Spot:
    """Of one decision: who waits for spot nodes, and who is tried on them first."""

    def __init__(self, ground: Ground, fallback_ms: int, now_ms: int) -> None:
        self._ground, self._fallback_ms, self._now_ms = ground, fallback_ms, now_ms
        self._there = {kind: bool((total[ground.spot] > 0).any()) for kind, total in ground.total.items()}
        self._is_cheap: dict[str, bool] = {}

    def awaited_until_ms(self, job: PendingJob) -> int | None:
        """How long a job that prefers spot waits for it yet, before on-demand nodes will do (Unix time). None for others, and where
        the fleet has no spot node of a type that it accepts."""
        if job.facts.shape.spot != "prefer":
            return None
        until_ms = (job.since_ms or job.facts.submitted_ms) + self._fallback_ms
        types = job.facts.shape.request.types or tuple(self._there)
        return until_ms if self._now_ms < until_ms and any(self._there.get(kind, False) for kind in types) else None

    def comes_first(self, job: PendingJob, kind: str) -> bool:
        """Whether the job is tried on spot alone before it takes on-demand nodes: it wants to, or spot costs no more."""
        if job.facts.shape.spot == "never" or not self._ground.spot.any():
            return False
        if kind not in self._is_cheap:
            self._is_cheap[kind] = _costs_no_more(kind, self._ground)
        return job.facts.shape.spot == "prefer" or self._is_cheap[kind]


def _costs_no_more(kind: str, ground: Ground) -> bool:
    prices = np.array([node.price for node in ground.nodes])
    has = ground.total[kind] > 0
    spot, demand = prices[has & ground.spot], prices[has & ~ground.spot]
    return not len(demand) or not len(spot) or bool(spot.mean() <= demand.mean())
