"""Jobs alike that stand next to each other in line, as people submit them: what one of them is told goes for all.

So ordering ten thousand jobs and telling them why they wait costs by the number of sweeps. How the line is cut depends on the jobs
alone; it is kept from one decision to the next, in which only those parts are cut anew where other jobs stand.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, count, groupby
from operator import attrgetter, is_not
from typing import Final

from phalanx.core.ids import JobId
from phalanx.decide.scheduler.quotas.fair import Ask
from phalanx.decide.scheduler.quotas.holds import Whose
from phalanx.decide.scheduler.quotas.saving import SAVES_MS
from phalanx.decide.scheduler.snapshot import PendingJob, Shape, Snapshot
from phalanx.decide.scheduler.targets import late_since

Number = Callable[[Shape], int]
"""Of a shape; equal shapes have the same one."""

Age = tuple[int, int, JobId]
"""When a job was submitted, its sequence, its name."""

_WHERE: Final = attrgetter("facts.queue", "facts.user", "facts.priority")
_AGE: Final = attrgetter("facts.submitted_ms", "facts.sequence", "facts.job")
_ALIKE: Final = attrgetter("preemptible", "limit_ms", "window", "array", "array_parallel")
_OWN: Final = attrgetter("put_off", "avoids", "claim", "repair", "unmet", "failed", "last", "facts.deadline_ms")
_NOTHING: Final[tuple[object, ...]] = (None, frozenset(), None, False, (), (), None, None)


Urgency = tuple[int, bool, bool, float]
"""Priority, negated; not failed by a node; not late; Unix milliseconds by which it has to start, as far as is known how long it
still runs (infinite where it has no deadline). The smallest goes first."""


STEPS_MAX: Final = 32
STEP_MAX: Final = 128
"""Between two snapshots: places in which jobs changed, and jobs that changed in one, before all are looked for."""


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """jobs: the oldest first. oldest_ms, youngest_ms: when the first and the last of them began to wait. place: by when the first
    has to start, and its age. The others are of each of them: what it asks for; queue and user; how urgent it is in time, and when
    it has waited for too long. is_plain: they start as soon as there is room, on any nodes that will do."""

    jobs: tuple[PendingJob, ...]
    oldest_ms: int
    youngest_ms: int
    place: tuple[float, int, int, JobId]
    ask: Ask
    whose: Whose
    priority: int
    in_time: Urgency
    late: Urgency
    is_plain: bool

    @classmethod
    def of(cls, jobs: tuple[PendingJob, ...]) -> "Sweep":
        """jobs: in order of age."""
        since = [job.since_ms or job.facts.submitted_ms for job in jobs]
        first, facts, shape = jobs[0], jobs[0].facts, jobs[0].facts.shape
        ask = facts.queue, shape.request.types, shape.num_devices * shape.request.milli
        start_ms, class_ = _latest_start_ms(first), (-facts.priority, not first.repair)
        place, whose = (start_ms, *_AGE(first)), (facts.queue, facts.user)
        urgencies = (*class_, True, start_ms), (*class_, False, start_ms)
        is_plain = _OWN(first)[:-1] == _NOTHING[:-1] and not facts.window and not facts.array_parallel
        return cls(jobs, min(since), max(since), place, ask, whose, facts.priority, *urgencies, is_plain)

    def urgency(self, late_since: Mapping[int, int]) -> Urgency:
        """late_since: by priority, who began to wait before that (Unix milliseconds) has waited for too long."""
        return self.late if self.oldest_ms < late_since.get(self.priority, 0) else self.in_time


def _latest_start_ms(job: PendingJob) -> float:
    facts = job.facts
    if facts.deadline_ms is None:
        return float("inf")
    left_ms = max(0, facts.expected_ms - job.done_ms) if facts.expected_ms is not None else 0
    return facts.deadline_ms - left_ms


class Batch:
    """Of a sweep, jobs that are decided together. at: so many of them are decided; end: so many may be before the order is asked
    again, which others may have changed by then. queue: of all of them. part_of: the sweep, where it is known."""

    __slots__ = ("at", "end", "jobs", "part_of", "queue")

    def __init__(self, jobs: tuple[PendingJob, ...], sweep: Sweep | None = None) -> None:
        self.jobs = jobs
        self.at = 0
        self.end = len(jobs)
        self.part_of = sweep
        self.queue = jobs[0].facts.queue

    @property
    def first(self) -> PendingJob:
        return self.jobs[self.at]

    @property
    def ask(self) -> Ask:
        """Of each of them."""
        return self.sweep.ask if self.part_of is None else self.part_of.ask

    @property
    def sweep(self) -> Sweep:
        """Whose first job is the first of these that is not decided."""
        if self.part_of is None or self.at:
            return Sweep.of(self.jobs[self.at : self.at + 1])
        return self.part_of

    def rest(self) -> "Batch":
        """A batch of those that may be decided now; here they count as decided."""
        whole = self.at == 0 and self.end == len(self.jobs)
        found = Batch(self.jobs, self.part_of) if whole else Batch(self.jobs[self.at : self.end])
        self.at = self.end
        return found

    def stop_before(self, age: Age) -> None:
        """Only those that are older may be decided now."""
        if _AGE(self.jobs[-1]) >= age:
            self.end = bisect_left(self.jobs, age, key=_AGE)


def alone(jobs: Iterable[PendingJob]) -> Iterator[Batch]:
    """Each by itself."""
    return (Batch((job,)) for job in jobs)


class Sweeps:
    """Of the jobs of the last call."""

    def __init__(self) -> None:
        self._pending: Sequence[PendingJob] = ()
        self._lines: dict[tuple[str, str, int], tuple[Sequence[PendingJob], tuple[Sweep, ...]]] = {}
        self._sweeps: dict[int, Sweep] = {}
        self._singles: dict[int, tuple[Sweep, ...]] = {}
        self._asked = Counter[Ask]()

    def batches(self, snapshot: Snapshot, number: Number) -> list[Batch]:
        """All jobs without a claim. Those of a sweep of which only some have waited for too long by now stand alone."""
        found = list[Batch]()
        self._bring_up_to_date(snapshot.pending, number)
        late, saves = late_since(snapshot.policy, snapshot.now_ms), snapshot.now_ms - SAVES_MS
        for sweep in self._sweeps.values():
            oldest, youngest, jobs, since = sweep.oldest_ms, sweep.youngest_ms, sweep.jobs, late.get(sweep.priority, 0)
            if len(jobs) == 1 and jobs[0].claim is not None:
                continue
            if (oldest < since) == (youngest < since) and (oldest < saves) == (youngest < saves):
                found.append(Batch(jobs, sweep))
            else:
                found.extend([Batch(one.jobs, one) for one in self._one_by_one(sweep)])
        return found

    def _one_by_one(self, sweep: Sweep) -> tuple[Sweep, ...]:
        """The same each time."""
        if id(sweep) not in self._singles:
            self._singles[id(sweep)] = tuple([Sweep.of((job,)) for job in sweep.jobs])
        return self._singles[id(sweep)]

    def stood(self, batches: Iterable[Batch]) -> None:
        """In this order, which they are given in next time: what is nearly in order is sorted soon."""
        these, known = dict.fromkeys([id(batch.part_of) for batch in batches]), self._sweeps
        self._sweeps = {**{number: known[number] for number in these if number in known}, **known}

    def asked(self, snapshot: Snapshot, number: Number) -> Mapping[Ask, int]:
        """How often each is asked for, by all jobs that could run: those with a claim too."""
        self._bring_up_to_date(snapshot.pending, number)
        return self._asked

    def _bring_up_to_date(self, pending: Sequence[PendingJob], number: Number) -> None:
        """A job is the same object until something of it changes."""
        if pending is self._pending:
            return
        gone, new = _differences(self._pending, pending)
        self._pending = pending
        changed: dict[tuple[str, str, int], tuple[set[int], list[PendingJob]]] = {}
        for job in gone:
            changed.setdefault(_WHERE(job), (set(), []))[0].add(id(job))
        for job in new:
            changed.setdefault(_WHERE(job), (set(), []))[1].append(job)
        for where, (left, come) in changed.items():
            before, sweeps = self._lines.pop(where, ((), ()))
            self._count(sweeps, -1)
            for sweep in sweeps:
                del self._sweeps[id(sweep)]
                self._singles.pop(id(sweep), None)
            jobs = sorted([*(job for job in before if id(job) not in left), *come], key=_AGE)
            if jobs:
                sweeps = tuple(_cut(jobs, number))
                self._lines[where] = jobs, sweeps
                self._sweeps.update((id(sweep), sweep) for sweep in sweeps)
                self._count(sweeps, 1)

    def _count(self, sweeps: Iterable[Sweep], sign: int) -> None:
        """Of what is asked for, so much more or less."""
        for sweep in sweeps:
            job = sweep.jobs[0]
            if not job.unmet and not job.failed:
                self._asked[sweep.ask] += sign * len(sweep.jobs)
                if not self._asked[sweep.ask]:
                    del self._asked[sweep.ask]


def _differences(before: Sequence[PendingJob], now: Sequence[PendingJob]) -> tuple[list[PendingJob], list[PendingJob]]:
    """Who is gone, and who is new. Whoever stays mostly keeps the place between the same neighbours, so a few steps from one change
    to the next find all of them; where they do not, all are looked for."""
    gone, new, at, at_now = list[PendingJob](), list[PendingJob](), 0, 0
    for _ in range(STEPS_MAX):
        same = next(compress(count(), map(is_not, before[at:], now[at_now:])), min(len(before) - at, len(now) - at_now))
        at, at_now = at + same, at_now + same
        if at == len(before) or at_now == len(now):
            return [*gone, *before[at:]], [*new, *now[at_now:]]
        num_gone, num_new = _step(before[at : at + STEP_MAX], now[at_now : at_now + STEP_MAX])
        if not num_gone and not num_new:
            break
        gone.extend(before[at : at + num_gone])
        new.extend(now[at_now : at_now + num_new])
        at, at_now = at + num_gone, at_now + num_new
    known, there = set(map(id, before)), set(map(id, now))
    return [job for job in before if id(job) not in there], [job for job in now if id(job) not in known]


def _step(before: Sequence[PendingJob], now: Sequence[PendingJob]) -> tuple[int, int]:
    """How many are gone and how many are new up to the next one that stays; none where that is too far."""
    for num in range(1, max(len(before), len(now))):
        for num_gone, num_new in ((num, num), (num, 0), (0, num)):  # others in their places, some left, some came
            if num_gone < len(before) and num_new < len(now) and before[num_gone] is now[num_new]:
                return num_gone, num_new
    return 0, 0


def _cut(jobs: Sequence[PendingJob], number: Number) -> Iterator[Sweep]:
    """jobs: in order of age, of one line and priority."""
    for _, alike in groupby(enumerate(jobs), key=lambda one: _alike(one[0], one[1], number)):
        yield Sweep.of(tuple([job for _, job in alike]))


def _alike(place: int, job: PendingJob, number: Number) -> tuple[object, ...]:
    """Equal for those that hear the same. What a job has of its own, or waits for spot by its own time, makes it stand alone."""
    if _OWN(job) != _NOTHING or job.facts.shape.spot == "prefer":
        return (place,)
    return number(job.facts.shape), _ALIKE(job.facts)
