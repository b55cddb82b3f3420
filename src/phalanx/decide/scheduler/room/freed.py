"""What gangs let go of when they end, as columns; and what of it is promised to others already."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from phalanx.core.devices import WHOLE, NodeSlice, Placement
from phalanx.core.ids import NodeId
from phalanx.decide.scheduler.room.gangs import Gangs
from phalanx.decide.scheduler.snapshot import Snapshot
from phalanx.decide.scheduler.where.fleet import Fleet, Mask, Rows


@dataclass(frozen=True, slots=True)
class Columns:
    """Slices of gangs on one type: whose (places in `Gangs.all`), where, devices that come free, cores, bytes. part: place in the
    gang's placement. shared: it holds parts of devices."""

    slice_gang: Rows
    slice_row: Rows
    slice_devices: NDArray[np.float64]
    slice_cpus: NDArray[np.float64]
    slice_memory: NDArray[np.float64]
    part: Rows
    shared: Mask


@dataclass(frozen=True, slots=True)
class Parts:
    """Of single devices of a type, and their memory, that come free with slices; of whole ones on a node the first stands for all.
    at: place in `Columns`. device: number, of which each row has `width`; -1 where it is promised to somebody."""

    at: Rows
    device: Rows
    milli: Rows
    memory: Rows
    width: int


class Freed:
    """Mutable within one decision. ending: by place, who ends; whoever asks more of them to says so there, and here (`promise`)."""

    def __init__(self, snapshot: Snapshot, fleet: Fleet, gangs: Gangs, ending: Mask) -> None:
        self._fleet, self._gangs, self._ending = fleet, gangs, ending
        self._claimed: dict[NodeId, set[int]] = {}
        self._is_claimed = np.zeros(len(fleet.ground.nodes), np.bool_)
        self._columns: dict[str, Columns] = {}
        self._parts: dict[tuple[str, bool], Parts] = {}
        self._per_row: dict[tuple[str, bytes], NDArray[np.float64]] = {}
        for job in snapshot.claimants:
            if job.claim is not None:
                self._claim(job.claim)
        for number in np.flatnonzero(gangs.stopping):
            keeps = gangs.all[number].keeps
            if keeps is not None:
                self._claim(keeps)

    def columns(self, kind: str) -> Columns:
        if kind not in self._columns:
            slices = self._gangs.slices
            at = np.flatnonzero(self._gangs.kind[slices.gang] == self._fleet.ground.kind_number[kind])
            found = self._columns[kind] = Columns(
                slices.gang[at],
                slices.row[at],
                slices.devices[at].astype(np.float64),
                slices.cpus[at],
                slices.memory[at].astype(np.float64),
                slices.part[at],
                slices.milli[at] < WHOLE,
            )
            self._count(found, found.shared | (self._ending[found.slice_gang] & self._is_claimed[found.slice_row]))
        return self._columns[kind]

    def parts(self, kind: str, of_shares: bool = False) -> Parts:
        """of_shares: only those of slices that hold parts of devices, which are few."""
        key = (kind, of_shares)
        if key not in self._parts:
            columns, types = self.columns(kind), self._fleet.ground.types
            among = np.flatnonzero(columns.shared) if of_shares else np.arange(len(columns.shared))
            gangs, rows, places = (column[among].tolist() for column in (columns.slice_gang, columns.slice_row, columns.part))
            width = 1 + max((max(has) for has in {id(has): has for has in types if has}.values()), default=0)
            found = list[tuple[int, int, int, int]]()
            for at, number, row, place in zip(among.tolist(), gangs, rows, places, strict=True):
                part = self._gangs.all[number].placement.slices[place]
                there = [index for index in part.devices if index in types[row]]
                for index in there[:1] if part.milli == WHOLE else there:
                    found.append((at, row * width + index, part.milli, part.memory_bytes))
            at_, device, milli, memory = np.array(found, np.int64).reshape(-1, 4).T.copy()
            memory[milli == WHOLE] = self._fleet.ground.device_memory_bytes[device[milli == WHOLE] // width]
            parts = self._parts[key] = Parts(at_, device, milli, memory, width)
            self._point(parts, columns, self._ending[columns.slice_gang] & self._is_claimed[columns.slice_row])
        return self._parts[key]

    def _point(self, parts: Parts, columns: Columns, which: Mask) -> None:
        """At devices that these slices, of gangs that end, have promised to nobody."""
        for at in np.flatnonzero(which[parts.at]).tolist():
            part, row = self._part(columns, int(parts.at[at])), int(columns.slice_row[parts.at[at]])
            free = [row * parts.width + index for index in self._unclaimed(part) if index in self._fleet.ground.types[row]]
            if parts.device[at] not in free:
                parts.device[at] = free[0] if free and part.milli == WHOLE else -1

    def _part(self, columns: Columns, at: int) -> NodeSlice:
        return self._gangs.all[int(columns.slice_gang[at])].placement.slices[int(columns.part[at])]

    def per_row(self, kind: str, who: Mask) -> NDArray[np.float64]:
        """Devices of the type that come free on each node when all of these end. Not to be changed."""
        key = (kind, who.tobytes())
        if key not in self._per_row:
            columns = self.columns(kind)
            devices = np.where(who[columns.slice_gang], columns.slice_devices, 0)
            self._per_row[key] = np.bincount(columns.slice_row, devices, len(self._is_claimed)).astype(np.float64)
        return self._per_row[key]

    def releasable(self, number: int, on: Collection[NodeId] | None = None) -> Placement:
        """What the gang lets go of, on these nodes or all, besides what is claimed already: only one that is ending has such."""
        placement = self._gangs.all[number].placement
        if on is not None:
            placement = Placement(tuple(part for part in placement.slices if part.node in on))
        if not self._ending[number] or not self._claimed:
            return placement
        return Placement(tuple(replace(part, devices=self._unclaimed(part)) for part in placement.slices))

    def promise(self, claim: Placement, asked: Iterable[int]) -> None:
        """The devices of the claim come free for nobody else; these gangs end from now on."""
        self._per_row.clear()
        self._claim(claim)
        slices, touched = self._gangs.slices, np.zeros_like(self._is_claimed)
        is_asked = np.zeros(len(self._gangs.all), np.bool_)
        is_asked[list(asked)] = True
        touched[slices.row[is_asked[slices.gang]]] = True
        touched[self._rows(claim)] = True
        for kind, columns in self._columns.items():
            differ = columns.shared | self._is_claimed[columns.slice_row]
            changed = differ & touched[columns.slice_row] & self._ending[columns.slice_gang]
            self._count(columns, changed)
            for parts in (self._parts.get((kind, of_shares)) for of_shares in (False, True)):
                if parts is not None:
                    self._point(parts, columns, changed)

    def _claim(self, claim: Placement) -> None:
        self._is_claimed[self._rows(claim)] = True
        for part in claim.slices:
            self._claimed.setdefault(part.node, set()).update(part.devices)

    def _rows(self, placement: Placement) -> list[int]:
        row = self._fleet.ground.row
        return [row[part.node] for part in placement.slices if part.node in row]

    def _count(self, columns: Columns, which: Mask) -> None:
        """Whole devices that come free with these slices."""
        for at in np.flatnonzero(which).tolist():
            part, row = self._part(columns, at), int(columns.slice_row[at])
            devices = self._unclaimed(part) if self._ending[columns.slice_gang[at]] else part.devices
            there = [index for index in devices if index in self._fleet.ground.types[row]]
            columns.slice_devices[at] = self._fleet.shares.freed(row, there, part.milli)

    def _unclaimed(self, part: NodeSlice) -> tuple[int, ...]:
        claimed = self._claimed.get(part.node, ())
        return tuple(index for index in part.devices if index not in claimed)
