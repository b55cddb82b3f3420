"""Jobs alike that stand next to each other in line, as people submit them: what one of them is told goes for all.

So ordering ten thousand jobs and telling them why they wait costs by the number of sweeps. How the line is cut depends on the jobs
alone; it is kept from one decision to the next, in which only those parts are cut anew where other jobs stand.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final

from phalanx.core.ids import JobId
from phalanx.decide.scheduler.quotas.fair import Ask
from phalanx.decide.scheduler.quotas.saving import SAVES_MS
from phalanx.decide.scheduler.snapshot import PendingJob, Shape, Snapshot
from phalanx.decide.scheduler.targets import late_since

Number = Callable[[Shape], int]
"""Of a shape; equal shapes have the same one."""

_WHERE: Final = attrgetter("facts.queue", "facts.user", "facts.priority")
_AGE: Final = attrgetter("facts.submitted_ms", "facts.sequence", "facts.job")
_ALIKE: Final = attrgetter("preemptible", "limit_ms", "window", "array", "array_parallel")
_OWN: Final = attrgetter("put_off", "avoids", "claim", "repair", "unmet", "failed", "last", "facts.deadline_ms")
_NOTHING: Final[tuple[object, ...]] = (None, frozenset(), None, False, (), (), None, None)


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """jobs: the oldest first. oldest_ms, youngest_ms: when the first and the last of them began to wait."""

    jobs: tuple[PendingJob, ...]
    oldest_ms: int
    youngest_ms: int


class Batch:
    """Of a sweep, jobs that are decided together. at: so many of them are decided; end: so many may be before the order is asked
    again, which others may have changed by then."""

    __slots__ = ("at", "end", "jobs")

    def __init__(self, jobs: tuple[PendingJob, ...]) -> None:
        self.jobs = jobs
        self.at = 0
        self.end = len(jobs)

    @property
    def first(self) -> PendingJob:
        return self.jobs[self.at]

    def rest(self) -> "Batch":
        """A batch of those that may be decided now; here they count as decided."""
        whole = self.at == 0 and self.end == len(self.jobs)
        found = Batch(self.jobs if whole else self.jobs[self.at : self.end])
        self.at = self.end
        return found

    def stop_before(self, age: tuple[int, int, JobId]) -> None:
        """Only those that are older may be decided now."""
        if _AGE(self.jobs[-1]) >= age:
            self.end = bisect_left(self.jobs, age, key=_AGE)


def alone(jobs: Iterable[PendingJob]) -> Iterator[Batch]:
    """Each by itself."""
    return (Batch((job,)) for job in jobs)


class Sweeps:
    """Of the jobs of the last call."""

    def __init__(self) -> None:
        self._pending: Iterable[PendingJob] | None = None
        self._jobs: dict[int, PendingJob] = {}
        self._lines: dict[tuple[str, str, int], tuple[Sequence[PendingJob], tuple[Sweep, ...]]] = {}
        self._asked = Counter[Ask]()

    def batches(self, snapshot: Snapshot, number: Number) -> list[Batch]:
        """All jobs without a claim. Those of a sweep of which only some have waited for too long by now stand alone."""
        found = list[Batch]()
        self._bring_up_to_date(snapshot.pending, number)
        late, saves = late_since(snapshot.policy, snapshot.now_ms), snapshot.now_ms - SAVES_MS
        for (_, _, priority), (_, sweeps) in self._lines.items():
            since = late.get(priority, 0)
            for sweep in sweeps:
                oldest, youngest, jobs = sweep.oldest_ms, sweep.youngest_ms, sweep.jobs
                if len(jobs) == 1 and jobs[0].claim is not None:
                    continue
                if (oldest < since) == (youngest < since) and (oldest < saves) == (youngest < saves):
                    found.append(Batch(jobs))
                else:
                    found.extend(alone(jobs))
        return found

    def asked(self, snapshot: Snapshot, number: Number) -> Mapping[Ask, int]:
        """How often each is asked for, by all jobs that could run: those with a claim too."""
        self._bring_up_to_date(snapshot.pending, number)
        return self._asked

    def _bring_up_to_date(self, pending: Iterable[PendingJob], number: Number) -> None:
        """A job is the same object until something of it changes."""
        if pending is self._pending:
            return
        self._pending = pending
        now = {id(job): job for job in pending}
        changed: dict[tuple[str, str, int], tuple[set[int], list[PendingJob]]] = {}
        for gone in self._jobs.keys() - now.keys():
            changed.setdefault(_WHERE(self._jobs[gone]), (set(), []))[0].add(gone)
        for new in now.keys() - self._jobs.keys():
            changed.setdefault(_WHERE(now[new]), (set(), []))[1].append(now[new])
        for where, (left, come) in changed.items():
            before, sweeps = self._lines.pop(where, ((), ()))
            self._count(sweeps, -1)
            jobs = sorted([*(job for job in before if id(job) not in left), *come], key=_AGE)
            if jobs:
                self._lines[where] = jobs, tuple(_cut(jobs, number))
                self._count(self._lines[where][1], 1)
        self._jobs = now  # which keeps them alive: no other job gets the number of one that is known here

    def _count(self, sweeps: Iterable[Sweep], sign: int) -> None:
        """Of what is asked for, so much more or less."""
        for sweep in sweeps:
            job = sweep.jobs[0]
            if not job.unmet and not job.failed:
                shape, request = job.facts.shape, job.facts.shape.request
                ask = (job.facts.queue, request.types, request.count * shape.num_nodes * request.milli)
                self._asked[ask] += sign * len(sweep.jobs)
                if not self._asked[ask]:
                    del self._asked[ask]


def _cut(jobs: Sequence[PendingJob], number: Number) -> Iterator[Sweep]:
    """jobs: in order of age, of one line and priority."""
    for _, alike in groupby(enumerate(jobs), key=lambda one: _alike(one[0], one[1], number)):
        sweep = tuple(job for _, job in alike)
        since = [job.since_ms or job.facts.submitted_ms for job in sweep]
        yield Sweep(sweep, min(since), max(since))


def _alike(place: int, job: PendingJob, number: Number) -> tuple[object, ...]:
    """Equal for those that hear the same. What a job has of its own, or waits for spot by its own time, makes it stand alone."""
    if _OWN(job) != _NOTHING or job.facts.shape.spot == "prefer":
        return (place,)
    return number(job.facts.shape), _ALIKE(job.facts)
