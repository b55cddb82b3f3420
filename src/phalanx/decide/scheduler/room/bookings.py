"""Devices that the policy keeps for a queue in certain times, and nodes that it keeps for repairs."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from phalanx.core.devices import parse_devices
from phalanx.core.policy import Booking, Policy
from phalanx.core.units import utc_ms
from phalanx.decide.scheduler.room.ends import Ends
from phalanx.decide.scheduler.room.hold import NO_BOUND, Hold, runs_into
from phalanx.decide.scheduler.room.spot import closing
from phalanx.decide.scheduler.snapshot import JobFacts
from phalanx.decide.scheduler.where.fleet import Counts, Fleet, Ground, Mask

YIELDS_MS: Final = 86_400_000
"""What may be ended for others is started on booked devices up to a day before: it gets that much done, and is ended when the
booking begins. With less it would be started only to be stopped; with more, devices would idle for weeks before each booking."""

REPAIRS: Final = "repairs"
"""What spare nodes are kept for."""


@dataclass(frozen=True, slots=True)
class Booked:
    """A booking that is not over. queues: those it is for, with all below them."""

    name: str
    kind: str
    devices: int
    start_ms: int
    end_ms: int
    queues: frozenset[str]

    @property
    def what(self) -> str:
        """In a person's words."""
        return f"the booking {self.name!r}"

    def is_on(self, now_ms: int) -> bool:
        return self.start_ms <= now_ms < self.end_ms


def bookings(policy: Policy, now_ms: int) -> tuple[Booked, ...]:
    """Those that are not over, in order of their start."""
    found = (_booked(name, booking, policy) for name, booking in policy.bookings.items())
    return tuple(sorted((one for one in found if one.end_ms > now_ms), key=lambda one: (one.start_ms, one.name)))


def _booked(name: str, booking: Booking, policy: Policy) -> Booked:
    asked = parse_devices(booking.devices)
    below = frozenset(queue for queue in policy.queues if booking.queue in _line(queue, policy))
    kind = asked.types[0] if asked.types else ""
    return Booked(name, kind, asked.count, utc_ms(booking.start), utc_ms(booking.end), below | {booking.queue})


def _line(queue: str, policy: Policy) -> Iterable[str]:
    """The queue and those it is part of."""
    seen: list[str] = []
    while queue and queue not in seen:
        seen.append(queue)
        queue = policy.queues[queue].parent if queue in policy.queues else ""
    return seen


def binds(booked: Booked, job: JobFacts, now_ms: int) -> bool:
    """Whether the job, started now, would be in the booking's way."""
    return job.queue not in booked.queues and runs_into(job, max(now_ms, booked.start_ms), YIELDS_MS, now_ms)


def kept_for(booked: Booked, used: int, free: Counts, fleet: Fleet, ends: Ends, now_ms: int) -> Hold | None:
    """As many devices as its queue will not hold at its start, on the nodes that have most of them by then."""
    lacking = booked.devices - used
    if lacking <= 0 or booked.kind not in fleet.ground.kinds:
        return None
    from_ms = max(now_ms, booked.start_ms)
    there = np.where(_lasting(fleet.ground), np.maximum(0, free + ends.by(from_ms, booked.kind)), 0)
    order = np.argsort(-there, kind="stable")
    before = np.cumsum(there[order]) - there[order]
    kept = np.zeros_like(there)
    kept[order] = np.clip(lacking - before, 0, there[order])
    return Hold(
        booked.kind,
        from_ms,
        kept.astype(np.int32),
        np.where(kept > 0, there - kept, NO_BOUND).astype(np.int32),
        queues=booked.queues,
        what=booked.what,
        until_ms=booked.end_ms,
        yields_ms=YIELDS_MS,
    )


def _lasting(ground: Ground) -> Mask:
    """Nodes that may be given work and do not go away: where nothing is started any more, nothing is kept for anybody."""
    leaving = closing(ground)
    return ground.schedulable if leaving is None else ground.schedulable & ~leaving


def spares(kind: str, num_nodes: int, fleet: Fleet, now_ms: int) -> Hold | None:
    """So many nodes of the type, whole: those that are idle, and what comes free on the ones that nearly are. None of spot, which
    may be gone when it is needed."""
    total = fleet.ground.total[kind]
    able = np.flatnonzero(_lasting(fleet.ground) & (total > 0) & ~fleet.ground.spot)
    busy = total[able] - fleet.free[kind][able]
    chosen = able[np.lexsort((-able, busy))][:num_nodes]
    if num_nodes <= 0 or not len(chosen):
        return None
    kept, spare = np.zeros_like(total), np.full(len(total), NO_BOUND, np.int32)
    kept[chosen], spare[chosen] = total[chosen], 0
    return Hold(kind, now_ms, kept, spare, repairs=True, what=f"{REPAIRS} (spares.{kind} of the policy)")
