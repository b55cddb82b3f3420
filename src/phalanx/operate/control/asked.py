"""What people ask for, as the events that follow from it; or why it cannot be. Pure: a world in, events or an error out."""

import difflib
import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
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
from phalanx.core.policy import DEFAULT_QUEUE, Policy
from phalanx.core.spec import JobSpec
from phalanx.core.states import Finished, Paused, Running, Starting, Stopping
from phalanx.core.units import utc_day
from phalanx.decide.scheduler.quotas import cells, policy_checks
from phalanx.decide.scheduler.where.fleet import Fleet
from phalanx.decide.scheduler.where.ground import survey
from phalanx.decide.scheduler.why.explain import never_fits
from phalanx.decide.scheduler.why.impossible import CPUS, DEVICE_MEMORY, MEMORY, NODES, SPOT, WHERE, WITHIN
from phalanx.operate.control import verdict
from phalanx.operate.control.observed import Sightings
from phalanx.operate.control.snapshots import node_facts, shape
from phalanx.operate.control.world import JobRecord, NodeRecord, World

KEY_CHARS_MAX: Final = 255
REASON_CHARS_MAX: Final = 500

KNOWN_NAMED: Final = 10
"""Of the queues or windows that there are, where none is like the one that was written."""

ARRAY_CHARS_MAX: Final = 64 * 1024 * 1024
"""Of the specs of an array, each of whose jobs has its own in the log."""

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
        case Stopping(cause="cancel" | "max_duration"):
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
        case Stopping(cause="cancel" | "max_duration"):
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


def refuse_unmeetable(world: World, spec: JobSpec, now_ms: int) -> None:
    """Raises SpecError for a deadline that is past, a job that must have succeeded before and that nobody knows, or what
    `refuse_elsewhere` refuses."""
    deadline_ms = spec.deadline_ms(now_ms)
    if deadline_ms is not None and deadline_ms <= now_ms:
        raise SpecError("deadline", spec.deadline, "is past; write a later time, or leave it out")
    for name in spec.after:
        if JobId(name) not in world.jobs:
            raise SpecError("after", name, "no such job; `phalanx ls` shows them all")
    refuse_elsewhere(world.policy, spec)


def refuse_elsewhere(policy: Policy, spec: JobSpec) -> None:
    """Raises SpecError for a region in which the fleet is not, or a queue or a window that the policy does not have. Where it
    configures no queue, any name goes."""
    regions = spec.placing.regions
    if regions and policy.region not in regions:
        here = f"this platform is in {policy.region}" if policy.region else "this platform's policy does not say its region"
        raise SpecError("placing.regions", ", ".join(regions), f"{here}; submit it to one that is in one of them")
    if policy.queues and spec.queue != DEFAULT_QUEUE:
        _refuse_unnamed("queue", spec.queue, policy.queues)
    if spec.window:
        _refuse_unnamed("window", spec.window, policy.windows)


def _refuse_unnamed(field: str, name: str, known: Collection[str]) -> None:
    """Raises SpecError for what is not in the policy: it may be mistyped, and would count for nothing, or wait for ever."""
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    has = f"it has {', '.join(sorted(known)[:KNOWN_NAMED])}" if known else f"it has no {field}s"
    raise SpecError(field, name, f"is not in the policy; {f'did you mean {near[0]!r}?' if near else has}")


def policy_doubts(world: World, policy: Policy, now_ms: int) -> list[str]:
    """What may be a mistake, such as rules for nodes that nobody knows yet. Raises SpecError for the first promise that this fleet
    cannot keep, as the policy itself describes its nodes."""
    nodes = [node for node in node_facts(world, now_ms, policy) if not node.gone]
    capacity = Counter(kind for node in nodes for _, kind in node.devices)
    hosts = Counter(kind for node in nodes for kind in {kind for _, kind in node.devices})
    for name, value, fix in policy_checks.problems(policy, capacity, cells.counts(survey(nodes)), hosts):
        raise SpecError(name, value, fix)
    rules = [
        (number, rule.match)
        for number, rule in enumerate(policy.nodes)
        if not any(fnmatchcase(node, rule.match) for node in world.nodes)
    ]
    doubts = policy_checks.doubts(policy, capacity, now_ms)
    return [
        *(f"{name}: {value!r}: {fix}" for name, value, fix in doubts),
        *(f"nodes.{number}.match: {match!r} matches none of the known nodes" for number, match in rules),
    ]


def same_job(world: World, job: JobId, spec: JobSpec, code: str, key: str) -> JobId:
    """The job that was submitted with `key` before. Raises Conflict when it is another one than this: by its fields, since the hash
    that an older version of this program made knows fewer of them."""
    record = job_of(world, job)
    if (record.spec, record.code) != (spec, code):
        raise Conflict("key", key, f"was used for {job}, another job; use a new key for each job")
    return job


def refuse_never_fitting(world: World, spec: JobSpec, now_ms: int) -> None:
    """Raises SpecError when no fleet of the known nodes could hold the job, however idle. Nodes that have been away for long do not
    count, unless all have: then they have yet to come."""
    reason = never_fits(shape(spec), Fleet.of(node for node in node_facts(world, now_ms) if not node.gone))
    if reason is None:
        return
    fields = {
        "environment.lock": ("environment.lock", spec.environment.lock),
        "environment.image": ("environment.image", spec.environment.image),
        "secrets": ("secrets", ", ".join(spec.secrets)),
        "on_partition": ("on_partition", spec.on_partition),
        CPUS: ("resources.cpus", spec.resources.cpus),
        MEMORY: ("resources.memory", spec.resources.memory),
        DEVICE_MEMORY: ("resources.gpu_memory", spec.resources.gpu_memory),
        SPOT: (SPOT, spec.placing.spot),
        **{f"{WHERE}{name}": (f"{WHERE}{name}", value) for name, value in spec.placing.where.items()},
    }
    of_count = ("num_nodes", spec.num_nodes) if reason.resource.startswith(NODES) else ("resources.gpus", spec.resources.gpus)
    if WITHIN in reason.resource:
        of_count = (
            ("placing.group", spec.placing.group)
            if " in groups of " in reason.resource
            else ("placing.within", spec.placing.within)
        )
    field, value = fields.get(reason.resource.removeprefix(NODES), of_count)
    raise SpecError(field, value, reason.sentence())


def refuse_unwritable(spec: JobSpec, key: str) -> None:
    """What the log could not give back as it was, such as NaN, must not get in, whatever way it came: every later start would
    fail on it. Raises SpecError."""
    if len(key) > KEY_CHARS_MAX:
        raise SpecError("key", f"{len(key)} characters", f"write at most {KEY_CHARS_MAX}")
    try:
        text = wire.dumps(JobSpec, spec)
        same = wire.loads(JobSpec, text) == spec
    except ValueError:
        same = False
    if not same:
        raise SpecError("job", spec.name, "use finite numbers and valid Unicode text only")
    if spec.array is not None and len(text) * spec.array.count > ARRAY_CHARS_MAX:
        fix = f"shorten the spec, which has {len(text)} characters, or write at most {ARRAY_CHARS_MAX // len(text)}"
        raise SpecError("array.count", spec.array.count, fix)


def config_hash(spec: JobSpec) -> str:
    """SHA-256 of the spec as canonical JSON: equal for equal specs, whatever order their keys were written in."""
    text = json.dumps(wire.plain(JobSpec, spec), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
