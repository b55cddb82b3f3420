"""The difference between wanted and seen, as commands; and what the scheduler sees. Pure: worlds and sightings in, facts out."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from phalanx.core import features
from phalanx.core.devices import Placement
from phalanx.core.ids import JobId, NodeId
from phalanx.core.messages import Command, Forget, Launch, StartRanks, StopRanks
from phalanx.core.spec import JobSpec
from phalanx.core.spec_parse import command_line
from phalanx.core.states import Pending, Starting, Stopping
from phalanx.decide.scheduler.snapshot import NodeFacts, PendingJob, PutOff, RunningJob, Snapshot
from phalanx.operate.control.fences import Fence, Fences, Taken
from phalanx.operate.control.observed import Sightings
from phalanx.operate.control.verdict import broken
from phalanx.operate.control.world import AttemptRecord, JobRecord, NodeRecord, World, slice_of

DATA_VARIABLE: Final = "PHALANX_DATA"
"""The rank's environment variable with the path of its prepared data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What every command of one control plane carries: its epoch, where jobs keep their files, how long a stop may take."""

    epoch: int
    jobs_folder: Path
    grace_ms: int


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
    ending = isinstance(job.state, Stopping) or broken(attempt, reports)
    for part, report in zip(attempt.placement.slices, reports, strict=True):
        if part.node not in seen.greeted or (report is not None and report.phase == "ended"):
            continue
        if ending:
            yield part.node, StopRanks(attempt.id, terms.epoch, terms.grace_ms)
        elif report is None and isinstance(job.state, Starting):
            yield part.node, StartRanks(launch(world, job, attempt, part.node, terms), terms.epoch)


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
        env={**spec.env, DATA_VARIABLE: spec.data.path} if spec.data else dict(spec.env),
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
        checkpoint_every=spec.checkpoint.every,
        checkpoint_keep_last=spec.checkpoint.keep_last,
        restarts=attempt.number - 1,
        lock=spec.environment.lock,
        image=spec.environment.image,
        secrets=spec.secrets,
        on_partition=spec.on_partition,
    )


def argv(spec: JobSpec) -> tuple[str, ...]:
    """Of every rank. A leading '' is the environment's Python; `python` and others are resolved on the node."""
    return ("", "-m", "phalanx.job.train", spec.recipe) if spec.recipe else command_line(spec.entrypoint)


def master_port(world: World, taken: Taken, job: JobRecord, placement: Placement) -> int | None:
    """A port of the first node for the next attempt of `job`: of no gang that lives there, wanted or not, nor of the job's last
    attempt.

    None when every port is taken. It moves on with the log, so that a port still in TIME_WAIT is not met again soon.
    """
    node = placement.slices[0].node
    first, end = world.nodes[node].shape.ports
    before = {world.attempts[job.attempt].master_port} if job.attempt else set()
    avoided = taken.ports.get(node, set()) | before
    size = end - first
    return next((port for step in range(size) if (port := first + (world.seq + step) % size) not in avoided), None)


def pending_job(job: JobId, spec: JobSpec, submitted_ms: int, sequence: int) -> PendingJob:
    """A job as the scheduler sees it, when nothing happened to it yet."""
    return PendingJob(
        job=job,
        request=spec.resources.devices,
        num_nodes=spec.num_nodes,
        cpus=spec.resources.cpus,
        memory_bytes=spec.resources.memory_bytes,
        queue=spec.queue,
        priority=spec.priority,
        submitted_ms=submitted_ms,
        sequence=sequence,
        needs=features.needed(spec),
    )


def _put_off(world: World, job: JobRecord, not_before_ms: int) -> PutOff | None:
    """What the job's last attempts did for its next one to be put off."""
    if not not_before_ms:
        return None
    quick = [world.attempts[attempt] for attempt in job.attempts[-job.quick_ends :]]
    within_ms = max((one.ended_ms or one.placed_ms) - one.placed_ms for one in quick)
    return PutOff(not_before_ms, job.quick_ends, max(0, within_ms), quick[-1].detail)


def snapshot(world: World, ready: frozenset[NodeId], now_ms: int, fences: Fences) -> Snapshot:
    """The scheduler's input: the whole fleet, of which only `ready` nodes may be given work, and of those what is not fenced."""
    held, used, avoided = world.held(), _used(world), _avoided(fences)
    return Snapshot(
        now_ms=now_ms,
        nodes=tuple(
            _facts(record, frozenset(held.get(node, {})), used.get(node, (0.0, 0)), fences.get(node, Fence()), node in ready)
            for node, record in world.nodes.items()
        ),
        running=tuple(
            RunningJob(job.id, attempt.id, attempt.placement, job.spec.queue, job.spec.priority, attempt.placed_ms)
            for job, attempt in world.holding()
        ),
        pending=tuple(
            replace(
                pending_job(job.id, job.spec, job.submitted_ms, job.sequence),
                put_off=_put_off(world, job, job.state.not_before_ms),
                avoids=frozenset(avoided.get(job.id, ())),
            )
            for job in world.open_jobs.values()
            if isinstance(job.state, Pending)
        ),
    )


def _avoided(fences: Fences) -> dict[JobId, set[NodeId]]:
    """Nodes where ranks of each job live that nobody wants any more."""
    avoided: dict[JobId, set[NodeId]] = {}
    for node, fence in fences.items():
        for job in fence.jobs:
            avoided.setdefault(job, set()).add(node)
    return avoided


def still_holds(world: World, taken: Taken, ready: frozenset[NodeId], job: JobId, placement: Placement) -> bool:
    """Whether a decision made on an older snapshot can still be carried out: the job waits, every device is there and free."""
    record = world.open_jobs.get(job)
    if record is None or not isinstance(record.state, Pending):
        return False
    for part in placement.slices:
        if part.node not in ready:
            return False
        there = {device.index for device in world.nodes[part.node].shape.devices}
        if not set(part.devices) <= there - taken.devices.get(part.node, set()):
            return False
    return True


def _facts(record: NodeRecord, held: frozenset[int], used: tuple[float, int], fence: Fence, ready: bool) -> NodeFacts:
    shape = record.shape
    devices = tuple({device.index: device.type for device in shape.devices}.items())  # an agent that says one twice has one
    return NodeFacts(
        node=shape.node,
        devices=devices,
        free=tuple(index for index, _ in devices if index not in held and index not in fence.devices),
        cpus=shape.cpus,
        free_cpus=shape.cpus - used[0] - fence.cpus,
        memory_bytes=shape.memory_bytes,
        free_memory_bytes=shape.memory_bytes - used[1] - fence.memory_bytes,
        schedulable=ready,
        features=frozenset(shape.features),
        drained=record.up and bool(record.drained),
        fenced=tuple(index for index, _ in devices if index in fence.devices and index not in held),
    )


def _used(world: World) -> dict[NodeId, tuple[float, int]]:
    """CPU cores and host memory that gangs hold on each node."""
    used: dict[NodeId, tuple[float, int]] = {}
    for job, attempt in world.holding():
        asked = job.spec.resources
        for part in attempt.placement.slices:
            cpus, memory_bytes = used.get(part.node, (0.0, 0))
            used[part.node] = (cpus + asked.cpus, memory_bytes + asked.memory_bytes)
    return used
