"""Devices are fenced apart from work (law 4): a gang that was given up holds nothing in the world, and its ranks may live on. While
they do, their devices are nobody's. Pure.

No engine and no lease proves that a process is gone; only its own node's agent knows. So a device is free when the world says so
and its node does too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.operate.control.observed import Sightings
from phalanx.operate.control.world import World, slice_of


@dataclass(frozen=True, slots=True)
class Fence:
    """What ranks that nobody wants any more still have of a node. `ports`: on which their gangs may meet there. `jobs`: in whose
    folders they may write."""

    devices: frozenset[int] = frozenset()
    ports: frozenset[int] = frozenset()
    cpus: float = 0.0
    memory_bytes: int = 0
    jobs: frozenset[JobId] = frozenset()


Fences = Mapping[NodeId, Fence]


def zombies(world: World, seen: Sightings) -> Iterator[tuple[NodeId, AttemptId]]:
    """Attempts that a node has and shall not have, and of which it has not said that they ended; among them those that it was told
    to start and has not answered for. A node that was not greeted since this control plane's start is given no work anyway."""
    for (node, attempt), report in seen.reports.items():
        if report.phase != "ended" and world.current(attempt, node) is None:
            yield node, attempt
    for node, attempt in seen.started:
        if world.current(attempt, node) is None:
            yield node, attempt


def fences(world: World, seen: Sightings) -> Fences:
    """What zombies keep of each node: their part as it was placed and as the node reports it; if neither says, the whole node."""
    found: dict[NodeId, Fence] = {}
    for node, attempt in zombies(world, seen):
        if node in world.nodes:
            found[node] = _both(found.get(node, Fence()), _of(world, seen, node, attempt))
    return found


def _of(world: World, seen: Sightings, node: NodeId, attempt: AttemptId) -> Fence:
    report, record = seen.reports.get((node, attempt)), world.attempts.get(attempt)
    part = slice_of(record.placement, node) if record else None
    devices = {*(report.devices if report else ()), *(part[2].devices if part else ())}
    jobs = frozenset({record.job} if record else ())
    if not devices:
        return Fence(frozenset(device.index for device in world.nodes[node].shape.devices), jobs=jobs)
    if record is None or part is None:
        return Fence(frozenset(devices), jobs=jobs)
    asked = world.jobs[record.job].spec.resources
    ports = record.ports if part[0] == 0 else frozenset()
    return Fence(frozenset(devices), ports, asked.cpus, asked.memory_bytes, jobs)


def _both(one: Fence, other: Fence) -> Fence:
    cpus, memory_bytes = one.cpus + other.cpus, one.memory_bytes + other.memory_bytes
    return Fence(one.devices | other.devices, one.ports | other.ports, cpus, memory_bytes, one.jobs | other.jobs)
