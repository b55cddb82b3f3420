"""Step 3, where exactly: a whole gang or nothing, on the fullest nodes that hold it, so that large holes stay whole."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.ids import NodeId
from phalanx.decide.scheduler.eligible import holds, is_able
from phalanx.decide.scheduler.snapshot import NodeFacts, PendingJob

Fleet = Mapping[NodeId, NodeFacts]
"""Nodes by name with what is free of them, gangs started earlier in the same plan taken off."""


def free_devices(node: NodeFacts, kind: str) -> list[int]:
    """Free devices of a type, lowest index first."""
    types = dict(node.devices)
    return sorted(index for index in node.free if types[index] == kind)


def has_room(job: PendingJob, kind: str, node: NodeFacts) -> bool:
    """Whether the node can take one node's share of the gang now."""
    return (
        node.schedulable
        and node.node not in job.avoids
        and is_able(job, node)
        and len(free_devices(node, kind)) >= job.request.count
        and holds(node.free_cpus, job.cpus)
        and holds(node.free_memory_bytes, job.memory_bytes)
    )


def fit(job: PendingJob, kinds: Sequence[str], fleet: Fleet) -> tuple[str, Placement] | None:
    """The first of `kinds` that holds the whole gang now, and where; None when none does."""
    for kind in kinds:
        roomy = [node for node in fleet.values() if has_room(job, kind, node)]
        if len(roomy) >= job.num_nodes:
            return kind, _tightest(job, kind, roomy)
    return None


def taken(fleet: Fleet, job: PendingJob, placement: Placement) -> dict[NodeId, NodeFacts]:
    """The nodes of `placement` after the gang took its share of each."""
    return {part.node: _less(fleet[part.node], job, part.devices) for part in placement.slices}


def _tightest(job: PendingJob, kind: str, roomy: Collection[NodeFacts]) -> Placement:
    """Least fragmentation: the nodes with the fewest free devices; equals by name. Ranks run along the names."""
    fullest = sorted(roomy, key=lambda node: (len(free_devices(node, kind)), node.node))[: job.num_nodes]
    gang = sorted(fullest, key=lambda node: node.node)
    return Placement(tuple(NodeSlice(node.node, tuple(free_devices(node, kind)[: job.request.count])) for node in gang))


def _less(node: NodeFacts, job: PendingJob, devices: tuple[int, ...]) -> NodeFacts:
    return replace(
        node,
        free=tuple(index for index in node.free if index not in devices),
        free_cpus=node.free_cpus - job.cpus,
        free_memory_bytes=node.free_memory_bytes - job.memory_bytes,
    )
