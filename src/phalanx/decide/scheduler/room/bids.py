"""Where a head could have nodes kept for it beside what is kept already: for others before it, for bookings, for repairs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from phalanx.decide.scheduler.room.ends import Ends, Times
from phalanx.decide.scheduler.room.hold import Hold
from phalanx.decide.scheduler.room.reservation import Bid, View, bid
from phalanx.decide.scheduler.snapshot import PendingJob
from phalanx.decide.scheduler.where.fleet import Counts, Fleet, Mask


@dataclass(frozen=True, slots=True)
class Site:
    """shut: nodes on which the job may not start at all."""

    fleet: Fleet
    ends: Ends
    shut: Mask | None
    now_ms: int


def found(job: PendingJob, kind: str, holds: Sequence[Hold], site: Site) -> Bid | None:
    """What does not bind the job if it starts now may do so when it starts then."""
    bound, best, at_ms = -1, None, site.now_ms
    while bound < len(binding := [hold for hold in holds if hold.binds(job, at_ms)]):
        bound = len(binding)
        best = _beside(job, kind, binding, site) or _after(job, kind, binding, site)
        at_ms = site.now_ms if best is None else best.hold.from_ms
    return best


def besides(kind: str, holds: Sequence[Hold], fleet: Fleet) -> Counts:
    """Devices of the type now, without those that are kept already."""
    free = fleet.free[kind]
    for hold in holds:
        if hold.kind == kind:
            free = np.minimum(free, hold.spare)
    return free


def _beside(job: PendingJob, kind: str, holds: Sequence[Hold], site: Site, after_ms: Times | None = None) -> Bid | None:
    """On nodes of which nothing is kept. after_ms: of each, from when on at the earliest."""
    rows = np.ones(len(site.fleet.ground.nodes), np.bool_) if site.shut is None else ~site.shut
    for hold in holds:
        if hold.kind == kind:
            rows &= hold.spare >= job.facts.shape.request.count
    view = View(besides(kind, holds, site.fleet), rows, after_ms)
    return bid(job, kind, view, site.fleet, site.ends, site.now_ms)


def _after(job: PendingJob, kind: str, binding: Sequence[Hold], site: Site) -> Bid | None:
    """On booked nodes too, once that is over: else jobs that run for longer would pass it all the time. Who has booked them comes
    before it until then, and may run on: no start is promised."""
    booked = [(hold, hold.until_ms) for hold in binding if hold.kind == kind and hold.until_ms is not None]
    if not booked:
        return None
    after_ms = np.zeros(len(site.fleet.ground.nodes), np.int64)
    for hold, until_ms in booked:
        after_ms = np.where(hold.spare < job.facts.shape.request.count, np.maximum(after_ms, until_ms), after_ms)
    best = _beside(job, kind, [hold for hold in binding if hold.until_ms is None], site, after_ms)
    if best is None:
        return None
    best.hold.queues = frozenset().union(*(hold.queues for hold, _ in booked if hold.from_ms <= site.now_ms))
    return replace(best, start_ms=None)
