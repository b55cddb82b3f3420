"""The simulated nodes: what each has and what is free. `facts` of a node stays the same object until something of it changes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phalanx.core.devices import WHOLE, Placement
from phalanx.core.errors import Bug
from phalanx.core.ids import NodeId
from phalanx.decide.scheduler import NodeFacts, Share


@dataclass(slots=True)
class _Node:
    """free_milli, free_memory: of each device, by its index."""

    facts: NodeFacts
    free_milli: dict[int, int]
    free_memory: dict[int, int]
    free_cpus: float
    free_memory_bytes: int
    down: bool = False
    num_free: int = 0


class SimFleet:
    """held_milli: thousandths of devices that gangs hold. down_milli: idle ones of nodes that are away. whole_free: how many nodes
    have so many whole devices free, by that number; nodes that are away are not counted."""

    def __init__(self, nodes: Iterable[NodeFacts]) -> None:
        self._nodes = {node.node: _fresh(node) for node in nodes}
        self._order = list(self._nodes)
        self._row = {node: row for row, node in enumerate(self._order)}
        self._facts = [self._nodes[node].facts for node in self._order]
        self._dirty: set[NodeId] = set()
        self.capacity_milli = WHOLE * sum(len(node.devices) for node in self._facts)
        self.held_milli = 0
        self.down_milli = 0
        largest = max((len(node.devices) for node in self._facts), default=0)
        self.whole_free = [0] * (largest + 1)
        for node in self._nodes.values():
            self.whole_free[node.num_free] += 1

    @property
    def names(self) -> Sequence[NodeId]:
        return self._order

    def facts(self) -> tuple[NodeFacts, ...]:
        """As the scheduler is told now."""
        for name in self._dirty:
            self._facts[self._row[name]] = self._nodes[name].facts = _as_facts(self._nodes[name])
        self._dirty.clear()
        return tuple(self._facts)

    def take(self, placement: Placement, cpus: float, memory_bytes: int) -> None:
        """A gang gets it, with cores and memory on each node. Raises Bug when any of it is not free: it was given twice."""
        for part in placement.slices:
            node = self._nodes[part.node]
            for index in part.devices:
                node.free_milli[index] -= part.milli
                node.free_memory[index] -= part.memory_bytes
                if node.free_milli[index] < 0 or node.free_memory[index] < 0 or node.down:
                    raise Bug(f"{part.node} device {index} was given away though it is not free")
            node.free_cpus -= cpus
            node.free_memory_bytes -= memory_bytes
            self.held_milli += part.milli * len(part.devices)
            self._changed(node)

    def give(self, placement: Placement, cpus: float, memory_bytes: int) -> None:
        """A gang lets go of it."""
        for part in placement.slices:
            node = self._nodes[part.node]
            for index in part.devices:
                node.free_milli[index] += part.milli
                node.free_memory[index] += part.memory_bytes
            node.free_cpus += cpus
            node.free_memory_bytes += memory_bytes
            given = part.milli * len(part.devices)
            self.held_milli -= given
            self.down_milli += given if node.down else 0
            self._changed(node)

    def price(self, placement: Placement) -> int:
        """Of a gang that has it, an hour: in micro-dollars, and thousandths of them."""
        prices = ((part, round(1_000_000 * self._nodes[part.node].facts.price)) for part in placement.slices)
        return sum(price * len(part.devices) * part.milli for part, price in prices)

    def away(self, name: NodeId) -> None:
        """The node fails."""
        node = self._nodes[name]
        self.whole_free[node.num_free] -= 1
        node.down = True
        self.down_milli += sum(node.free_milli.values())
        self._dirty.add(name)

    def back(self, name: NodeId) -> None:
        """It is repaired."""
        node = self._nodes[name]
        self.whole_free[node.num_free] += 1
        node.down = False
        self.down_milli -= sum(node.free_milli.values())
        self._dirty.add(name)

    def is_down(self, name: NodeId) -> bool:
        return self._nodes[name].down

    @property
    def idle_milli(self) -> int:
        """Of nodes that are there."""
        return self.capacity_milli - self.held_milli - self.down_milli

    def _changed(self, node: _Node) -> None:
        self._dirty.add(node.facts.node)
        free = sum(milli == WHOLE for milli in node.free_milli.values())
        if not node.down:
            self.whole_free[node.num_free] -= 1
            self.whole_free[free] += 1
        node.num_free = free


def _fresh(facts: NodeFacts) -> _Node:
    indexes = [index for index, _ in facts.devices]
    memory = dict.fromkeys(indexes, facts.device_memory_bytes)
    return _Node(
        facts,
        dict.fromkeys(indexes, WHOLE),
        memory,
        facts.cpus,
        facts.memory_bytes,
        down=not facts.schedulable,
        num_free=len(indexes),
    )


def _as_facts(node: _Node) -> NodeFacts:
    """Built anew rather than by `replace`, which costs three times as much."""
    old = node.facts
    return NodeFacts(
        node=old.node,
        devices=old.devices,
        free=tuple(index for index, milli in node.free_milli.items() if milli == WHOLE),
        cpus=old.cpus,
        free_cpus=node.free_cpus,
        memory_bytes=old.memory_bytes,
        free_memory_bytes=node.free_memory_bytes,
        schedulable=not node.down,
        features=old.features,
        shares=tuple(Share(index, milli, node.free_memory[index]) for index, milli in node.free_milli.items() if 0 < milli < WHOLE),
        device_memory_bytes=old.device_memory_bytes,
        labels=old.labels,
        spot=old.spot,
        price=old.price,
    )
