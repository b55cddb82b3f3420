"""How much of each thing a gang asks for on a node, and of what no node, or not enough of them, has so much."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.devices import CPU_SLOT
from phalanx.core.units import show_size
from phalanx.decide.scheduler.snapshot import Shape
from phalanx.decide.scheduler.where.eligible import accepted_types, largest_of
from phalanx.decide.scheduler.where.fleet import CORES_SLACK, Fleet, Mask

CPUS: Final = "cpus on a node"
MEMORY: Final = "memory on a node"
DEVICE_MEMORY: Final = "memory of a device"
NODES: Final = "nodes with "
"""Resources in `NeverFits`, besides devices and what is wanted of nodes; the last one begins so."""

WITHIN: Final = " in one "
"""Part of a resource that must lie together: 'nodes with H100:8 in one rack'."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One amount of a node's part: how much is asked, how much each node has, and how people write it."""

    resource: str
    asked: float
    has: NDArray[np.int64] | NDArray[np.int32] | NDArray[np.float64]
    show: Callable[[float], str]

    def holds(self) -> Mask:
        """Asking for nothing is always met, also by a node that says nonsense."""
        return np.asarray(self.has + CORES_SLACK >= self.asked) if self.asked > 0 else np.ones(len(self.has), np.bool_)


@dataclass(frozen=True, slots=True)
class Shortage:
    """The first thing that no node, or not enough of them, has. `step` counts how many others fit, `share` how near this comes."""

    resource: str
    asked: str
    largest: str
    step: int
    share: float


def types_on(shape: Shape, fleet: Fleet, able: Mask) -> tuple[str, ...]:
    """Accepted types of which able nodes have any device."""
    return tuple(kind for kind in accepted_types(shape, fleet) if fleet.ground.total[kind][able].any())


def measures_of(shape: Shape, kind: str, fleet: Fleet) -> tuple[Measure, ...]:
    ground, request = fleet.ground, shape.request
    return (
        Measure(devices_named(kind), request.count, ground.total[kind], lambda number: f"{number:.0f}"),
        Measure(DEVICE_MEMORY, request.memory_bytes, ground.device_memory_bytes, lambda size: show_size(int(size))),
        Measure(CPUS, shape.cpus, ground.cpus, show_cores),
        Measure(MEMORY, shape.memory_bytes, ground.memory_bytes, lambda size: show_size(int(size))),
    )


def shortage(shape: Shape, kind: str, fleet: Fleet, able: Mask) -> Shortage:
    """Of a type that the gang does not fit on."""
    left = able & (fleet.ground.total[kind] > 0)
    measures = measures_of(shape, kind, fleet)
    for step, measure in enumerate(measures):
        rows = np.flatnonzero(left)
        left = left & measure.holds()
        if not left.any():
            row = int(rows[np.argmax(measure.has[rows])])
            has = float(measure.has[row])
            shown = f"{measure.show(has)} ({fleet.ground.nodes[row].node})"
            return Shortage(measure.resource, measure.show(measure.asked), shown, step, has / measure.asked)
    enough = int(np.count_nonzero(left))
    also = " and that room" if shape.cpus or shape.memory_bytes or shape.request.memory_bytes else ""
    part = f"{NODES}{kind}:{shape.request.count}{also}"
    if enough < shape.fewest_nodes:
        return Shortage(part, str(shape.fewest_nodes), str(enough), len(measures), enough / shape.fewest_nodes)
    near = largest_of(shape, left, fleet)
    together = f"{WITHIN}{shape.within}" if shape.within else f" in groups of {shape.group}{WITHIN}{shape.group_within}"
    return Shortage(f"{part}{together}", str(shape.fewest_nodes), str(near), len(measures) + 1, near / shape.fewest_nodes)


def best_type(shape: Shape, kinds: Sequence[str], fleet: Fleet, able: Mask) -> str:
    """The accepted type that comes nearest."""

    def nearness(kind: str) -> tuple[int, float]:
        short = shortage(shape, kind, fleet, able)
        return short.step, short.share

    return max(kinds, key=nearness)


def nodes_holding(shape: Shape, kind: str, fleet: Fleet, able: Mask) -> Mask:
    """Able nodes that would hold a part of it if they were idle."""
    mask = able & (fleet.ground.total[kind] > 0)
    for measure in measures_of(shape, kind, fleet):
        mask = mask & measure.holds()
    return mask


def devices_named(kind: str) -> str:
    if kind == CPU_SLOT:  # "cpu devices" would read as if cores were meant
        return "CPU slots on a node"
    return f"{kind} devices on a node" if kind else "devices on a node"


def show_cores(number: float) -> str:
    return f"{number:.10g}"
