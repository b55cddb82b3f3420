"""Step 4 for jobs on one node, where the policy says `packing: expected_idle`: the node and the GPU on which what stays idle in the
end is expected to be least (`expected_idle`). Nodes of one GPU type are known to it; on others a job lies as by `fit`.

The packer sees the fleet as columns of its own, row by row the same. They may be kept between decisions (`memory.Memory`): only
rows that are other objects now, or of which something was taken since, are read again. That changes no decision: what a node is
worth follows from what is free on it, and from the mix of the jobs that come.
"""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from phalanx.core.devices import CPU_SLOT, WHOLE, NodeSlice, Placement
from phalanx.core.ids import NodeId
from phalanx.decide.scheduler.snapshot import NodeFacts, Shape, Snapshot
from phalanx.decide.scheduler.where.columns import Columns, Node, Popular, Spot
from phalanx.decide.scheduler.where.expected_idle import ExpectedIdle
from phalanx.decide.scheduler.where.fleet import CORES_SLACK, Counts, Fleet
from phalanx.decide.scheduler.where.mix import AMOUNT_MAX, MIB, mix_of, pod_of
from phalanx.decide.scheduler.where.shares import part_of

KEPT_MAX: Final = 16_000_000
"""Numbers that the packer keeps for kinds of jobs, of four to twenty bytes each."""


class Packing:
    """`of` begins a decision. Nothing is read before a job is to be placed."""

    def __init__(self) -> None:
        self._packer: ExpectedIdle | None = None
        self._mix: tuple[Popular, ...] = ()
        self._layout: tuple[object, ...] = ()
        self._seen: object = None
        self._devices: list[tuple[int, ...]] = []
        self._nodes: list[NodeFacts | None] = []
        self._fleet: Fleet | None = None
        self._snapshot: Snapshot | None = None
        self._read = -1

    def of(self, snapshot: Snapshot, fleet: Fleet) -> "Packing":
        """For this decision, of whose fleet something may be taken already."""
        self._snapshot, self._fleet, self._read = snapshot, fleet, -1
        return self

    def place(self, shape: Shape, free: Mapping[str, Counts], avoids: frozenset[NodeId]) -> tuple[str, Placement] | None:
        """The best place on any of the types, with its type. free: whole devices per node that the job may use, by type. None when
        there is none that it knows. Takes nothing."""
        fleet, packer = self._fleet, self._up_to_date()
        assert fleet is not None
        among = np.zeros(len(packer.columns), np.bool_)
        for kind, counts in free.items():
            among |= fleet.roomy(shape, kind, counts)
        for node in avoids:
            if node in fleet.ground.row:
                among[fleet.ground.row[node]] = False
        spot = packer.choose(pod_of(shape), among) if among.any() else None
        if spot is None:
            return None
        kind = packer.columns.models[packer.columns.free.model[spot.node]]
        return kind, self._placement(shape, kind, spot)

    def _placement(self, shape: Shape, kind: str, spot: Spot) -> Placement:
        """On the very GPU for a share, unless that has too little memory left."""
        fleet, row, request = self._fleet, spot.node, shape.request
        assert fleet is not None
        node = fleet.ground.nodes[row]
        if request.is_share:
            index, part = self._devices[row][spot.gpus[0]], part_of(request, node.device_memory_bytes)
            left = fleet.shares.left(row, index)
            if left is None or (left[0] >= part[0] and left[1] >= part[1]):
                return Placement((NodeSlice(node.node, (index,), *part),))
        return Placement((fleet.slice_of(request, kind, row),))

    # What the packer knows

    def _up_to_date(self) -> ExpectedIdle:
        assert self._fleet is not None
        assert self._snapshot is not None
        if self._read < 0:
            self._packer = packer = self._known(self._snapshot, self._fleet)
            for row, node in enumerate(self._fleet.ground.nodes):
                if node is not self._nodes[row]:
                    self._look(row, packer.columns)
                    self._nodes[row] = node
            self._read = 0
        assert self._packer is not None
        for row in sorted(set(self._fleet.touched[self._read :])):
            self._look(row, self._packer.columns)
            self._nodes[row] = None
        self._read = len(self._fleet.touched)
        if self._packer.num_kept > KEPT_MAX:
            self._packer.forget()
        return self._packer

    def _known(self, snapshot: Snapshot, fleet: Fleet) -> ExpectedIdle:
        """The packer of earlier decisions, if nodes' unchanging parts and the mix are as they were."""
        mix, is_known = mix_of(snapshot), self._packer is not None
        if self._seen is not fleet.ground.seen:
            layout = tuple((node.node, node.devices, node.cpus, node.memory_bytes) for node in fleet.ground.nodes)
            is_known &= layout == self._layout
            self._seen, self._layout = fleet.ground.seen, layout
        if is_known and mix == self._mix:
            assert self._packer is not None
            return self._packer
        self._mix = mix
        self._nodes = [None] * len(fleet.ground.nodes)
        self._devices = [tuple(sorted(types)) if _kind(types) else () for types in fleet.ground.types]
        return ExpectedIdle(Columns(_nodes(fleet)), mix)

    def _look(self, row: int, columns: Columns) -> None:
        """At what is free on the node; nothing while it may not be given work."""
        fleet = self._fleet
        assert fleet is not None
        indices, is_open = self._devices[row], bool(fleet.ground.schedulable[row])
        whole = frozenset(fleet.devices(row, columns.models[columns.free.model[row]])) if indices and is_open else frozenset()
        cpu_milli = math.floor((float(fleet.free_cpus[row]) + CORES_SLACK) * 1000)
        memory_mib = int(fleet.free_memory_bytes[row]) // MIB
        parts = [fleet.shares.left(row, index) if is_open else None for index in indices]
        milli = [left[0] if left else WHOLE * (index in whole) for index, left in zip(indices, parts, strict=True)]
        columns.put(row, cpu_milli, memory_mib, milli)


def packs(shape: Shape) -> bool:
    """Whether it is for the packer, which knows no gangs over several nodes, and no shares of several devices."""
    return shape.num_nodes == 1 and (shape.request.count == 1 or not shape.request.is_share)


def _kind(types: Mapping[int, str]) -> str:
    """The one GPU type of a node's devices, or ''."""
    kinds = set(types.values())
    kind = kinds.pop() if len(kinds) == 1 else ""
    return "" if kind == CPU_SLOT else kind


def _nodes(fleet: Fleet) -> list[Node]:
    found = list[Node]()
    for node, types in zip(fleet.ground.nodes, fleet.ground.types, strict=True):
        kind = _kind(types)
        cpu_milli, memory_mib = math.floor((node.cpus + CORES_SLACK) * 1000), node.memory_bytes // MIB
        amounts = min(AMOUNT_MAX, cpu_milli), min(AMOUNT_MAX, memory_mib)
        found.append(Node(node.node, *amounts, len(types) if kind else 0, kind))
    return found
