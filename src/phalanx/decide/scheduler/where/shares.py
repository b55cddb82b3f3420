"""Devices held in part: what is left of each, as columns, so that thousands of them are searched at once."""

from collections.abc import Collection, Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.devices import WHOLE, DeviceRequest
from phalanx.decide.scheduler.snapshot import NodeFacts

Part = tuple[int, int]
"""Thousandths of a device and bytes of its memory."""

_ROOM_MIN: Final = 16


def part_of(request: DeviceRequest, device_memory_bytes: int) -> Part:
    """What one share takes of a device. Without a bound of its own it may use its part of the memory; 0 bytes of a device whose
    memory is not known."""
    return request.milli, request.memory_bytes or device_memory_bytes * request.milli // WHOLE


class Shares:
    """Mutable within one decision. Entries stay in place until the device is whole again; the gap is used by the next one."""

    def __init__(self) -> None:
        self._at: dict[tuple[int, int], int] = {}
        self._gaps: list[int] = []
        self._columns: NDArray[np.int64] = np.zeros((5, _ROOM_MIN), np.int64)
        self._num = 0

    @classmethod
    def of(cls, nodes: Iterable[tuple[int, NodeFacts]], kind_numbers: dict[str, int]) -> "Shares":
        """Of nodes that may be given work, by row."""
        found = cls()
        for row, node in nodes:
            kinds = dict(node.devices)
            for share in node.shares:
                found.put(row, share.index, kind_numbers[kinds[share.index]], (share.free_milli, share.free_memory_bytes))
        return found

    def __len__(self) -> int:
        return len(self._at)

    def copy(self) -> "Shares":
        twin = Shares()
        twin._at, twin._gaps, twin._num = self._at.copy(), self._gaps.copy(), self._num
        twin._columns = self._columns.copy()
        return twin

    def left(self, row: int, index: int) -> Part | None:
        """What is left of a device that is held in part."""
        at = self._at.get((row, index))
        return None if at is None else (int(self._columns[3, at]), int(self._columns[4, at]))

    def left_of(self, row: NDArray[np.int64], index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same of many devices at once, nothing of those that nobody holds in part: thousandths, and bytes."""
        columns = self._columns[:, np.flatnonzero(self._columns[0] >= 0)]
        width = 1 + int(max(index.max(initial=0), columns[1].max(initial=0)))
        known, wanted = columns[0] * width + columns[1], row * width + index
        order = np.argsort(known)
        at = np.searchsorted(known, wanted, sorter=order)
        found = np.append(order, -1)[at]
        there = (found >= 0) & (np.append(known, -1)[found] == wanted)
        milli, memory = (np.where(there, np.append(column, 0)[found], 0) for column in columns[3:])
        return milli, memory

    def freed(self, row: int, devices: Collection[int], milli: int) -> float:
        """Whole devices that are when so much of each of `devices` is let go of. One that others hold some of counts in part."""
        if milli == WHOLE:
            return len(devices)
        held = (WHOLE - left[0] if (left := self.left(row, index)) else WHOLE for index in devices)
        return sum(min(1.0, milli / max(1, of)) for of in held)

    def put(self, row: int, index: int, kind_number: int, left: Part) -> None:
        """From now on so much is left of the device."""
        at = self._at.get((row, index))
        if at is None:
            at = self._gaps.pop() if self._gaps else self._room()
            self._at[row, index] = at
        self._columns[:, at] = (row, index, kind_number, *left)

    def drop(self, row: int, index: int) -> None:
        """The device is held in part by nobody any more."""
        at = self._at.pop((row, index))
        self._columns[:, at] = -1
        self._gaps.append(at)

    def usable(self, request: DeviceRequest, kind_number: int, own_part: NDArray[np.int64]) -> NDArray[np.int64]:
        """Places of the entries that can take one more share. own_part: per row, the bytes of a share without a bound."""
        row, _, kind, milli, memory = self._columns[:, : self._num]
        needs = request.memory_bytes or own_part[row]
        return np.flatnonzero((kind == kind_number) & (milli >= request.milli) & (memory >= needs))

    def per_row(self, usable: NDArray[np.int64], num_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """How many of the entries each row has, and thousandths left of the tightest of them (over a device where it has none)."""
        rows = self._columns[0, usable]
        tightest = np.full(num_rows, WHOLE + 1, np.int64)
        np.minimum.at(tightest, rows, self._columns[3, usable])
        return np.bincount(rows, minlength=num_rows), tightest

    def tightest(self, row: int, kind_number: int, least: Part) -> list[int]:
        """Devices of a row that can take `least` more, those with the least left first."""
        rows, index, kind, milli, memory = self._columns[:, : self._num]
        at = np.flatnonzero((rows == row) & (kind == kind_number) & (milli >= least[0]) & (memory >= least[1]))
        order = np.lexsort((index[at], memory[at], milli[at]))
        return [int(number) for number in index[at][order]]

    def _room(self) -> int:
        if self._num == self._columns.shape[1]:
            self._columns = np.concatenate([self._columns, np.full_like(self._columns, -1)], axis=1)
        self._num += 1
        return self._num - 1
