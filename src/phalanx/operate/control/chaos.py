"""Faults that people ask for in a running job, as the events that follow; or why they cannot be. Pure: a world in, events out."""

from phalanx.core.chaos import FAULTS_MAX, OF_AGENT, OF_TRAINER, Asked, PlannedFault
from phalanx.core.chaos import planned as with_defaults
from phalanx.core.errors import Conflict, SpecError
from phalanx.core.events import EventBody, FaultPlanned
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.records import StepRecord
from phalanx.core.states import Running, Starting
from phalanx.operate.control.asked import job_of
from phalanx.operate.control.world import AttemptRecord, JobRecord, World


def planned(
    world: World, job: JobId, asked: Asked, newest: tuple[AttemptId, StepRecord] | None, by: str, lease_ms: int
) -> list[EventBody]:
    """newest: step of the attempt that the job had when somebody looked, which says nothing of one that followed since. lease_ms:
    of nodes.

    Raises NotFound, Conflict, SpecError.
    """
    record = job_of(world, job)
    attempt = _running(world, record)
    fault = with_defaults(asked, len(attempt.faults) + 1)
    _refuse_kind(record, fault)
    _refuse_place(attempt, fault, newest[1] if newest is not None and newest[0] == attempt.id else None)
    _refuse_harm_to_others(world, attempt, fault, lease_ms)
    return [FaultPlanned(job, attempt.id, fault, by)]


def _running(world: World, job: JobRecord) -> AttemptRecord:
    if not job.spec.chaos:
        fix = "its file does not allow faults; submit it with `chaos: true`, or with --set chaos=true"
        raise Conflict("job", job.id, fix)
    if not isinstance(job.state, Starting | Running) or job.attempt is None:
        raise Conflict("job", job.id, f"it is {job.state.name}; ask for a fault while it runs")
    attempt = world.attempts[job.attempt]
    if len(attempt.faults) >= FAULTS_MAX:
        raise Conflict("job", job.id, f"{attempt.id} has had {FAULTS_MAX} faults, which is the most; submit the job again")
    return attempt


def _refuse_kind(job: JobRecord, fault: PlannedFault) -> None:
    if job.spec.kind != "train":
        fix = "faults come at steps, and only jobs of `kind: train` have these; ask for one in such a job"
        raise SpecError("fault", fault.fault, fix)
    if fault.fault in OF_TRAINER and not job.spec.recipe:
        raise SpecError("fault", fault.fault, "only a recipe has the places where it acts; choose another fault for a script")


def _refuse_place(attempt: AttemptRecord, fault: PlannedFault, newest: StepRecord | None) -> None:
    size = attempt.placement.world_size
    if fault.rank >= size:
        raise SpecError("rank", fault.rank, f"{attempt.id} has no such rank; write 0 to {size - 1}")
    if newest is None or not fault.step:
        return
    if fault.step <= newest.step:
        raise Conflict("step", fault.step, f"{attempt.id} is at step {newest.step} by now; choose a later one, or leave it out")
    if newest.total_steps and fault.step > newest.total_steps:
        raise SpecError("step", fault.step, f"{attempt.id} ends with step {newest.total_steps}; choose an earlier one")


def _refuse_harm_to_others(world: World, attempt: AttemptRecord, fault: PlannedFault, lease_ms: int) -> None:
    """An agent that is away for longer than its lease loses what everybody has on its node; only its own job has asked for that."""
    most_ms = lease_ms * 2 // 3  # an agent takes a while to come back
    if fault.fault not in OF_AGENT or fault.for_ms <= most_ms:
        return
    nodes = [part.node for part in attempt.placement.slices for _ in part.devices]
    node = nodes[fault.rank]
    others = [
        other.id for _, other in world.holding() if other.id != attempt.id and node in {part.node for part in other.held.slices}
    ]
    if others:
        fix = f"{min(others)} has a part on {node} and would lose it; write at most {most_ms / 1000:g}s, or wait until it has ended"
        raise Conflict("for", f"{fault.for_ms / 1000:g}s", fix)
