"""Step 4, why not: one dominant reason for each waiting job, with the numbers that a person needs to change something."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from phalanx.core import features
from phalanx.core.devices import CPU_SLOT, DeviceRequest
from phalanx.core.reasons import NeverFits, NoRoom
from phalanx.core.units import show_size
from phalanx.decide.scheduler.eligible import asked_types, could_hold, device_types, eligible_types, holds, is_able, num_devices
from phalanx.decide.scheduler.fit import Fleet, free_devices
from phalanx.decide.scheduler.snapshot import NodeFacts, PendingJob

_ASKED_BY: Final[Mapping[str, str]] = MappingProxyType(
    {
        features.IMAGE: "environment.image",
        features.LOCK: "environment.lock",
        features.SECRETS: "secrets",
        features.LEASE: "on_partition",
    }
)
"""Feature to the field of the spec that needs it."""

CPUS: Final = "cpus on a node"
MEMORY: Final = "memory on a node"
NODES: Final = "nodes with "
"""Resources in `NeverFits`, besides devices and what agents can do; the last one begins so."""

_MEANS: Final[Mapping[str, str]] = MappingProxyType(
    {
        features.IMAGE: "install podman, apptainer or enroot on more nodes",
        features.LOCK: "give more nodes a phalanx that builds environments, with uv",
        features.SECRETS: "upgrade phalanx on more nodes to one that fetches secrets",
        features.LEASE: "upgrade phalanx on more nodes to one whose shims keep the lease",
    }
)
"""Feature to what gives it to a node."""


def no_room(job: PendingJob, kinds: Sequence[str], fleet: Fleet) -> NoRoom:
    """Devices of an accepted type, on able nodes: asked for at once, free, held, fenced, and on nodes that may be given no work."""
    able = [node for node in fleet.values() if is_able(job, node)]
    usable = [node for node in able if node.schedulable]
    free = sum(len(free_devices(node, kind)) for kind in kinds for node in usable)
    fenced = sum(dict(node.devices)[index] in kinds for node in usable for index in node.fenced)
    total = sum(num_devices(node, kind) for kind in kinds for node in usable)
    closed = sum(num_devices(node, kind) for kind in kinds for node in able) - total
    return NoRoom(job.request.count * job.num_nodes, free, total - free - fenced, fenced, closed)


def never_fits(job: PendingJob, nodes: Sequence[NodeFacts]) -> NeverFits | None:
    """What an idle fleet of all known nodes lacks to hold the gang, and the smallest change that fits; None when it could
    hold it. An empty fleet refuses nothing: its nodes have yet to come."""
    if not nodes or eligible_types(job, nodes):
        return None
    change = _in_words(job, smallest_change(job, nodes), nodes)
    able = _able(job, nodes)
    if not able or eligible_types(replace(job, needs=frozenset()), nodes):
        return _unable(job, nodes, change)
    if not asked_types(job, able):
        fleet = ", ".join(device_types(able)) or "no devices"
        return NeverFits(_devices(job.request.type), str(job.request.count), f"0 (the fleet has {fleet})", change)
    short = _shortage(job, _best_type(job, able), able)
    return NeverFits(short.resource, short.asked, short.largest, change)


def smallest_change(job: PendingJob, nodes: Sequence[NodeFacts]) -> PendingJob | None:
    """The nearest job that could fit: of a type it accepts if the fleet has one, on as many nodes as asked if that many have
    any, and then the largest share. It goes without what no node's agent can do, and with nothing else of what it needs. None
    when nothing fits, whatever the change."""
    job = replace(job, needs=_met(job, nodes))
    nodes = _able(job, nodes)
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


def _able(job: PendingJob, nodes: Iterable[NodeFacts]) -> list[NodeFacts]:
    return [node for node in nodes if is_able(job, node)]


def _met(job: PendingJob, nodes: Sequence[NodeFacts]) -> frozenset[str]:
    """Most of what the job needs that some node's agent can do, all of it together."""
    return min((job.needs & node.features for node in nodes), key=lambda met: (-len(met), sorted(met)), default=frozenset())


def _lacking(job: PendingJob, nodes: Sequence[NodeFacts]) -> str:
    """The feature that stands in the way: one that the ablest nodes do not have; if they have all, the rarest one."""
    lacking = job.needs - _met(job, nodes) or job.needs
    return min(lacking, key=lambda name: (sum(name in node.features for node in nodes), name))


def _unable(job: PendingJob, nodes: Sequence[NodeFacts], change: str) -> NeverFits:
    """What the job needs of the agents stands in the way, before anything else."""
    feature = _lacking(job, nodes)
    field = _ASKED_BY.get(feature, feature)
    largest = max((sum(could_hold(job, kind, node) for node in nodes) for kind in asked_types(job, nodes)), default=0)
    if largest:
        return NeverFits(f"{NODES}{field}", str(job.num_nodes), str(largest), change)
    return NeverFits(field, str(job.num_nodes), "none", change)


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
        _Measure(CPUS, job.cpus, lambda node: node.cpus, _cores),
        _Measure(MEMORY, job.memory_bytes, lambda node: node.memory_bytes, lambda size: show_size(int(size))),
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
    share = f"{NODES}{kind}:{job.request.count}" + (" and that room" if job.cpus or job.memory_bytes else "")
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
    if kind == CPU_SLOT:  # "cpu devices" would read as if cores were meant
        return "CPU slots on a node"
    return f"{kind} devices on a node" if kind else "devices on a node"


def _cores(number: float) -> str:
    return f"{number:.10g}"


def _in_words(job: PendingJob, change: PendingJob | None, nodes: Sequence[NodeFacts]) -> str:
    if change is None:
        return "add a node with devices"
    parts = []
    left_out = [_ASKED_BY.get(name, name) for name in sorted(job.needs - change.needs)]
    if change.request != job.request:
        kind = f"{change.request.type}:" if change.request.type else ""
        parts.append(f"resources.gpus: {kind}{change.request.count}")
    if change.cpus != job.cpus:
        parts.append(f"resources.cpus: {_cores(change.cpus)}")
    if change.memory_bytes != job.memory_bytes:
        parts.append(f"resources.memory: {change.memory_bytes // 2**20}MiB")
    if change.num_nodes != job.num_nodes:
        parts.append(f"num_nodes: {change.num_nodes}")
    wishes = [f"leave {' and '.join(left_out)} out"] if left_out else []
    wish = " and ".join([*wishes, f"set {', '.join(parts)}"] if parts else wishes)
    if not job.needs or not eligible_types(replace(job, needs=frozenset()), nodes):
        return f"{wish}, or add nodes"
    feature = _lacking(job, nodes)
    return f"{wish}, or {_MEANS.get(feature, f'give more nodes {feature}')}"
