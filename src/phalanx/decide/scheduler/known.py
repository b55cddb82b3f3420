"""What a decision has found out already, so that ten thousand waiting jobs cost microseconds each.

Within a decision what is free only shrinks, but for promises that are given up. So what did not fit does not fit again; and until
anything changes, jobs that are alike hear the same.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Final

from phalanx.core.devices import DeviceRequest
from phalanx.core.policy import Policy
from phalanx.core.reasons import Reason
from phalanx.decide.scheduler.room.kept import Kept
from phalanx.decide.scheduler.snapshot import PendingJob, Shape
from phalanx.decide.scheduler.targets import is_late, late_since
from phalanx.decide.scheduler.where.fleet import Fleet, Mask

Rights = tuple[int, str, int, bool, bool, tuple[int, ...]]
"""Number of the shape, queue, priority, whether it may be preempted, whether it has waited longer than its class should, and places
of the bookings that it would be in the way of."""

Alike = tuple[Rights, Hashable]
"""And what decides which devices are kept from it."""


_FIELDS: Final = attrgetter(
    *(f"request.{one.name}" for one in fields(DeviceRequest)), *(one.name for one in fields(Shape) if one.name != "request")
)
"""Flat, since nested dataclasses are slow to hash."""


@dataclass(slots=True)
class Shapes:
    """Numbers of shapes: comparing those is cheaper. It may be kept between decisions, with the shapes that it has seen."""

    numbers: dict[object, int] = field(default_factory=dict)
    seen: dict[int, tuple[Shape, int]] = field(default_factory=dict)
    sized: dict[tuple[int, int], Shape] = field(default_factory=dict)

    def number(self, shape: Shape) -> int:
        found = self.seen.get(id(shape))
        if found is not None:
            return found[1]
        number = self.numbers.setdefault(_FIELDS(shape), len(self.numbers))
        self.seen[id(shape)] = (shape, number)
        return number

    def resized(self, shape: Shape, num_nodes: int) -> Shape:
        """The same with so many nodes."""
        key = (self.number(shape), num_nodes)
        if key not in self.sized:
            self.sized[key] = replace(shape, num_nodes=num_nodes)
        return self.sized[key]

    def forget(self, above: int) -> bool:
        """All, if there are more than so many; whether there were."""
        is_full = len(self.seen) > above
        if is_full:
            self.numbers.clear()
            self.seen.clear()
            self.sized.clear()
        return is_full


class Known:
    """Shapes stand here by their numbers.

    full: shapes and types that did not fit all that is free. barred: that did not fit what jobs alike may use of it. hopeless:
    rights and types for which no room could be made. unhelped: queues, types and priorities whose jobs nobody's end lets in: what
    is saved stays saved, and who may not be ended now may not later. Until anything changes: admitted: the types that a shape may
    have in a queue, by whether it is preemptible, and why not the others; fitting: shapes and types that fit all that is free;
    yielding: gangs that make room for others of their queue; short and why_kept: why a shape has to wait for devices of certain
    types; latest: what the job that was considered last heard, where all like it do. state: of what all this is true.
    """

    def __init__(self, policy: Policy, now_ms: int, shapes: Shapes) -> None:
        self.full: set[tuple[int, str]] = set()
        self.hopeless: set[tuple[Rights, tuple[str, ...]]] = set()
        self.barred: set[tuple[int, str, Hashable]] = set()
        self.unhelped: set[tuple[str, tuple[str, ...], int]] = set()
        self.fitting: set[tuple[int, str]] = set()
        self.why_kept: dict[tuple[int, str, Hashable], Reason] = {}
        self.admitted: dict[tuple[int, str, bool], tuple[tuple[str, ...], tuple[Reason, ...]]] = {}
        self.yielding: dict[Hashable, list[int]] = {}
        self.short: dict[tuple[int, tuple[str, ...]], Reason] = {}
        self.latest: Reason | None = None
        self._in_vain: dict[Hashable, list[Mask]] = {}
        self._reasons: dict[Rights | Alike, Reason] = {}
        self._shapes = shapes
        self.number = shapes.number
        self._late_since = late_since(policy, now_ms)
        self.state: tuple[int, ...] = ()
        self._grown = 0
        self._kept_for: set[Rights] = set()

    def follow(self, fleet: Fleet, state: tuple[int, ...]) -> None:
        """Forgets what may be untrue now that things have changed. state: stamps of all that a decision is made from."""
        self.state = state
        self._reasons.clear()
        self._kept_for.clear()
        self.latest = None
        self.admitted.clear()
        self.short.clear()
        self.yielding.clear()
        self.fitting.clear()
        self.why_kept.clear()
        if fleet.grown != self._grown:
            self._grown = fleet.grown
            self.full.clear()
            self.hopeless.clear()
            self.barred.clear()
            self._in_vain.clear()

    def resized(self, shape: Shape, num_nodes: int) -> Shape:
        return self._shapes.resized(shape, num_nodes)

    def rights(self, job: PendingJob, kept: Kept) -> Rights:
        facts, is_overdue = job.facts, is_late(job, self._late_since)
        return self.number(facts.shape), facts.queue, facts.priority, facts.preemptible, is_overdue, kept.in_the_way_of(facts)

    def reason(self, rights: Rights, job: PendingJob, kept: Kept) -> Reason | None:
        """Why jobs like it wait."""
        found = self._reasons.get(rights)
        return found if found is not None or rights not in self._kept_for else self._reasons.get((rights, kept.alike(job)))

    def learn(self, rights: Rights, job: PendingJob, reason: Reason, kept: Kept | None) -> None:
        """All with these rights wait for it; with `kept`, those that have the same devices kept from them."""
        self._reasons[rights if kept is None else (rights, kept.alike(job))] = self.latest = reason
        if kept is not None:
            self._kept_for.add(rights)

    def is_in_vain(self, job: PendingJob, kind: str, allowed: Mask, reclaims: bool, kept: Kept) -> bool:
        """Whether a job like it was looked room for when at least these gangs could be ended for it, and there was none."""
        found = self._in_vain.get(self._sought(job, kind, reclaims, kept), ())
        return any(not (allowed & ~mask).any() for mask in found)

    def in_vain(self, job: PendingJob, kind: str, allowed: Mask, reclaims: bool, kept: Kept) -> None:
        """There is no room for it on the type, whoever of these is ended."""
        if not job.avoids:
            self._in_vain.setdefault(self._sought(job, kind, reclaims, kept), []).append(allowed.copy())

    def _sought(self, job: PendingJob, kind: str, reclaims: bool, kept: Kept) -> Hashable:
        return self._shapes.number(job.facts.shape), kind, reclaims, kept.alike(job)
