"""Nodes that are bought for a job, one after the other, by ending gangs on them: what each costs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phalanx.core.devices import WHOLE
from phalanx.decide.scheduler.room.freed import Columns
from phalanx.decide.scheduler.snapshot import Shape
from phalanx.decide.scheduler.where.fleet import CORES_SLACK, Mask, Rows

Amounts = NDArray[np.float64]
Has = tuple[Amounts, Amounts, Amounts]
"""Devices, cores and bytes."""


def has_room(shape: Shape, has: Has) -> Mask:
    """For one node's part of the gang."""
    devices, cpus, memory = has
    mask: Mask = devices + CORES_SLACK >= shape.request.count * shape.request.milli / WHOLE
    if shape.cpus > 0:
        mask = mask & (cpus + CORES_SLACK >= shape.cpus)
    if shape.memory_bytes > 0:
        mask = mask & (memory >= shape.memory_bytes)
    return mask


class Market:
    """Nodes on which slices of gangs may be bought. rows: these nodes. Slices are in order of nodes, and on each of gangs: whose
    (place in `_names`), and whether the node has room with it. That is the same all the time for a slice that is alone on its
    node, as most are; of crowded nodes it is found out each time what comes free with whom."""

    def __init__(self, shape: Shape, columns: Columns, at: Rows, has: Has, cost: Amounts) -> None:
        """at: places of the slices in the columns. has: what there is on each node of the fleet. cost: of gangs."""
        self._shape = shape
        at = at[np.argsort(columns.slice_row[at], kind="stable")]
        self.rows, self._node = np.unique(columns.slice_row[at], return_inverse=True)
        self._names, self._gang = np.unique(columns.slice_gang[at], return_inverse=True)
        self._cost = cost[self._names]
        self._has: Has = (has[0][self.rows], has[1][self.rows], has[2][self.rows])
        given: Has = (columns.slice_devices[at], columns.slice_cpus[at], columns.slice_memory[at])
        self._is_crowded = (np.bincount(self._node, minlength=len(self.rows)) > 1)[self._node]
        alone = tuple(has[self._node] + more for has, more in zip(self._has, given, strict=True))
        self._enough: Mask = has_room(shape, (alone[0], alone[1], alone[2])) & ~self._is_crowded
        self._given = np.stack(given)[:, self._is_crowded]
        """What comes free with slices on crowded nodes: devices, cores, bytes."""

    def buy(self, missing: int, most: int) -> tuple[list[int], int]:
        """Gangs to end for the node that costs the least, and how many more nodes have room then. Nobody where no node can be
        bought, and where not even so many gangs are on as many nodes as are missing."""
        sizes = np.bincount(self._gang, minlength=len(self._names))
        if np.sort(sizes)[-most:].sum() < missing:
            return [], 0
        gangs = self._cheapest(self._share(sizes, missing))
        return self._names[gangs].tolist(), self._sold(gangs) if gangs else 0

    def prices(self, missing: int) -> Amounts:
        """Of each node, infinite where nothing helps. A gang's price is spread over the nodes on which it helps, at most those that
        are missing."""
        share = self._share(np.bincount(self._gang, minlength=len(self._names)), missing)
        crowd = self._crowd(share)
        paid = _paid(share, crowd)
        found = np.full(len(self.rows), np.inf)
        found[self._node[self._enough]] = (paid[1:] - paid[:-1])[self._enough]
        if crowd is not None:
            found[crowd.node] = crowd.prices(paid)
        return found

    def _share(self, sizes: Rows, missing: int) -> Amounts:
        """Of its gang's price, that each slice bears."""
        return np.asarray((self._cost / np.minimum(np.maximum(sizes, 1), missing))[self._gang])

    def _crowd(self, share: Amounts) -> "_Crowd | None":
        """On crowded nodes, gangs that lose the least for a device that helps come first; of equals the first gang."""
        at = np.flatnonzero(self._is_crowded)
        if not len(at):
            return None
        node, given = self._node[at], self._given
        need = np.maximum(1e-3, self._shape.request.count - self._has[0][node])
        order = np.lexsort((share[at] / np.minimum(need, np.maximum(1e-3, given[0])), node))
        starts = np.flatnonzero(np.concatenate([[True], node[1:] != node[:-1]]))
        place = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(node)))
        devices, cpus, memory = (
            _running(has, more[order], node, starts[place]) for has, more in zip(self._has, given, strict=True)
        )
        lacking = place[~has_room(self._shape, (devices, cpus, memory))]
        return _Crowd(at, order, node[starts], starts, starts + np.bincount(lacking, minlength=len(starts)))

    def _cheapest(self, share: Amounts) -> list[int]:
        """Those that come first on the cheapest node, without the ones that are not needed with those that follow."""
        crowd = self._crowd(share)
        paid = _paid(share, crowd)
        alone = np.where(self._enough, paid[1:] - paid[:-1], np.inf)
        at = int(np.argmin(alone))
        if crowd is not None:
            prices = crowd.prices(paid)
            place = int(np.argmin(prices))
            if np.isfinite(prices[place]) and (prices[place], crowd.node[place]) < (alone[at], self._node[at]):
                return self._needed(crowd, place)
        return [int(self._gang[at])] if np.isfinite(alone[at]) else []

    def _needed(self, crowd: "_Crowd", place: int) -> list[int]:
        node, gang = crowd.node[place], self._gang[crowd.at]
        at: list[int] = crowd.order[crowd.starts[place] : crowd.first[place] + 1].tolist()
        for one in sorted(at, key=lambda one: (-self._cost[gang[one]], one)):
            rest = [other for other in at if other != one]
            devices, cpus, memory = (
                np.asarray(has[node] + sum(given[rest])) for has, given in zip(self._has, self._given, strict=True)
            )
            if has_room(self._shape, (devices, cpus, memory)):
                at = rest
        return list(dict.fromkeys(int(gang[one]) for one in at))

    def _sold(self, gangs: Sequence[int]) -> int:
        """How many more nodes have room without these gangs. Such nodes are bought no more."""
        gone = np.isin(self._gang, gangs) if len(gangs) > 1 else self._gang == gangs[0]
        num_ready, stay = int(np.count_nonzero(self._enough & gone)), ~gone
        if self._given.size:
            num_ready += self._sold_of_crowded(gone, stay)
            self._given = self._given[:, stay[self._is_crowded]]
        self._node, self._gang = self._node[stay], self._gang[stay]
        self._enough, self._is_crowded = self._enough[stay], self._is_crowded[stay]
        return num_ready

    def _sold_of_crowded(self, gone: Mask, stay: Mask) -> int:
        """How many crowded nodes have room now; those on them do not stay for sale."""
        crowded, of_crowd = self._node[self._is_crowded], gone[self._is_crowded]
        touched = np.unique(crowded[of_crowd])
        if not len(touched):
            return 0
        for has, given in zip(self._has, self._given, strict=True):
            np.add.at(has, crowded[of_crowd], given[of_crowd])
        devices, cpus, memory = (has[touched] for has in self._has)
        ready = touched[has_room(self._shape, (devices, cpus, memory))]
        stay &= ~np.isin(self._node, ready)
        return len(ready)


@dataclass(frozen=True, slots=True)
class _Crowd:
    """Slices on crowded nodes. at: places of all such; order: of those, as they are bought. node: each node once; starts, first:
    where in `order` its slices begin, and with which of them it has room: beyond its last where it never has."""

    at: Rows
    order: Rows
    node: Rows
    starts: Rows
    first: Rows

    def prices(self, paid: Amounts) -> Amounts:
        """Of each node."""
        ends = np.append(self.starts[1:], len(self.at))
        up_to = paid[self.at[np.minimum(self.first, len(self.at) - 1)] + 1]
        return np.where(self.first < ends, up_to - paid[self.at[self.starts]], np.inf)


def _paid(share: Amounts, crowd: _Crowd | None) -> Amounts:
    """What all up to each slice cost. Prices are differences of it everywhere: its last bit decides between equals."""
    if crowd is not None:
        share = share.copy()
        share[crowd.at] = share[crowd.at[crowd.order]]
    return np.concatenate([[0.0], np.cumsum(share)])


def _running(now: Amounts, given: Amounts, node: Rows, start: Rows) -> Amounts:
    """What each entry's node has right after it. start: where the node's entries begin."""
    before = np.concatenate([[0.0], np.cumsum(given)])
    return np.asarray(now[node] + before[1:] - before[start])
