"""Step 4, why not: one dominant reason for each waiting job, with the numbers that a person needs to change something."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from phalanx.core.devices import DeviceRequest
from phalanx.core.reasons import NeverFits, NoRoom
from phalanx.core.units import show_size
from phalanx.decide.scheduler.eligible import asked_types, device_types, eligible_types, holds, num_devices
from phalanx.decide.scheduler.fit import Fleet, free_devices
from phalanx.decide.scheduler.snapshot import NodeFacts, PendingJob


def no_room(job: PendingJob, kinds: Sequence[str], fleet: Fleet) -> NoRoom:
    """Devices of an accepted type, on nodes that may be given work: asked for at once, free, and held."""
    usable = [node for node in fleet.values() if node.schedulable]
    free = sum(len(free_devices(node, kind)) for kind in kinds for node in usable)
    total = sum(num_devices(node, kind) for kind in kinds for node in usable)
    return NoRoom(job.request.count * job.num_nodes, free, total - free)


def never_fits(job: PendingJob, nodes: Sequence[NodeFacts]) -> NeverFits | None:
    """What an idle fleet of all known nodes lacks to hold the gang, and the smallest change that fits; None when it could
    hold it. An empty fleet refuses nothing: its nodes have yet to come."""
    if not nodes or eligible_types(job, nodes):
        return None
    change = _in_words(job, smallest_change(job, nodes))
    if not asked_types(job, nodes):
        fleet = ", ".join(device_types(nodes)) or "no devices"
        return NeverFits(_devices(job.request.type), str(job.request.count), f"0 (the fleet has {fleet})", change)
    short = _shortage(job, _best_type(job, nodes), nodes)
    return NeverFits(short.resource, short.asked, short.largest, change)


def smallest_change(job: PendingJob, nodes: Sequence[NodeFacts]) -> PendingJob | None:
    """The nearest job that could fit: of a type it accepts if the fleet has one, on as many nodes as asked if that many have
    any, and then the largest share. None when nothing fits, whatever the change."""
    if not asked_types(job, nodes):
        kinds = device_types(nodes)
        whole = [kind for kind in kinds if eligible_types(_of_type(job, kind), nodes)]
        if not kinds:
            return None
        job = _of_type(job, (whole or kinds)[0])
    kind = _best_type(job, nodes)
    able = _with_share(job, kind, nodes)
    if able:
        return replace(job, num_nodes=min(len(able), job.num_nodes))
    return _smaller_share(job, kind, nodes)


@dataclass(frozen=True, slots=True)
class _Measure:
    """One resource of a node's share: how much is asked, how much a node has, and how people write it."""

    resource: str
    asked: float
    of: Callable[[NodeFacts], float]
    show: Callable[[float], str]

    def holds(self, node: NodeFacts) -> bool:
        return holds(self.of(node), self.asked)


@dataclass(frozen=True, slots=True)
class _Shortage:
    """The first resource that no node has enough of. `step` counts how many others fit, `share` how near this one comes."""

    resource: str
    asked: str
    largest: str
    step: int
    share: float


def _measures(job: PendingJob, kind: str) -> tuple[_Measure, ...]:
    def devices(node: NodeFacts) -> float:
        return num_devices(node, kind)

    return (
        _Measure(_devices(kind), job.request.count, devices, lambda number: f"{number:.0f}"),
        _Measure("cpus on a node", job.cpus, lambda node: node.cpus, _cores),
        _Measure("memory on a node", job.memory_bytes, lambda node: node.memory_bytes, lambda size: show_size(int(size))),
    )


def _shortage(job: PendingJob, kind: str, nodes: Sequence[NodeFacts]) -> _Shortage:
    left = [node for node in nodes if num_devices(node, kind)]
    measures = _measures(job, kind)
    for step, measure in enumerate(measures):
        largest = _largest(left, measure)
        left = [node for node in left if measure.holds(node)]
        if not left:
            has = measure.of(largest)
            shown = f"{measure.show(has)} ({largest.node})"
            return _Shortage(measure.resource, measure.show(measure.asked), shown, step, has / measure.asked)
    share = f"nodes with {kind}:{job.request.count}" + (" and that room" if job.cpus or job.memory_bytes else "")
    return _Shortage(share, str(job.num_nodes), str(len(left)), len(measures), len(left) / job.num_nodes)


def _largest(nodes: Sequence[NodeFacts], measure: _Measure) -> NodeFacts:
    return min(nodes, key=lambda node: (-measure.of(node), node.node))


def _best_type(job: PendingJob, nodes: Sequence[NodeFacts]) -> str:
    """The accepted type that comes nearest."""

    def nearness(kind: str) -> tuple[int, float]:
        short = _shortage(job, kind, nodes)
        return short.step, short.share

    return max(asked_types(job, nodes), key=nearness)


def _with_share(job: PendingJob, kind: str, nodes: Sequence[NodeFacts]) -> list[NodeFacts]:
    return [node for node in nodes if all(measure.holds(node) for measure in _measures(job, kind))]


def _smaller_share(job: PendingJob, kind: str, nodes: Sequence[NodeFacts]) -> PendingJob:
    """Cuts one resource after the other down to what enough nodes have."""
    left = [node for node in nodes if num_devices(node, kind)]
    num_nodes = min(job.num_nodes, len(left))
    cut: list[float] = []
    for measure in _measures(job, kind):
        enough = sorted((measure.of(node) for node in left), reverse=True)[num_nodes - 1]
        cut.append(min(measure.asked, max(0, enough)))
        left = [node for node in left if holds(measure.of(node), cut[-1])]
    request = DeviceRequest(job.request.type, int(cut[0]))
    return replace(job, request=request, num_nodes=num_nodes, cpus=cut[1], memory_bytes=int(cut[2]))


def _of_type(job: PendingJob, kind: str) -> PendingJob:
    return replace(job, request=DeviceRequest(kind, job.request.count))


def _devices(kind: str | None) -> str:
    return f"{kind} devices on a node"


def _cores(number: float) -> str:
    return f"{number:.10g}"


def _in_words(job: PendingJob, change: PendingJob | None) -> str:
    if change is None:
        return "add a node with devices"
    parts = []
    if change.request != job.request:
        kind = f"{change.request.type}:" if change.request.type else ""
        parts.append(f"resources.gpus: {kind}{change.request.count}")
    if change.cpus != job.cpus:
        parts.append(f"resources.cpus: {_cores(change.cpus)}")
    if change.memory_bytes != job.memory_bytes:
        parts.append(f"resources.memory: {change.memory_bytes // 2**20}MiB")
    if change.num_nodes != job.num_nodes:
        parts.append(f"num_nodes: {change.num_nodes}")
    return f"set {', '.join(parts)}, or add nodes"
