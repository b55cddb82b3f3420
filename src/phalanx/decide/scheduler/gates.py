"""Step 1, may a job start yet at all, whatever is free: put off, waiting for other jobs, its array is full, outside its window."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import compress
from operator import attrgetter
from typing import Final

from phalanx.core.ids import JobId
from phalanx.core.reasons import ArrayFull, Backoff, Dependencies, DependencyCycle, OutsideWindow, Reason
from phalanx.decide.restarts import left_ms
from phalanx.decide.scheduler.snapshot import PendingJob, Snapshot
from phalanx.decide.scheduler.windows import opens_ms

_UNMET: Final = attrgetter("unmet")
_FAILED: Final = attrgetter("failed")


class Gates:
    """Mutable within one decision: `started` follows starts."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._now_ms = snapshot.now_ms
        self._windows = snapshot.policy.windows
        waits_for = {job.facts.job: job.unmet for job in compress(snapshot.pending, map(_UNMET, snapshot.pending))}
        self._cycles = _cycles(waits_for)
        self._stuck = _stuck(waits_for, snapshot, self._cycles) if waits_for else frozenset[JobId]()
        in_arrays = [gang.facts.array for gang in snapshot.running if gang.facts.array]
        self._at_once = Counter([*in_arrays, *(job.facts.array for job in snapshot.claimants if job.facts.array)])
        self._opens_ms: dict[str, int | None] = {}

    def why(self, job: PendingJob) -> Reason | None:
        """Why the job may not start yet; None when it may."""
        facts = job.facts
        if job.failed or job.unmet:
            circle = self._cycles.get(facts.job)
            if circle and not job.failed:
                return DependencyCycle(circle)
            return Dependencies(job.unmet, job.failed, tuple(one for one in job.unmet if one in self._stuck))
        if facts.window and (shut := self._shut(facts.window)) is not None:
            return shut
        if job.put_off is not None and (off := _put_off(job, self._now_ms)) is not None:
            return off
        if facts.array_parallel and job.claim is None and self._at_once[facts.array] >= facts.array_parallel:
            return ArrayFull(facts.array, facts.array_parallel)
        return None

    def started(self, job: PendingJob) -> None:
        """It takes its place in its array, or devices were claimed for it."""
        if job.facts.array and job.claim is None:
            self._at_once[job.facts.array] += 1

    def _shut(self, window: str) -> OutsideWindow | None:
        if window not in self._opens_ms:
            times = self._windows.get(window)
            self._opens_ms[window] = opens_ms(times, self._now_ms) if times else None
        opens = self._opens_ms[window]
        return None if opens == self._now_ms else OutsideWindow(window, opens)


def _put_off(job: PendingJob, now_ms: int) -> Reason | None:
    found = job.put_off
    wait_ms = left_ms(found.not_before_ms, now_ms) if found else 0
    return Backoff(wait_ms, found.attempts, found.within_ms, found.detail) if found and wait_ms else None


def _stuck(waits_for: Mapping[JobId, Sequence[JobId]], snapshot: Snapshot, cycles: Collection[JobId]) -> frozenset[JobId]:
    """Jobs that never start: after one that failed, in a circle, or after one of these."""
    todo = [*cycles, *(job.facts.job for job in compress(snapshot.pending, map(_FAILED, snapshot.pending)))]
    if not todo:
        return frozenset()
    after: dict[JobId, list[JobId]] = {}
    for job, unmet in waits_for.items():
        for one in unmet:
            after.setdefault(one, []).append(job)
    found = set(todo)
    while todo:
        more = [job for job in after.get(todo.pop(), ()) if job not in found]
        found.update(more)
        todo.extend(more)
    return frozenset(found)


def _cycles(waits_for: Mapping[JobId, Sequence[JobId]]) -> dict[JobId, tuple[JobId, ...]]:
    """Of each waiting job that waits, in the end, for itself: the circle, from itself on. One that only waits for such a job is in
    none."""
    found: dict[JobId, tuple[JobId, ...]] = {}
    done: set[JobId] = set()
    for first in sorted(waits_for):
        way: dict[JobId, None] = {}
        steps = [iter((first,))]
        while steps:
            job = next(steps[-1], None)
            if job is None:
                steps.pop()
                if way:
                    done.add(way.popitem()[0])
            elif job in way:
                on_way = list(way)
                circle = on_way[on_way.index(job) :]
                for at, member in enumerate(circle):
                    found.setdefault(member, (*circle[at:], *circle[:at]))
            elif job not in done and job in waits_for:
                way[job] = None
                steps.append(iter(sorted(waits_for[job])))
    return found
