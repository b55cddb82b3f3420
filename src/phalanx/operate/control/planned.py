"""A plan, as far as it still holds: it was made in another process, of a snapshot that may be old now. Pure but for the draft."""

from collections.abc import Mapping

from phalanx.core.events import AttemptPlaced, JobWaits
from phalanx.core.ids import JobId
from phalanx.core.reasons import Reason
from phalanx.core.states import Pending
from phalanx.decide.scheduler.plan import Plan, Start, Wait
from phalanx.operate.control import names, observed, wanted
from phalanx.operate.control.fences import Fences, Taken
from phalanx.operate.control.fold import Draft
from phalanx.operate.control.observed import Sightings
from phalanx.operate.control.world import World


def carry(draft: Draft, seen: Sightings, fenced: Fences, plan: Plan, epoch: int, at_ms: int) -> None:
    """Adds what of the plan still holds to the draft: starts, and reasons to wait that changed."""
    taken = Taken.of(draft.world, fenced)
    ready, forgotten = observed.ready(draft.world, seen), names.forgotten(draft.world, seen)
    for decision in plan.decisions:
        match decision:
            case Start(job, placement) if wanted.still_holds(draft.world, taken, ready, job, placement):
                record = draft.world.jobs[job]
                port = wanted.master_port(draft.world, taken, record, placement)
                if port is not None:
                    attempt = names.next_attempt(forgotten, record)
                    draft.add(AttemptPlaced(job, attempt, placement, port, epoch), at_ms)
                    taken.add(placement, port)
            case Wait(job, reason):
                _wait(draft, job, reason, at_ms)


def waiting(world: World, plan: Plan, before: Mapping[JobId, Wait]) -> dict[JobId, Wait]:
    """Why each pending job waits: as this plan says, else as the one before did."""
    waits = {decision.job: decision for decision in plan.decisions if isinstance(decision, Wait)}
    pending = (job.id for job in world.open_jobs.values() if isinstance(job.state, Pending))
    return {job: wait for job in pending if (wait := waits.get(job) or before.get(job)) is not None}


def _wait(draft: Draft, job: JobId, reason: Reason, at_ms: int) -> None:
    """Only a change of kind is worth a line in the log; the numbers move with every tick."""
    record = draft.world.open_jobs.get(job)
    if record is None or not isinstance(record.state, Pending):
        return
    if record.reason is None or record.reason.kind != reason.kind:
        draft.add(JobWaits(job, reason), at_ms)
