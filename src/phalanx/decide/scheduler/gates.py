"""Step 1, may a job start yet at all, whatever is free: put off, waiting for other jobs, its array is full, outside its window."""

from collections import Counter
from itertools import compress
from operator import attrgetter
from typing import Final

from phalanx.core.ids import JobId
from phalanx.core.reasons import ArrayFull, Backoff, Dependencies, DependencyCycle, OutsideWindow, Reason
from phalanx.decide.restarts import left_ms
from phalanx.decide.scheduler.snapshot import PendingJob, Snapshot
from phalanx.decide.scheduler.windows import opens_ms

_UNMET: Final = attrgetter("unmet")


class Gates:
    """Mutable within one decision: `started` follows starts."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._now_ms = snapshot.now_ms
        self._windows = snapshot.policy.windows
        self._cycles = _cycles(snapshot)
        in_arrays = [gang.facts.array for gang in snapshot.running if gang.facts.array]
        self._at_once = Counter([*in_arrays, *(job.facts.array for job in snapshot.claimants if job.facts.array)])
        self._opens_ms: dict[str, int | None] = {}

    def why(self, job: PendingJob) -> Reason | None:
        """Why the job may not start yet; None when it may."""
        facts = job.facts
        if job.failed or job.unmet:
            circle = self._cycles.get(facts.job)
            return DependencyCycle(circle) if circle and not job.failed else Dependencies(job.unmet, job.failed)
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


def _cycles(snapshot: Snapshot) -> dict[JobId, tuple[JobId, ...]]:
    """Of each waiting job that waits, in the end, for itself: the circle, from itself on. One that only waits for such a job is in
    none."""
    waits_for = {job.facts.job: job.unmet for job in compress(snapshot.pending, map(_UNMET, snapshot.pending))}
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
