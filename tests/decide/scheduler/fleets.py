"""Nodes and shapes in few words, for tests of where gangs lie."""

from collections.abc import Mapping
from types import MappingProxyType

from phalanx.core.devices import DeviceRequest
from phalanx.core.ids import NodeId
from phalanx.decide.scheduler.snapshot import NodeFacts, Shape
from phalanx.decide.scheduler.where.fit import fit
from phalanx.decide.scheduler.where.fleet import Fleet

GIB = 2**30
MIB = 2**20


def node(
    name: str,
    count: int = 8,
    free: int | None = None,
    kind: str = "H100",
    memory_mib: int = 0,
    labels: Mapping[str, str] = MappingProxyType({}),
) -> NodeFacts:
    left = count if free is None else free
    return NodeFacts(
        node=NodeId(name),
        devices=tuple((index, kind) for index in range(count)),
        free=tuple(range(count - left, count)),
        cpus=64.0,
        free_cpus=64.0,
        memory_bytes=512 * GIB,
        free_memory_bytes=512 * GIB,
        schedulable=True,
        device_memory_bytes=memory_mib * MIB,
        labels=dict(labels),
    )


def gang(num_nodes: int, count: int = 8) -> Shape:
    return Shape(DeviceRequest((), count), num_nodes)


def names(shape: Shape, fleet: Fleet, kind: str = "H100") -> list[str] | None:
    """Where it would lie now, in rank order."""
    rows = fit(shape, kind, fleet, fleet.free[kind])
    return None if rows is None else [fleet.ground.nodes[row].node for row in rows]


def taken(shape: Shape, fleet: Fleet, kind: str = "H100") -> list[str] | None:
    """Where it lies from now on."""
    rows = fit(shape, kind, fleet, fleet.free[kind])
    return None if rows is None else [part.node for part in fleet.take(shape, kind, [int(row) for row in rows]).slices]
