"""What does not change while a decision is made: what nodes have, as columns, one row per node in order of names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.devices import CPU_SLOT
from phalanx.core.ids import NodeId
from phalanx.core.policy import TIERS
from phalanx.core.reasons import NeverFits
from phalanx.decide.scheduler.snapshot import NodeFacts, Shape
from phalanx.decide.scheduler.where.topology import Terrain

Rows = NDArray[np.int64]
Counts = NDArray[np.int32]
Mask = NDArray[np.bool_]
Amounts = NDArray[np.int64]

CORES_SLACK: Final = 1e-6
"""Cores are floats that were added up; a millionth of one is no reason to wait."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What has been worked out of nodes' unchanging parts, kept as long as they do not change. kinds: types on which shapes could
    ever fit, and impossible: why they never do, both by numbers of shapes. holding: nodes that would hold a node's part of such."""

    able: dict[tuple[frozenset[str], tuple[tuple[str, str], ...], bool], Mask] = field(default_factory=dict)
    labels: dict[str, tuple[Rows, dict[str, int]]] = field(default_factory=dict)
    terrain: list[Terrain] = field(default_factory=list)
    eligible: dict[Shape, tuple[str, ...]] = field(default_factory=dict)
    kinds: dict[int, tuple[str, ...]] = field(default_factory=dict)
    impossible: dict[int, NeverFits | None] = field(default_factory=dict)
    holding: dict[tuple[int, str, int, int, float, int], Mask] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ground:
    """kinds: the fleet's device types, GPUs by name, CPU slots last. kind_number: their places there. types: of each node's
    devices, by index. total: devices of each type per node. fenced: rows of nodes that have fenced devices;
    closing: of those that were announced to go away."""

    nodes: tuple[NodeFacts, ...]
    row: dict[NodeId, int]
    kinds: tuple[str, ...]
    kind_number: dict[str, int]
    types: tuple[dict[int, str], ...]
    total: dict[str, Counts]
    cpus: NDArray[np.float64]
    memory_bytes: Amounts
    device_memory_bytes: Amounts
    schedulable: Mask
    spot: Mask
    gone: Mask
    fenced: tuple[int, ...]
    closing: tuple[int, ...]
    seen: Seen = field(default_factory=Seen)

    def renewed(self, nodes: Mapping[int, NodeFacts]) -> "Ground":
        """Another, in which known nodes, by row, are as they are now; their unchanging parts are the same."""
        ordered, schedulable = list(self.nodes), self.schedulable.copy()
        for row, node in nodes.items():
            ordered[row], schedulable[row] = node, node.schedulable
        fenced, closing = _fenced_rows(nodes.items()), _closing_rows(nodes.items())
        return replace(
            self,
            nodes=tuple(ordered),
            schedulable=schedulable,
            fenced=tuple(sorted({*fenced, *(row for row in self.fenced if row not in nodes)})),
            closing=tuple(sorted({*closing, *(row for row in self.closing if row not in nodes)})),
        )

    @property
    def terrain(self) -> Terrain:
        if not self.seen.terrain:
            found = [(name, self._labels(name)) for name in TIERS]
            known = [(name, number) for name, (number, values) in found if values]
            self.seen.terrain.append(Terrain(tuple(name for name, _ in known), tuple(number for _, number in known)))
        return self.seen.terrain[0]

    def tier(self, name: str) -> Rows:
        """Number of the label's value on each node; nodes without the label each have a number of their own, after those."""
        return self._labels(name)[0]

    def able(self, shape: Shape) -> Mask:
        """Nodes that can do what the shape needs and have the labels it wants, whatever is free."""
        key = (shape.needs, shape.where, shape.spot != "never")
        if key not in self.seen.able:
            mask = np.ones(len(self.nodes), np.bool_) if key[2] else ~self.spot
            if shape.needs:
                mask &= np.array([shape.needs <= node.features for node in self.nodes], np.bool_)
            for name, value in shape.where:
                number, values = self._labels(name)
                mask &= number == values.get(value, -1)
            self.seen.able[key] = mask
        return self.seen.able[key]

    def _labels(self, name: str) -> tuple[Rows, dict[str, int]]:
        if name not in self.seen.labels:
            values: dict[str, int] = {}
            found = [node.labels.get(name) for node in self.nodes]
            number = np.array([-1 if label is None else values.setdefault(label, len(values)) for label in found], np.int64)
            alone = number < 0
            number[alone] = len(values) + np.arange(np.count_nonzero(alone))
            self.seen.labels[name] = (number, values)
        return self.seen.labels[name]


_AMOUNTS = attrgetter("cpus", "memory_bytes", "device_memory_bytes", "schedulable", "spot", "gone")


def survey(nodes: Iterable[NodeFacts]) -> Ground:
    ordered = tuple(sorted(nodes, key=attrgetter("node")))
    numbers: dict[tuple[tuple[int, str], ...], int] = {}
    layout = [numbers.setdefault(node.devices, len(numbers)) for node in ordered]
    types = [dict(devices) for devices in numbers]
    kinds = tuple(sorted({kind for one in types for kind in one.values()}, key=lambda kind: (kind == CPU_SLOT, kind)))
    counts = np.array([[list(one.values()).count(kind) for kind in kinds] for one in types], np.int32).reshape(
        len(types), len(kinds)
    )
    totals = counts[np.array(layout, np.intp)]
    cpus, memory, device_memory, schedulable, spot, gone = zip(*map(_AMOUNTS, ordered), strict=True) if ordered else ((),) * 6
    return Ground(
        nodes=ordered,
        row={node.node: row for row, node in enumerate(ordered)},
        kinds=kinds,
        kind_number={kind: number for number, kind in enumerate(kinds)},
        types=tuple(types[number] for number in layout),
        total={kind: np.ascontiguousarray(totals[:, number]) for number, kind in enumerate(kinds)},
        cpus=np.array(cpus, np.float64),
        memory_bytes=np.array(memory, np.int64),
        device_memory_bytes=np.array(device_memory, np.int64),
        schedulable=np.array(schedulable, np.bool_),
        spot=np.array(spot, np.bool_),
        gone=np.array(gone, np.bool_),
        fenced=_fenced_rows(enumerate(ordered)),
        closing=_closing_rows(enumerate(ordered)),
    )


def _fenced_rows(nodes: Iterable[tuple[int, NodeFacts]]) -> tuple[int, ...]:
    return tuple(row for row, node in nodes if node.fenced)


def _closing_rows(nodes: Iterable[tuple[int, NodeFacts]]) -> tuple[int, ...]:
    return tuple(row for row, node in nodes if node.closing_ms is not None)
