"""The difference between wanted and seen, as commands. Pure: worlds and sightings in, commands out."""

import hmac
import secrets
from collections.abc import Iterator, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from phalanx.core import features, wire
from phalanx.core.chaos import EVERY, PlannedFault
from phalanx.core.devices import WHOLE, NodeSlice, Placement
from phalanx.core.ids import NodeId
from phalanx.core.messages import (
    AttemptReport,
    Command,
    Forget,
    GangRecovery,
    GangStarted,
    GiveUpNode,
    Launch,
    PlanFaults,
    RequestTraces,
    StartRanks,
    StopRanks,
)
from phalanx.core.spec import CHECKPOINT_STEPS, JobSpec
from phalanx.core.spec_layout import layout_variable
from phalanx.core.spec_parse import command_line
from phalanx.core.spec_profile import profile_variable
from phalanx.core.spec_recovery import gang_sizes
from phalanx.core.states import Running, Starting, Stopping
from phalanx.core.trace_request import UNASKABLE
from phalanx.core.training_data import DATA_SPEC_VARIABLE, DATA_VARIABLE, DataSource
from phalanx.operate.control.failures import seen_by
from phalanx.operate.control.observed import Sightings
from phalanx.operate.control.saving_places import checkpoints_at
from phalanx.operate.control.taken import Taken
from phalanx.operate.control.verdict import awaited, broken, goes_without, gone
from phalanx.operate.control.world import AttemptRecord, JobRecord, World, part_bytes, slice_of

REPLICAS_VARIABLE: Final = "PHALANX_REPLICAS"
INDEX_VARIABLE: Final = "PHALANX_ARRAY_INDEX"
"""Which one of its array a job is."""

MEMORY_VARIABLE: Final = "PHALANX_GPU_MEMORY_BYTES"
"""How much of its device's memory a share may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What every command of one control plane carries: its epoch, where jobs keep their files, how long a stop may take. gang_key:
    of which each attempt's token is made that shims of its nodes show each other."""

    epoch: int
    jobs_folder: Path
    grace_ms: int
    gang_key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)


def commands(world: World, seen: Sightings, terms: Terms) -> dict[NodeId, list[Command]]:
    """What each node has to do for the seen to become the wanted; nothing when it already is."""
    wanted: dict[NodeId, list[Command]] = {}
    for job, attempt in world.holding():
        for node, command in _for_gang(world, seen, terms, job, attempt):
            wanted.setdefault(node, []).append(command)
    for (node, held), report in seen.reports.items():
        if world.current(held, node) is None:
            over = report.phase == "ended"
            command = Forget(held, terms.epoch) if over else StopRanks(held, terms.epoch, terms.grace_ms)
            wanted.setdefault(node, []).append(command)
    for node, begun in sorted(seen.started):
        if (node, begun) not in seen.reports and world.current(begun, node) is None:
            wanted.setdefault(node, []).append(StopRanks(begun, terms.epoch, terms.grace_ms))
    return wanted


def _for_gang(
    world: World, seen: Sightings, terms: Terms, job: JobRecord, attempt: AttemptRecord
) -> Iterator[tuple[NodeId, Command]]:
    reports = seen.of(attempt)
    ending, without = isinstance(job.state, Stopping) or broken(attempt, reports), goes_without(attempt, reports)
    first = attempt.placement.slices[0].node
    if not ending and first in seen.greeted:
        for node_rank in sorted(gone(attempt, reports) - without):
            yield first, GiveUpNode(attempt.id, terms.epoch, node_rank)
        if isinstance(job.state, Running) and awaited(attempt, reports):
            yield first, GangStarted(attempt.id, terms.epoch)
    for node_rank, (part, report) in enumerate(zip(attempt.placement.slices, reports, strict=True)):
        if part.node not in seen.greeted or part.node in attempt.released or (report is not None and report.phase == "ended"):
            continue
        if ending or node_rank in without:
            yield part.node, StopRanks(attempt.id, terms.epoch, terms.grace_ms)
        elif report is None and isinstance(job.state, Starting):
            yield part.node, StartRanks(launch(world, job, attempt, part.node, terms), terms.epoch)
        elif report is not None and _lacks_faults(world, attempt, part.node, report):
            yield part.node, PlanFaults(attempt.id, terms.epoch, open_faults(attempt), attempt.faults[-1].plan.number)
        elif report is not None and _lacks_traces(world, attempt, part.node, report):
            yield part.node, RequestTraces(attempt.id, terms.epoch, attempt.traces[-1].request)


def _lacks_faults(world: World, attempt: AttemptRecord, node: NodeId, report: AttemptReport) -> bool:
    """Whether the node has yet to say that it knows the newest one. An agent that is older than such faults would hang up."""
    able = features.CHAOS in world.nodes[node].shape.features
    return able and bool(attempt.faults) and report.faults < attempt.faults[-1].plan.number


def _lacks_traces(world: World, attempt: AttemptRecord, node: NodeId, report: AttemptReport) -> bool:
    """As `_lacks_faults`, of the newest request for traces."""
    able = features.TRACES in world.nodes[node].shape.features
    return able and bool(attempt.traces) and UNASKABLE < report.traces < attempt.traces[-1].request.number


def open_faults(attempt: AttemptRecord) -> tuple[PlannedFault, ...]:
    """Those that some rank has yet to say that it met, or heard of too late."""
    size = attempt.placement.world_size
    return tuple(one.plan for one in attempt.faults if len(one.met) < (size if one.plan.rank == EVERY else 1))


def launch(world: World, job: JobRecord, attempt: AttemptRecord, node: NodeId, terms: Terms) -> Launch:
    """`node`'s part of the gang. The node must have one."""
    found = slice_of(attempt.placement, node)
    assert found is not None, f"{node} has no part in {attempt.id}"
    node_rank, first_rank, part = found
    spec, slices = job.spec, attempt.placement.slices
    return Launch(
        attempt=attempt.id,
        argv=argv(spec),
        python=spec.environment.python,
        env=_env(world, job, part),
        code=job.code,
        folder=str(terms.jobs_folder / job.id),
        first_rank=first_rank,
        world_size=attempt.placement.world_size,
        node_rank=node_rank,
        num_nodes=len(slices),
        devices=part.devices,
        cpus=spec.resources.cpus,
        master_address=world.nodes[slices[0].node].shape.address,
        master_port=attempt.master_port,
        hyperparameters=dict(spec.hyperparameters),
        checkpoint_every=CHECKPOINT_STEPS if spec.checkpoint.every == "auto" else spec.checkpoint.every,  # of too old a node
        checkpoint_keep_last=spec.checkpoint.keep_last,
        checkpoint_keep_best=spec.checkpoint.keep_best,
        checkpoint_best_metric=spec.checkpoint.best_metric,
        checkpoint_best_mode=spec.checkpoint.best_mode,
        checkpoint_keep_every=spec.checkpoint.keep_every,
        checkpoint_mtbf_s=seen_by(world).mtbf_s(len(slices)) if spec.checkpoint.every == "auto" else 0.0,
        restarts=attempt.number - 1,
        lock=spec.environment.lock,
        image=spec.environment.image,
        secrets=spec.secrets,
        secret_files=spec.secret_files,
        on_partition=spec.on_partition,
        checkpoints=checkpoints_at(job, terms.jobs_folder),
        recovery=_recovery(job, attempt, terms),
        chaos=spec.chaos,
        memory_bytes=spec.resources.memory_bytes,
        session=spec.session,
    )


def _env(world: World, job: JobRecord, part: NodeSlice) -> dict[str, str]:
    """What the ranks find besides what the agent adds."""
    env = {**job.spec.env, **layout_variable(job.spec.layout), **profile_variable(job.spec.profile)}
    if job.spec.data:
        env[DATA_VARIABLE] = job.spec.data.path
        if not job.spec.data.is_plain:
            env[DATA_SPEC_VARIABLE] = wire.dumps(DataSource, job.spec.data)
    if job.spec.recovery.replicas:
        env[REPLICAS_VARIABLE] = str(job.spec.recovery.replicas)
    if job.array:
        env[INDEX_VARIABLE] = str(job.array_index)
    if part.milli < WHOLE:
        env |= share_bounds(part.milli, part_bytes(world.nodes[part.node].shape, part.devices[0], part))
    return env


def share_bounds(milli: int, num_bytes: int) -> dict[str, str]:
    """How a rank hears of its share. CUDA MPS keeps it where the node runs its daemon: it refuses memory beyond the limit, and
    gives the share its part of the processors. A trainer can read the limit by itself."""
    bounds = {MEMORY_VARIABLE: str(num_bytes), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{max(1, milli // 10)}"}
    if num_bytes:  # a CPU slot has no memory of its own
        bounds["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={max(1, num_bytes // 2**20)}M"
    return bounds


def argv(spec: JobSpec) -> tuple[str, ...]:
    """Of every rank. A leading '' is the environment's Python; `python` and others are resolved on the node."""
    if spec.session and not spec.entrypoint:
        return ("",)  # what there is: the node decides
    return ("", "-m", "phalanx.job.train", spec.recipe) if spec.recipe else command_line(spec.entrypoint)


def ports(world: World, taken: Taken, job: JobRecord, placement: Placement) -> tuple[int, int] | None:
    """MASTER_PORT on the first node for the next attempt of `job`, and where shims of several nodes meet its coordinator, or 0: of
    no gang that lives there, wanted or not, nor of the job's last attempt. None when there are not so many."""
    avoided = taken.ports(placement.slices[0].node) | (world.attempts[job.attempt].ports if job.attempt else frozenset())
    master = _free_port(world, placement, avoided)
    if master is None or not (job.spec.recovery.in_gang and len(placement.slices) > 1):
        return None if master is None else (master, 0)
    meeting = _free_port(world, placement, avoided | {master})
    return None if meeting is None else (master, meeting)


def _free_port(world: World, placement: Placement, avoided: Set[int]) -> int | None:
    """It moves on with the log, so that a port still in TIME_WAIT is not met again soon."""
    first, end = world.nodes[placement.slices[0].node].shape.ports
    size = end - first
    return next((port for step in range(size) if (port := first + (world.seq + step) % size) not in avoided), None)


def _recovery(job: JobRecord, attempt: AttemptRecord, terms: Terms) -> GangRecovery | None:
    asked, slices = job.spec.recovery, attempt.placement.slices
    if not asked.in_gang:
        return None
    alone = GangRecovery(asked.spares, asked.hang_ms, sizes=gang_sizes(job.spec, attempt.placement.world_size))
    if len(slices) == 1:
        return alone
    token = hmac.new(terms.gang_key, attempt.id.encode(), "sha256").hexdigest()
    return replace(alone, ranks=tuple(len(part.devices) for part in slices), port=attempt.gang_port, token=token)
