"""What people ask for, as the events that follow from it; or why it cannot be. Pure: a world in, events or an error out."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from phalanx.core import wire
from phalanx.core.errors import Conflict, NotFound, SpecError
from phalanx.core.events import (
    EventBody,
    JobCollected,
    JobResumed,
    JobRetried,
    JobSubmitted,
    NodeDrained,
    NodeUndrained,
    StopRequested,
)
from phalanx.core.ids import JobId, NodeId
from phalanx.core.policy import Policy
from phalanx.core.spec import JobSpec
from phalanx.core.states import Finished, Paused, Running, Starting, Stopping
from phalanx.core.units import utc_day
from phalanx.operate.control import verdict
from phalanx.operate.control.observed import Sightings
from phalanx.operate.control.refused import refuse_elsewhere, refuse_never_fitting
from phalanx.operate.control.saving_places import with_store_of
from phalanx.operate.control.world import AttemptRecord, JobRecord, NodeRecord, World

REASON_CHARS_MAX: Final = 500

_ENDS: Final = "it is already on its way to its end; `phalanx retry` opens it again afterwards"


def cancel(world: World, job: JobId, by: str) -> list[EventBody]:
    """At once when it waits, else once its ranks are gone."""
    record = job_of(world, job)
    if isinstance(record.state, Finished):
        raise Conflict("job", job, f"it has already finished ({record.state.outcome})")
    if isinstance(record.state, Stopping) and record.state.cause == "cancel":
        return []
    return [StopRequested(job, "cancel", by)]


def cancel_array(world: World, job: JobId, by: str) -> list[EventBody]:
    """All jobs of the array that it is of and that have not finished."""
    array = job_of(world, job).array
    if not array:
        raise Conflict("job", job, "it is of no array; cancel it alone")
    left = [record.id for record in world.open_jobs.values() if record.array == array]
    if not left:
        raise Conflict("job", job, f"every job of its array {array} has already finished")
    return [event for one in left for event in cancel(world, one, by)]


def pause(world: World, seen: Sightings, job: JobId, by: str) -> list[EventBody]:
    """It lets go of its devices until it is resumed."""
    record = job_of(world, job)
    match record.state:
        case Starting() | Running() if _is_done(world, seen, record):
            raise Conflict("job", job, "its ranks have all exited with code 0; it is about to finish")
        case Paused() | Stopping(cause="pause"):
            return []
        case Finished(outcome=outcome):
            raise Conflict("job", job, f"it has already finished ({outcome})")
        case Stopping(cause="cancel" | "max_duration" | "idle"):
            raise Conflict("job", job, _ENDS)
    return [StopRequested(job, "pause", by)]


def resume(world: World, job: JobId, by: str) -> list[EventBody]:
    """A paused one waits for devices again; one that goes on anyway is left alone."""
    record = job_of(world, job)
    match record.state:
        case Paused():
            return [JobResumed(job, by)]
        case Stopping(cause="pause"):
            raise Conflict("job", job, "it still lets go of its devices; resume it once `phalanx describe` says paused")
        case Stopping(cause="cancel" | "max_duration" | "idle"):
            raise Conflict("job", job, _ENDS)
        case Finished(outcome=outcome):
            raise Conflict("job", job, f"it has already finished ({outcome}); `phalanx retry` opens a failed one again")
    return []


def retry(world: World, job: JobId, by: str, now_ms: int) -> list[EventBody]:
    """One that failed or was cancelled is opened again."""
    record = job_of(world, job)
    match record.state:
        case Finished(outcome="succeeded"):
            raise Conflict("job", job, "it has succeeded; submit it again for a second run")
        case Finished() if record.collected_ms is not None:
            raise Conflict("job", job, f"its files were collected on {utc_day(record.collected_ms)}; submit it again")
        case Finished():
            _refuse_moved(world.policy, record.spec)
            refuse_never_fitting(world, record.spec, now_ms)
            return [JobRetried(job, by)]
        case _:
            raise Conflict("job", job, f"it has not finished, it is {record.state.name}")


def _refuse_moved(policy: Policy, spec: JobSpec) -> None:
    """Raises SpecError where the policy has changed so that the job would be refused by now; its spec stays as it was."""
    try:
        refuse_elsewhere(policy, spec)
    except SpecError as error:
        again = f"{error.fix}; change the policy, or submit the job again with another {error.field}"
        raise SpecError(error.field, error.value, again) from error


def collect(world: World, jobs: Iterable[JobId], before_ms: int, by: str) -> list[EventBody]:
    """Those of `jobs` that finished before `before_ms` and nobody has opened again."""
    known = (world.jobs[job] for job in jobs if job in world.jobs)
    return [JobCollected(job.id, by) for job in known if is_collectable(job, before_ms)]


def is_collectable(job: JobRecord, before_ms: int) -> bool:
    """Whether what it left may become garbage now."""
    over = isinstance(job.state, Finished) and job.finished_ms is not None and job.finished_ms <= before_ms
    return over and job.collected_ms is None


def drain(world: World, seen: Sightings, node: NodeId, reason: str, by: str, now: bool) -> list[EventBody]:
    """Nothing new is placed there; with `now`, what runs there is moved off, less what is done and only ships its logs."""
    record = node_of(world, node)
    if not 0 < len(reason) <= REASON_CHARS_MAX:
        raise SpecError("reason", f"{len(reason)} characters", f"say why in 1 to {REASON_CHARS_MAX}")
    asked: list[EventBody] = [] if record.drained == reason else [NodeDrained(node, reason, by)]
    here = [world.jobs[world.attempts[attempt].job] for attempt in world.on_nodes.get(node, ()) if now]
    moved = (job for job in here if isinstance(job.state, Starting | Running) and not _is_done(world, seen, job))
    return [*asked, *(StopRequested(job.id, "drain", by) for job in moved)]


def halt(world: World, seen: Sightings, but: NodeId, by: str) -> list[EventBody]:
    """What has a part on another node than `but` is stopped, less what is done and only ships its logs."""
    elsewhere = _elsewhere(world, but)
    stopped = (job for job, _ in elsewhere if isinstance(job.state, Starting | Running) and not _is_done(world, seen, job))
    return [StopRequested(job.id, "down", by) for job in stopped]


def is_halting(world: World, left: Iterable[NodeId], but: NodeId) -> bool:
    """Whether more comes of waiting: ranks live on nodes that are up, or a gang all of whose nodes are up has yet to be over."""
    gangs = ([part.node for part in attempt.held.slices] for _, attempt in _elsewhere(world, but))
    up = {node for node, record in world.nodes.items() if record.up}
    return not up.isdisjoint(left) or any(up.issuperset(gang) for gang in gangs)


def _elsewhere(world: World, but: NodeId) -> Iterator[tuple[JobRecord, AttemptRecord]]:
    """Gangs with a part on another node."""
    return ((job, attempt) for job, attempt in world.holding() if any(part.node != but for part in attempt.held.slices))


def _is_done(world: World, seen: Sightings, job: JobRecord) -> bool:
    """Stopping it now would only have it run twice."""
    attempt = world.attempts[job.attempt] if job.attempt else None
    return attempt is not None and verdict.is_done(job, attempt, seen.of(attempt))


def undrain(world: World, node: NodeId, by: str) -> list[EventBody]:
    """It may be given work again."""
    return [NodeUndrained(node, by)] if node_of(world, node).drained else []


def job_of(world: World, job: JobId) -> JobRecord:
    """Raises NotFound."""
    record = world.jobs.get(job)
    if record is None:
        raise NotFound("job", job, "no such job; `phalanx ls` shows them all")
    return record


def node_of(world: World, node: NodeId) -> NodeRecord:
    """Raises NotFound."""
    record = world.nodes.get(node)
    if record is None:
        raise NotFound("node", node, "no such node; `phalanx node ls` shows them all")
    return record


def submit(jobs: Sequence[JobId], spec: JobSpec, code: str, by: str) -> list[EventBody]:
    """Every job of an array, or the one."""
    config, array = config_hash(spec), jobs[0] if spec.array else ""
    return [JobSubmitted(job, spec, code, config, by, array, index) for index, job in enumerate(jobs)]


def same_job(world: World, job: JobId, spec: JobSpec, code: str, key: str) -> JobId:
    """The job that was submitted with `key` before. Raises Conflict when it is another one than this: by its fields, since the hash
    that an older version of this program made knows fewer of them. Raises SpecError for a place for checkpoints that is none."""
    record = job_of(world, job)
    if (record.spec, record.code) != (with_store_of(record, spec), code):
        raise Conflict("key", key, f"was used for {job}, another job; use a new key for each job")
    return job


def config_hash(spec: JobSpec) -> str:
    """SHA-256 of the spec as canonical JSON: equal for equal specs, whatever order their keys were written in."""
    text = json.dumps(wire.plain(JobSpec, spec), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
