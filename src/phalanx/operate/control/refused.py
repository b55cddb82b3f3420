"""What cannot be asked for: jobs and policies that this fleet or its policy cannot take. Pure."""

import difflib
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from typing import Final

from phalanx.core import wire
from phalanx.core.errors import SpecError
from phalanx.core.ids import JobId
from phalanx.core.policy import DEFAULT_QUEUE, Policy
from phalanx.core.spec import JobSpec, LayoutSpec
from phalanx.core.units import count_of
from phalanx.decide.scheduler.quotas import policy_checks
from phalanx.decide.scheduler.where.fleet import Fleet
from phalanx.decide.scheduler.why.explain import never_fits
from phalanx.decide.scheduler.why.shortage import CPUS, DEVICE_MEMORY, MEMORY, NODES, WITHIN
from phalanx.decide.scheduler.why.wants import SPOT, WHERE
from phalanx.operate.control.layouts import refuse_unfitting
from phalanx.operate.control.saving_places import as_kept
from phalanx.operate.control.snapshots import node_facts, shape
from phalanx.operate.control.world import World

KEY_CHARS_MAX: Final = 255

KNOWN_NAMED: Final = 10
"""Of the queues or windows that there are, where none is like the one that was written."""

ARRAY_CHARS_MAX: Final = 64 * 1024 * 1024
"""Of the specs of an array, each of whose jobs has its own in the log."""


def refuse_unmeetable(world: World, spec: JobSpec, now_ms: int) -> None:
    """Raises SpecError for a layout that cannot work, a deadline that is past, a job that must have succeeded before and that
    nobody knows, or what `refuse_elsewhere` refuses."""
    refuse_unfitting(spec)
    deadline_ms = spec.deadline_ms(now_ms)
    if deadline_ms is not None and deadline_ms <= now_ms:
        raise SpecError("deadline", spec.deadline, "is past; write a later time, or leave it out")
    for name in spec.after:
        known = world.jobs.get(JobId(name))
        if known is None or spec.team not in ("", known.spec.team):  # another team's is told in the words of none
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
        _refuse_unnamed("queue", spec.queue, _open_to(policy, spec.team))
    elif policy.queues and spec.team not in ("", policy.team_of(spec.queue)) and policy.team_of(spec.queue):
        raise SpecError(
            "queue", spec.queue, f"is another team's; name one of {', '.join(_open_to(policy, spec.team)) or 'your own'}"
        )
    if spec.window:
        _refuse_unnamed("window", spec.window, policy.windows)
    most = policy.idle_max_ms
    if most is not None and spec.idle_timeout and not 0 < spec.idle_timeout_ms <= most:
        raise SpecError("idle_timeout", spec.idle_timeout, f"the policy allows at most {policy.idle_timeout_max}")


def _open_to(policy: Policy, team: str) -> list[str]:
    """Queues in which that team's jobs may stand; the platform's own may in all."""
    return [name for name in policy.queues if not team or policy.team_of(name) in ("", team)]


def _refuse_unnamed(field: str, name: str, known: Collection[str]) -> None:
    """Raises SpecError for what is not in the policy: it may be mistyped, and would count for nothing, or wait for ever."""
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    has = f"it has {', '.join(sorted(known)[:KNOWN_NAMED])}" if known else f"it has no {field}s"
    raise SpecError(field, name, f"is not in the policy; {f'did you mean {near[0]!r}?' if near else has}")


def policy_doubts(world: World, policy: Policy, now_ms: int) -> list[str]:
    """What may be a mistake, such as rules for nodes that nobody knows yet. Raises SpecError for the first promise that this fleet
    cannot keep, as the policy itself describes its nodes, for a region in which an open job may not be, and for a place for
    checkpoints in which no job could save."""
    as_kept(policy.checkpoint_store, "checkpoint_store")
    nodes = [node for node in node_facts(world, now_ms, policy) if not node.gone]
    for name, value, fix in policy_checks.unkept(policy, nodes):
        raise SpecError(name, value, fix)
    rules = [
        (number, rule.match)
        for number, rule in enumerate(policy.nodes)
        if not any(fnmatchcase(node, rule.match) for node in world.nodes)
    ]
    doubts = policy_checks.doubts(policy, policy_checks.capacity_of(nodes), now_ms)
    return [
        *_left_behind(world, policy),
        *(f"{name}: {value!r}: {fix}" for name, value, fix in doubts),
        *(f"nodes.{number}.match: {match!r} matches none of the known nodes" for number, match in rules),
    ]


def _left_behind(world: World, policy: Policy) -> Iterator[str]:
    """Names that open jobs ask for and this policy does not have. Raises SpecError for a region: that is law to the job, and nobody
    looks again before it starts."""
    errors = dict[tuple[str, str, tuple[str, ...]], SpecError | None]()
    jobs = dict[tuple[str, object], list[JobId]]()
    for job in world.open_jobs.values():
        asks = job.spec.queue, job.spec.window, job.spec.placing.regions
        if asks not in errors:
            errors[asks] = _elsewhere(policy, job.spec)
        if (error := errors[asks]) is not None:
            jobs.setdefault((error.field, error.value), []).append(job.id)
    for (field, value), found in sorted(jobs.items()):
        those = f"{count_of(len(found), 'open job')}, such as {found[0]}"
        if field == "placing.regions":
            fix = f"{those}, must run in {value}; cancel first what may not run here, or leave the region as it is"
            raise SpecError("region", policy.region, fix)
        yield f"{field}s: {value!r}: is not in the policy, but asked for by {those}"


def _elsewhere(policy: Policy, spec: JobSpec) -> SpecError | None:
    try:
        refuse_elsewhere(policy, spec)
    except SpecError as error:
        return error
    return None


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
        "secret_files": ("secret_files", ", ".join(spec.secret_files)),
        "on_partition": ("on_partition", spec.on_partition),
        "recovery.in_gang": ("recovery.in_gang", spec.recovery.in_gang),
        "recovery.min_ranks": ("recovery.min_ranks", spec.recovery.min_ranks),
        CPUS: ("resources.cpus", spec.resources.cpus),
        MEMORY: ("resources.memory", spec.resources.memory),
        DEVICE_MEMORY: ("resources.gpu_memory", spec.resources.gpu_memory),
        "checkpoint.store": ("checkpoint.store", spec.checkpoint.store),
        "layout": ("layout", wire.plain(LayoutSpec, spec.layout)),
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
