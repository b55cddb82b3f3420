"""The fleet, for one decision: where gangs have room in what is free, and how near to others that is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from phalanx.core.devices import WHOLE, DeviceRequest
from phalanx.decide.scheduler.snapshot import Shape
from phalanx.decide.scheduler.where.free import Free
from phalanx.decide.scheduler.where.ground import CORES_SLACK, Amounts, Counts, Ground, Mask, Rows
from phalanx.decide.scheduler.where.shares import Shares

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


class Fleet(Free):
    """What is asked of what is free. Answers are kept as long as they are true."""

    def __init__(
        self, ground: Ground, free: dict[str, Counts], free_cpus: NDArray[np.float64], free_memory: Amounts, shares: Shares
    ) -> None:
        super().__init__(ground, free, free_cpus, free_memory, shares)
        self._totals: dict[str, dict[int, Totals]] = {}
        self._room: dict[str, tuple[Counts, Sequence[Rows]]] = {}
        self._roomy: dict[tuple[object, ...], tuple[Counts, int]] = {}
        self._roomy_at = 0

    def copy(self) -> Self:
        """A trial: what is taken from it is not taken from this."""
        trial = super().copy()
        trial._room = self._room.copy()
        return trial

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

    def _count(self, row: int, kind: str, sign: int) -> None:
        super()._count(row, kind, sign)
        for totals in self._totals.get(kind, {}).values():
            if totals.usable[row]:
                totals.free += sign


def _added(amounts: Rows, at: Rows, more: Counts) -> Rows:
    found = amounts.copy()
    np.add.at(found, at, more)
    return found
