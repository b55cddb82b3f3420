"""What is free on each node: as columns, and to the very device; and what a decision takes of it and gives back.

Arrays are NumPy, so that 12,500 nodes cost microseconds. They change while a decision is made of them; `copy` is cheap and makes a
trial.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from phalanx.core.devices import WHOLE, DeviceRequest, NodeSlice, Placement
from phalanx.decide.scheduler.snapshot import NodeFacts, Shape, Share
from phalanx.decide.scheduler.where.ground import CORES_SLACK, Amounts, Counts, Ground, survey
from phalanx.decide.scheduler.where.shares import Part, Shares, part_of


class Free:
    """free: whole devices of each type per node that may be given away now, none on nodes that are not schedulable. shares: what is
    left of devices that are held in part. version: changes whenever what is free does; grown: when there is more of it.
    touched: rows where it did, since this was made."""

    def __init__(
        self, ground: Ground, free: dict[str, Counts], free_cpus: NDArray[np.float64], free_memory: Amounts, shares: Shares
    ) -> None:
        self.ground = ground
        self.free = free
        self.free_cpus = free_cpus
        self.free_memory_bytes = free_memory
        self.shares = shares
        self.version = 0
        self.grown = 0
        self.touched: list[int] = []
        self._devices: dict[int, tuple[int, ...]] = {}

    @classmethod
    def of(cls, nodes: Iterable[NodeFacts]) -> Self:
        ground = survey(nodes)
        ordered = ground.nodes
        free = {kind: np.zeros(len(ordered), np.int32) for kind in ground.kinds}
        num_free = np.array([len(node.free) for node in ordered], np.int32) * ground.schedulable
        in_all = sum(ground.total.values())
        for kind, total in ground.total.items():
            alike = total == in_all
            free[kind][alike] = num_free[alike]
        num_kinds = sum((total > 0).astype(np.int32) for total in ground.total.values())
        for row in np.flatnonzero((num_kinds > 1) & (num_free > 0)):
            for index in ordered[row].free:
                free[ground.types[row][index]][row] += 1
        return cls(
            ground,
            free,
            np.array([node.free_cpus for node in ordered], np.float64),
            np.array([node.free_memory_bytes for node in ordered], np.int64),
            Shares.of(((row, node) for row, node in enumerate(ordered) if node.shares and node.schedulable), ground.kind_number),
        )

    def copy(self) -> Self:
        """A trial: what is taken from it is not taken from this."""
        trial = type(self)(
            self.ground,
            {kind: free.copy() for kind, free in self.free.items()},
            self.free_cpus.copy(),
            self.free_memory_bytes.copy(),
            self.shares.copy(),
        )
        trial._devices = self._devices.copy()
        return trial

    def renewed(self, nodes: Sequence[NodeFacts]) -> Self:
        """Another, in which these known nodes, whose unchanging parts are the same, have what they say now. For a fleet of which
        nothing was taken yet."""
        fleet, rows = self.copy(), [self.ground.row[node.node] for node in nodes]
        for row, node in zip(rows, nodes, strict=True):
            fleet.free_cpus[row], fleet.free_memory_bytes[row] = node.free_cpus, node.free_memory_bytes
            types = self.ground.types[row]
            for kind in set(types.values()):
                fleet.free[kind][row] = sum(types[index] == kind for index in node.free) if node.schedulable else 0
            for index in types:
                if fleet.shares.left(row, index) is not None:
                    fleet.shares.drop(row, index)
            for share in node.shares if node.schedulable else ():
                left = (share.free_milli, share.free_memory_bytes)
                fleet.shares.put(row, share.index, self.ground.kind_number[types[share.index]], left)
        fleet.ground = self.ground.renewed(dict(zip(rows, nodes, strict=True)))
        return fleet

    def devices(self, row: int, kind: str, more: Iterable[int] = ()) -> list[int]:
        """Free whole devices of a type on a node, and `more` of it, lowest index first."""
        types = self.ground.types[row]
        return sorted(index for index in {*self._left(row), *more} if types.get(index) == kind)

    def node(self, row: int) -> NodeFacts:
        """As it is after what was taken and given back here."""
        shares = [(index, self.shares.left(row, index)) for index in sorted(self.ground.types[row])]
        return replace(
            self.ground.nodes[row],
            free=tuple(sorted(self._left(row))),
            free_cpus=float(self.free_cpus[row]),
            free_memory_bytes=int(self.free_memory_bytes[row]),
            shares=tuple(Share(index, *left) for index, left in shares if left is not None),
        )

    def take(self, shape: Shape, kind: str, rows: Sequence[int]) -> Placement:
        """Gives the gang its part of each of `rows`; ranks run along the order of `rows`."""
        placement = Placement(tuple(self.slice_of(shape.request, kind, row) for row in rows))
        self.hold(shape, placement)
        return placement

    def slice_of(self, request: DeviceRequest, kind: str, row: int, more: Iterable[int] = ()) -> NodeSlice:
        """What a part of a gang would get of a node that has room for it. more: whole devices that are let go of for it."""
        node = self.ground.nodes[row]
        if not request.is_share:
            return NodeSlice(node.node, tuple(self.devices(row, kind, more)[: request.count]))
        part = part_of(request, node.device_memory_bytes)
        found = self.shares.tightest(row, self.ground.kind_number[kind], part) + self.devices(row, kind)
        return NodeSlice(node.node, tuple(sorted(found[: request.count])), *part)

    def hold(self, shape: Shape, placement: Placement) -> Placement:
        """Takes what of `placement` is free here, with the cores and memory that go with it; the answer is what was taken."""
        self.version += 1
        known = [part for part in placement.slices if part.node in self.ground.row]
        return replace(placement, slices=tuple(self._held(shape, part) for part in known))

    def _held(self, shape: Shape, part: NodeSlice) -> NodeSlice:
        row = self.ground.row[part.node]
        self.touched.append(row)
        self.free_cpus[row] -= shape.cpus
        self.free_memory_bytes[row] -= shape.memory_bytes
        left, own = self._left(row), (part.milli, part.memory_bytes)
        if part.milli < WHOLE:
            taken = tuple(index for index in part.devices if self._take_part(row, index, own))
        else:
            taken = tuple(index for index in part.devices if index in left)
            self._leave(row, tuple(index for index in left if index not in taken), taken, -1)
        if taken == part.devices:
            return part
        self._withdraw(row, set(part.devices).difference(taken))
        return replace(part, devices=taken)

    def _withdraw(self, row: int, devices: Iterable[int]) -> None:
        """They are promised once shares of them end: what is left of them beside those is nobody else's either."""
        for index in devices:
            if self.shares.left(row, index) is not None:
                self.shares.put(row, index, self.ground.kind_number[self.ground.types[row][index]], (0, 0))

    def give_back(self, shape: Shape, placement: Placement) -> None:
        """As if the gang had let go of it."""
        self.version += 1
        self.grown += 1
        for part in placement.slices:
            row = self.ground.row.get(part.node)
            if row is None:
                continue
            self.touched.append(row)
            self.free_cpus[row] += shape.cpus
            self.free_memory_bytes[row] += shape.memory_bytes
            left, types = self._left(row), self.ground.types[row]
            given = tuple(index for index in part.devices if index not in left and index in types)
            if part.milli < WHOLE:
                for index in given:
                    self._give_part(row, index, (part.milli, part.memory_bytes))
            else:
                self._leave(row, (*left, *given), given, 1)

    def has_cores(self, shape: Shape, placement: Placement) -> bool:
        """Whether there were enough cores and memory for a gang that was taken here."""
        rows = [self.ground.row[part.node] for part in placement.slices if part.node in self.ground.row]
        enough = shape.cpus <= 0 or all(self.free_cpus[row] >= -CORES_SLACK for row in rows)
        return bool(enough and (shape.memory_bytes <= 0 or all(self.free_memory_bytes[row] >= 0 for row in rows)))

    def is_free(self, placement: Placement) -> bool:
        """Whether every device of it may be given away now."""
        return all(self._is_free(part) for part in placement.slices)

    def _is_free(self, part: NodeSlice) -> bool:
        row = self.ground.row.get(part.node)
        if row is None or not self.ground.schedulable[row]:
            return False
        left = self._left(row)
        if part.milli == WHOLE:
            return set(part.devices) <= set(left)
        return all(index in left or self._has(row, index, (part.milli, part.memory_bytes)) for index in part.devices)

    def _has(self, row: int, index: int, part: Part) -> bool:
        found = self.shares.left(row, index)
        return found is not None and found[0] >= part[0] and found[1] >= part[1]

    def _take_part(self, row: int, index: int, part: Part) -> bool:
        """Whether there was that much; a whole device is broken for it."""
        if not self.ground.schedulable[row]:
            return False
        found, left = self.shares.left(row, index), self._left(row)
        if found is None and index in left:
            self._leave(row, tuple(one for one in left if one != index), (index,), -1)
            found = (WHOLE, self.ground.nodes[row].device_memory_bytes)
        if found is None or found[0] < part[0] or found[1] < part[1]:
            return False
        kind_number = self.ground.kind_number[self.ground.types[row][index]]
        self.shares.put(row, index, kind_number, (found[0] - part[0], found[1] - part[1]))
        return True

    def _give_part(self, row: int, index: int, part: Part) -> None:
        """A device of which nothing is held any more is whole again."""
        if not self.ground.schedulable[row]:
            return
        found = self.shares.left(row, index)
        milli, memory = (found[0] + part[0], found[1] + part[1]) if found else part
        if milli < WHOLE:
            self.shares.put(row, index, self.ground.kind_number[self.ground.types[row][index]], (milli, memory))
            return
        if found:
            self.shares.drop(row, index)
        self._leave(row, (*self._left(row), index), (index,), 1)

    def _leave(self, row: int, left: tuple[int, ...], changed: Sequence[int], sign: int) -> None:
        """On the node these whole devices are free now, which are so many more or less."""
        self._devices[row] = left
        types = self.ground.types[row]
        for index in changed if self.ground.schedulable[row] else ():
            self._count(row, types[index], sign)

    def _count(self, row: int, kind: str, sign: int) -> None:
        self.free[kind][row] += sign

    def _left(self, row: int) -> tuple[int, ...]:
        return self._devices.get(row, self.ground.nodes[row].free)
