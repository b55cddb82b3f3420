"""The fleet as columns, for one decision: what is free, and what the decision has given away.

Arrays are NumPy, so that 12,500 nodes cost microseconds. A `Fleet` changes while a decision is made of it; `copy` is cheap and
makes a trial.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.devices import WHOLE, DeviceRequest, NodeSlice, Placement
from phalanx.decide.scheduler.snapshot import NodeFacts, Shape, Share
from phalanx.decide.scheduler.where.ground import CORES_SLACK, Amounts, Counts, Ground, Mask, Rows, survey
from phalanx.decide.scheduler.where.shares import Part, Shares, part_of

__all__ = ["CORES_SLACK", "Counts", "Fleet", "Ground", "Mask", "Rows", "Totals"]

_HOLDING_MAX: Final = 256
"""Masks over all nodes that are kept: there are as many different amounts of cores and bytes as users can think of."""


@dataclass(slots=True)
class Totals:
    """Whole devices of a type on nodes that are able to hold a shape. free, total and fenced: on those of them that may be given
    work, `usable`. closed: on those that may not."""

    usable: Mask
    free: int
    total: int
    fenced: int
    closed: int


class Fleet:
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
        self._totals: dict[str, dict[int, Totals]] = {}
        self._room: dict[str, tuple[Counts, Sequence[Rows]]] = {}
        self._roomy: dict[tuple[object, ...], tuple[Counts, int]] = {}
        self._roomy_at = 0

    @classmethod
    def of(cls, nodes: Iterable[NodeFacts]) -> "Fleet":
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

    def copy(self) -> "Fleet":
        """A trial: what is taken from it is not taken from this."""
        trial = Fleet(
            self.ground,
            {kind: free.copy() for kind, free in self.free.items()},
            self.free_cpus.copy(),
            self.free_memory_bytes.copy(),
            self.shares.copy(),
        )
        trial._devices = self._devices.copy()
        trial._room = self._room.copy()
        return trial

    def renewed(self, nodes: Sequence[NodeFacts]) -> "Fleet":
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

    def able(self, shape: Shape) -> Mask:
        """Nodes that can do what the shape needs and have the labels it wants, whatever is free."""
        return self.ground.able(shape)

    def could_hold(self, shape: Shape, kind: str) -> Mask:
        """Nodes that would hold one node's part of the gang if they were idle, however busy, away or drained now. Not to be
        changed."""
        ground, request = self.ground, shape.request
        key = (id(ground.able(shape)), kind, request.count, request.memory_bytes, shape.cpus, shape.memory_bytes)
        if key not in ground.seen.holding:
            mask = ground.able(shape) & (ground.total[kind] >= request.count) & ~ground.gone
            if request.memory_bytes > 0:
                mask &= ground.device_memory_bytes >= request.memory_bytes
            if shape.cpus > 0:
                mask &= ground.cpus + CORES_SLACK >= shape.cpus
            if shape.memory_bytes > 0:
                mask &= ground.memory_bytes >= shape.memory_bytes
            if len(ground.seen.holding) >= _HOLDING_MAX:
                ground.seen.holding.clear()
            ground.seen.holding[key] = mask
        return ground.seen.holding[key]

    def roomy(self, shape: Shape, kind: str, free: Counts) -> Mask:
        """Nodes that can take one node's part now, with `free` whole devices of the type per node."""
        if shape.request.is_share:
            free = self.sharable(shape.request, kind, free)
        mask = self.ground.able(shape) & (free >= shape.request.count)
        if shape.request.memory_bytes > 0:
            mask &= self.ground.device_memory_bytes >= shape.request.memory_bytes
        if shape.cpus > 0:
            mask &= self.free_cpus + CORES_SLACK >= shape.cpus
        if shape.memory_bytes > 0:
            mask &= self.free_memory_bytes >= shape.memory_bytes
        return mask

    def num_roomy(self, shape: Shape, kind: str, free: Counts) -> int:
        """How many such nodes there are. For a `free` that does not change until what is free here does."""
        request = shape.request
        if self._roomy_at != self.version:
            self._roomy_at = self.version
            self._roomy.clear()
        amounts = (request.count, request.milli, request.memory_bytes, shape.cpus, shape.memory_bytes)
        key = (id(free), id(self.ground.able(shape)), kind, *amounts)
        if key not in self._roomy:  # with `free`, so that no other array gets its number meanwhile
            self._roomy[key] = free, int(np.count_nonzero(self.roomy(shape, kind, free)))
        return self._roomy[key][1]

    def sharable(self, request: DeviceRequest, kind: str, free: Counts) -> Counts:
        """Devices per node that can take one more share: `free` whole ones and those that are held in part."""
        usable = self._usable(request, kind)
        return free + self.shares.per_row(usable, len(free))[0].astype(np.int32)

    def wish(self, request: DeviceRequest, kind: str) -> Amounts:
        """The less, the better a node for one node's part: whole devices stay whole, then nodes and devices are filled up."""
        free = self.free[kind].astype(np.int64)
        if not request.is_share:
            return free
        in_part, tightest = self.shares.per_row(self._usable(request, kind), len(free))
        broken = np.maximum(0, request.count - in_part)
        return (broken * (WHOLE + 2) + tightest) * (int(free.max(initial=0)) + 1) + free

    def room(self, kind: str) -> Sequence[Rows]:
        """Whole free devices of the type in each container of the terrain's tiers."""
        free, numbers = self.free[kind], self.ground.terrain.numbers
        if kind not in self._room:
            self._room[kind] = free.copy(), [np.bincount(number, free).astype(np.int64) for number in numbers]
        before, found = self._room[kind]
        changed = np.flatnonzero(before != free)
        if len(changed):
            more = free[changed] - before[changed]
            found = [_added(amounts, number[changed], more) for amounts, number in zip(found, numbers, strict=True)]
            self._room[kind] = free.copy(), found
        return found

    def _usable(self, request: DeviceRequest, kind: str) -> Rows:
        return self.shares.usable(request, self.ground.kind_number[kind], self.ground.device_memory_bytes * request.milli // WHOLE)

    def totals(self, shape: Shape, kind: str) -> Totals:
        """Kept up while the fleet changes, so that asking again costs nothing."""
        able = self.ground.able(shape)
        known = self._totals.setdefault(kind, {})
        if id(able) not in known:
            known[id(able)] = self._counted(able, kind)
        return known[id(able)]

    def _counted(self, able: Mask, kind: str) -> Totals:
        ground = self.ground
        usable, total = able & ground.schedulable, ground.total[kind]
        fenced = sum(ground.types[row][index] == kind for row in ground.fenced if usable[row] for index in ground.nodes[row].fenced)
        in_all = int(total[usable].sum())
        return Totals(usable, int(self.free[kind][usable].sum()), in_all, fenced, int(total[able].sum()) - in_all)

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
        self._devices[row] = left
        if not self.ground.schedulable[row]:
            return
        types = self.ground.types[row]
        for index in changed:
            kind = types[index]
            self.free[kind][row] += sign
            for totals in self._totals.get(kind, {}).values():
                if totals.usable[row]:
                    totals.free += sign

    def _left(self, row: int) -> tuple[int, ...]:
        return self._devices.get(row, self.ground.nodes[row].free)


def _added(amounts: Rows, at: Rows, more: Counts) -> Rows:
    found = amounts.copy()
    np.add.at(found, at, more)
    return found
