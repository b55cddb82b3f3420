"""Nodes that may be taken away: who takes them first, who waits for them, and who has to leave before they go."""

from collections.abc import Sequence
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


def waits_until_ms(job: PendingJob, kinds: Sequence[str], ground: Ground, fallback_ms: int) -> int | None:
    """How long a job that prefers spot waits for it, before on-demand nodes will do (Unix time). None for others, and where the
    fleet has no spot node of a type it accepts."""
    if job.facts.shape.spot != "prefer" or not any((ground.total[kind][ground.spot] > 0).any() for kind in kinds):
        return None
    return (job.since_ms or job.facts.submitted_ms) + fallback_ms


def comes_first(job: PendingJob, kind: str, ground: Ground) -> bool:
    """Whether the job is tried on spot alone before it takes on-demand nodes: it wants to, or spot costs no more."""
    if job.facts.shape.spot == "never" or not ground.spot.any():
        return False
    return job.facts.shape.spot == "prefer" or _costs_no_more(kind, ground)


def _costs_no_more(kind: str, ground: Ground) -> bool:
    prices = np.array([node.price for node in ground.nodes])
    has = ground.total[kind] > 0
    spot, demand = prices[has & ground.spot], prices[has & ~ground.spot]
    return not len(demand) or not len(spot) or bool(spot.mean() <= demand.mean())
