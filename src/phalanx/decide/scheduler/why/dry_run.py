"""What would be decided of a job that nobody has submitted, or of one that waits: now, with everybody else as they are."""

from dataclasses import dataclass, replace
from typing import Final

from phalanx.core.ids import JobId
from phalanx.core.reasons import Behind, Geometry, NoRoom
from phalanx.decide.scheduler.memory import Memory
from phalanx.decide.scheduler.plan import Decision, Eta, Evict, Plan, Wait
from phalanx.decide.scheduler.schedule import schedule
from phalanx.decide.scheduler.snapshot import JobFacts, PendingJob, Snapshot
from phalanx.decide.scheduler.why.eta import predict
from phalanx.decide.scheduler.why.what_if import Change, changes

DRY: Final = JobId("this-job")
"""Stands for the job in reasons and evictions."""


@dataclass(frozen=True, slots=True)
class Trial:
    """decision: of the job. evictions: of gangs that would end for it. changes: the smallest ones that would start it now.
    young: the gangs that can be ended for it from `young_ms` (Unix time) on, when they have run for `preemption.min_runtime`."""

    decision: Decision
    evictions: tuple[Evict, ...] = ()
    eta: Eta | None = None
    changes: tuple[Change, ...] = ()
    young: tuple[JobId, ...] = ()
    young_ms: int = 0


def dry_run(snapshot: Snapshot, facts: JobFacts) -> Trial:
    """As if the job were submitted now."""
    known = [*(job.facts for job in snapshot.pending), *(job.facts for job in snapshot.running)]
    last = max((job.sequence for job in known), default=0)
    asked = replace(facts, job=DRY, submitted_ms=snapshot.now_ms, sequence=last + 1)
    return trial(replace(snapshot, pending=(*snapshot.pending, PendingJob(asked))), DRY)


def trial(snapshot: Snapshot, job: JobId) -> Trial:
    """Of a job that waits in the snapshot. Raises KeyError when it does not."""
    memory = Memory()
    plan = schedule(snapshot, memory)
    decision = _of(plan, job)
    if not isinstance(decision, Wait):
        return Trial(decision)
    evictions = tuple(evict for evict in plan.evictions if evict.claimant == job and evict.job != job)
    young, young_ms = _young(snapshot, decision)
    return Trial(decision, evictions, predict(snapshot, plan, {job}).get(job), changes(snapshot, job, memory), young, young_ms)


def _young(snapshot: Snapshot, wait: Wait) -> tuple[tuple[JobId, ...], int]:
    """Whom the job would have ended if no gang were too young for it, where one of them is, and when none will be."""
    steady_ms = snapshot.policy.preemption.min_runtime_ms
    old_ms = {gang.facts.job: gang.placed_ms + steady_ms for gang in snapshot.running}
    if not isinstance(wait.reason, NoRoom | Geometry | Behind) or max(old_ms.values(), default=0) <= snapshot.now_ms:
        return (), 0
    at_once = replace(snapshot.policy, preemption=replace(snapshot.policy.preemption, min_runtime="0s"))
    plan = schedule(replace(snapshot, policy=at_once))
    ended = sorted(evict.job for evict in plan.evictions if evict.claimant == wait.job and evict.job != wait.job)
    last_ms = max((old_ms[name] for name in ended), default=0)
    return (tuple(ended), last_ms) if last_ms > snapshot.now_ms else ((), 0)


def _of(plan: Plan, job: JobId) -> Decision:
    found = next((decision for decision in plan.decisions if decision.job == job), None)
    if found is None:
        raise KeyError(job)
    return found
