"""What would be decided of a job that nobody has submitted, or of one that waits: now, with everybody else as they are."""

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Final

from phalanx.core.ids import JobId
from phalanx.core.reasons import Behind, Geometry, NoRoom
from phalanx.decide.scheduler.memory import Memory
from phalanx.decide.scheduler.plan import Decision, Eta, Evict, Plan, Wait
from phalanx.decide.scheduler.schedule import schedule
from phalanx.decide.scheduler.snapshot import JobFacts, PendingJob, Snapshot
from phalanx.decide.scheduler.why.eta import not_after, predict
from phalanx.decide.scheduler.why.what_if import Change, changes

DRY: Final = JobId("this-job")
"""Stands for the job in reasons and evictions."""


@dataclass(frozen=True, slots=True)
class Trial:
    """decision: of the job. evictions: of gangs that would end for it. changes: the smallest ones that would start it now.
    young: the gangs that are ended for it at `young_ms` (Unix time), when they have run for `preemption.min_runtime`. smaller: of
    all these the ones that go on with fewer devices."""

    decision: Decision
    evictions: tuple[Evict, ...] = ()
    eta: Eta | None = None
    changes: tuple[Change, ...] = ()
    young: tuple[JobId, ...] = ()
    young_ms: int | None = None
    smaller: tuple[JobId, ...] = ()


def dry_run(snapshot: Snapshot, facts: JobFacts, unmet: tuple[JobId, ...] = (), failed: tuple[JobId, ...] = ()) -> Trial:
    """As if the job were submitted now. unmet, failed: of the jobs that it comes after."""
    asked = replace(facts, job=DRY, submitted_ms=snapshot.now_ms, sequence=_last(snapshot) + 1)
    waiting = PendingJob(asked, unmet=unmet, failed=failed)
    return trial(replace(snapshot, pending=(*snapshot.pending, waiting)), DRY)


def trial(snapshot: Snapshot, job: JobId) -> Trial:
    """Of a job that waits in the snapshot. Raises KeyError when it does not."""
    memory = Memory()
    plan = schedule(snapshot, memory)
    decision = _of(plan, job)
    if not isinstance(decision, Wait):
        return Trial(decision)
    evictions = _for(plan, job)
    later, young_ms = _young(snapshot, decision)
    smaller = tuple(sorted({evict.job for evict in (*evictions, *later) if evict.cause == "shrink"}))
    eta = predict(snapshot, plan, {job}).get(job)
    if eta is not None and young_ms is not None:
        eta = not_after(young_ms, snapshot.now_ms, eta)
    young = tuple(sorted(evict.job for evict in later))
    return Trial(decision, evictions, eta, changes(_submitted_again(snapshot, job), job, memory), young, young_ms, smaller)


def _submitted_again(snapshot: Snapshot, job: JobId) -> Snapshot:
    """With the job in the place where a changed one comes to stand: after those that are as old, and with all of its wait for spot
    nodes before it. Of an array all come to stand there, in their order, so the job stays where it is."""
    waiting = next(one for one in snapshot.pending if one.facts.job == job)
    if waiting.facts.array:
        return snapshot
    last = _last(snapshot)
    sequence = last if waiting.facts.sequence == last else last + 1
    facts = replace(waiting.facts, submitted_ms=snapshot.now_ms, sequence=sequence)
    moved = replace(waiting, facts=facts, since_ms=0, repair=False)
    return replace(snapshot, pending=tuple(moved if one is waiting else one for one in snapshot.pending))


def _last(snapshot: Snapshot) -> int:
    """The sequence of the newest job that has not finished."""
    known = [*(job.facts for job in snapshot.pending), *(gang.facts for gang in snapshot.running)]
    return max((job.sequence for job in known), default=0)


def _young(snapshot: Snapshot, wait: Wait) -> tuple[tuple[Evict, ...], int | None]:
    """Whom the job has ended, and when, if gangs are too young for it now. It is decided at times at which one more is old enough,
    as it will be then: the first set that will do is ended, though a cheaper one may be old enough a little later."""
    steady_ms = snapshot.policy.preemption.min_runtime_ms
    old_ms = {gang.placed_ms + steady_ms for gang in snapshot.running if gang.facts.preemptible and not gang.stopping}
    times = sorted(at_ms for at_ms in old_ms if at_ms > snapshot.now_ms)
    if not isinstance(wait.reason, NoRoom | Geometry | Behind) or not times:
        return (), None
    memory = Memory()

    def ended(at_ms: int) -> tuple[Evict, ...]:
        return _for(schedule(replace(snapshot, now_ms=at_ms), memory), wait.job)

    if not ended(times[-1]):
        return (), None
    first_ms = times[bisect_left(times, True, hi=len(times) - 1, key=lambda at_ms: bool(ended(at_ms)))]
    return ended(first_ms), first_ms


def _for(plan: Plan, job: JobId) -> tuple[Evict, ...]:
    """Gangs of others that are ended, or made smaller, for the job."""
    return tuple(evict for evict in plan.evictions if evict.claimant == job and evict.job != job)


def _of(plan: Plan, job: JobId) -> Decision:
    found = next((decision for decision in plan.decisions if decision.job == job), None)
    if found is None:
        raise KeyError(job)
    return found
