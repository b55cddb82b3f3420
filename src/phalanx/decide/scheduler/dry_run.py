"""What would be decided of a job that nobody has submitted, or of one that waits: now, with everybody else as they are."""

from dataclasses import dataclass, replace
from typing import Final

from phalanx.core.ids import JobId
from phalanx.decide.scheduler.eta import predict
from phalanx.decide.scheduler.memory import Memory
from phalanx.decide.scheduler.plan import Decision, Eta, Evict, Plan, Wait
from phalanx.decide.scheduler.schedule import schedule
from phalanx.decide.scheduler.snapshot import JobFacts, PendingJob, Snapshot
from phalanx.decide.scheduler.what_if import Change, changes

DRY: Final = JobId("this-job")
"""Stands for the job in reasons and evictions."""


@dataclass(frozen=True, slots=True)
class Trial:
    """decision: of the job. evictions: of gangs that would end for it. changes: the smallest ones that would start it now."""

    decision: Decision
    evictions: tuple[Evict, ...] = ()
    eta: Eta | None = None
    changes: tuple[Change, ...] = ()


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
    return Trial(decision, evictions, predict(snapshot, plan, {job}).get(job), changes(snapshot, job, memory))


def _of(plan: Plan, job: JobId) -> Decision:
    found = next((decision for decision in plan.decisions if decision.job == job), None)
    if found is None:
        raise KeyError(job)
    return found
