"""Device time that queues and jobs were given in a window, and how much of it was spent in steps. Pure.

Integers, thousandths of a device times milliseconds: the rows of a window sum to the rows of its parts, exactly.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.units import MILLI
from phalanx.core.use_views import UsageView
from phalanx.operate.control.world import AttemptRecord, JobRecord, World

By = Literal["queue", "job"]
Steps = Callable[[AttemptId, int, int], int]
"""Milliseconds that all ranks of an attempt together spent in steps, of a window; 0 where none were measured."""

Shown = Callable[[JobRecord], bool]
"""Whether somebody may see a job."""

Released = Mapping[tuple[AttemptId, NodeId], int]
"""When a gang that went on let go of what it had of a node (Unix time)."""


@dataclass(frozen=True, slots=True)
class Window:
    """From `since_ms` to before `until_ms` (Unix time)."""

    since_ms: int
    until_ms: int

    def of(self, start_ms: int, end_ms: int | None) -> int:
        """Milliseconds of a span that lie in it; one without an end goes on."""
        end = self.until_ms if end_ms is None else min(end_ms, self.until_ms)
        return max(0, end - max(start_ms, self.since_ms))


def everything(_: JobRecord) -> bool:
    """Of whom nothing is hidden."""
    return True


def touched(world: World, window: Window, shown: Shown = everything) -> Sequence[AttemptRecord]:
    """Attempts of jobs that are `shown` which held devices in it."""
    found = (one for one in world.attempts.values() if window.of(one.placed_ms, one.ended_ms))
    return [one for one in found if shown(world.jobs[one.job])]


def usage_views(
    world: World, window: Window, by: By, released: Released, steps: Steps, shown: Shown = everything
) -> tuple[UsageView, ...]:
    """A row for each queue or job that held devices in the window, by name: of jobs that are `shown` alone."""
    allocated: dict[str, int] = {}
    used: dict[str, int] = {}
    attempts: dict[str, int] = {}
    queues: dict[str, str] = {}
    for attempt in touched(world, window, shown):
        job = world.jobs[attempt.job]
        name = job.id if by == "job" else job.spec.queue
        allocated[name] = allocated.get(name, 0) + sum(_held(attempt, window, released))
        used[name] = used.get(name, 0) + steps(attempt.id, window.since_ms, window.until_ms) * _share(attempt)
        attempts[name] = attempts.get(name, 0) + 1
        queues[name] = job.spec.queue
    return tuple(
        UsageView(
            name=name,
            queue=queues[name],
            user=_user(world.jobs[JobId(name)]) if by == "job" else "",
            attempts=attempts[name],
            allocated=allocated[name],
            used=min(used[name], allocated[name]),
        )
        for name in sorted(allocated)
    )


def _held(attempt: AttemptRecord, window: Window, released: Released) -> Iterator[int]:
    for part in attempt.placement.slices:
        end_ms = released.get((attempt.id, part.node), attempt.ended_ms) if part.node in attempt.released else attempt.ended_ms
        yield len(part.devices) * part.milli * window.of(attempt.placed_ms, end_ms)


def _share(attempt: AttemptRecord) -> int:
    """Thousandths of a device that each rank has; the same for all ranks of a gang."""
    return attempt.placement.slices[0].milli if attempt.placement.slices else MILLI


def _user(job: JobRecord) -> str:
    return job.by
