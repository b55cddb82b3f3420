"""Nodes that are bought for a job, one after the other, by ending gangs on them: what each costs."""

from collections.abc import Sequence

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
    (place in `_names`), and what comes free with them. enough: once each slice is alone on its node, whether the node has room with
    it; that does not change any more."""

    def __init__(self, shape: Shape, columns: Columns, at: Rows, has: Has, cost: Amounts) -> None:
        """at: places of the slices in the columns. has: what there is on each node of the fleet. cost: of gangs."""
        self._shape = shape
        at = at[np.argsort(columns.slice_row[at], kind="stable")]
        self.rows, self._node = np.unique(columns.slice_row[at], return_inverse=True)
        self._names, self._gang = np.unique(columns.slice_gang[at], return_inverse=True)
        self._cost = cost[self._names]
        self._given: Has = (columns.slice_devices[at], columns.slice_cpus[at], columns.slice_memory[at])
        self._has: Has = (has[0][self.rows], has[1][self.rows], has[2][self.rows])
        self._num_ready = 0
        self._order = self._starts = self._first = np.zeros(0, np.intp)
        self._enough: Mask | None = None

    def buy(self, missing: int, most: int) -> tuple[list[int], int]:
        """Gangs to end for the node that costs the least, and how many more nodes have room then. Nobody where no node can be
        bought, and where not even so many gangs are on as many nodes as are missing."""
        sizes = np.bincount(self._gang, minlength=len(self._names))
        if np.sort(sizes)[-most:].sum() < missing:
            return [], 0
        share = (self._cost / np.clip(sizes, 1, missing))[self._gang]
        if self._enough is None and (self._node[1:] > self._node[:-1]).all():
            has, given = self._has, self._given
            alone = tuple(np.asarray(one[self._node] + more) for one, more in zip(has, given, strict=True))
            self._enough = has_room(self._shape, (alone[0], alone[1], alone[2]))
        gangs = self._cheapest(share) if self._enough is None else self._cheapest_alone(share, self._enough)
        return self._names[gangs].tolist(), self._sold(gangs) if gangs else 0

    def prices(self, missing: int) -> Amounts:
        """Of each node, infinite where nothing helps. A gang's price is spread over the nodes on which it helps, at most those that
        are missing."""
        sizes = np.bincount(self._gang, minlength=len(self._names))
        return self._prices((self._cost / np.clip(sizes, 1, missing))[self._gang])

    def _prices(self, share: Amounts) -> Amounts:
        """On each node, gangs that lose the least for a device that helps come first; of equals the first gang."""
        num_nodes = len(self.rows)
        need = np.maximum(1e-3, self._shape.request.count - self._has[0][self._node])
        order = np.lexsort((share / np.minimum(need, np.maximum(1e-3, self._given[0])), self._node))
        node, share = self._node[order], share[order]
        ends = np.cumsum(np.bincount(node, minlength=num_nodes))
        starts = np.concatenate([[0], ends[:-1]])
        devices, cpus, memory = (
            _running(has, given[order], node, starts) for has, given in zip(self._has, self._given, strict=True)
        )
        lacking = node[~has_room(self._shape, (devices, cpus, memory))]
        first = starts + np.bincount(lacking, minlength=num_nodes)
        paid = _running(np.zeros(num_nodes), share, node, starts)
        self._order, self._starts, self._first = order, starts, first
        return np.where(first < ends, np.append(paid, np.inf)[np.minimum(first, len(paid))], np.inf)

    def _cheapest(self, share: Amounts) -> list[int]:
        """Those that come first on the cheapest node, without the ones that are not needed with those that follow."""
        prices = self._prices(share)
        node = int(np.argmin(prices))
        if not np.isfinite(prices[node]):
            return []
        at: list[int] = self._order[self._starts[node] : self._first[node] + 1].tolist()
        for one in sorted(at, key=lambda one: (-self._cost[self._gang[one]], one)):
            rest = [other for other in at if other != one]
            devices, cpus, memory = (
                np.asarray(has[node] + sum(given[rest])) for has, given in zip(self._has, self._given, strict=True)
            )
            if has_room(self._shape, (devices, cpus, memory)):
                at = rest
        return list(dict.fromkeys(int(self._gang[one]) for one in at))

    def _cheapest_alone(self, share: Amounts, enough: Mask) -> list[int]:
        paid = np.concatenate([[0.0], np.cumsum(share)])  # as `_running` does, of which the last bit decides between equals
        prices = np.where(enough, paid[1:] - paid[:-1], np.inf)
        at = int(np.argmin(prices))
        return [int(self._gang[at])] if np.isfinite(prices[at]) else []

    def _sold(self, gangs: Sequence[int]) -> int:
        """How many more nodes have room without these gangs. Such nodes are bought no more."""
        gone = np.isin(self._gang, gangs) if len(gangs) > 1 else self._gang == gangs[0]
        if self._enough is not None:
            now_ready = int(np.count_nonzero(self._enough & gone))
            self._gang, self._enough = self._gang[~gone], self._enough[~gone]
            return now_ready
        for has, given in zip(self._has, self._given, strict=True):
            np.add.at(has, self._node[gone], given[gone])
        ready = has_room(self._shape, self._has)
        stay = ~gone & ~ready[self._node]
        before, self._num_ready = self._num_ready, int(np.count_nonzero(ready))
        self._node, self._gang = self._node[stay], self._gang[stay]
        self._given = (self._given[0][stay], self._given[1][stay], self._given[2][stay])
        return self._num_ready - before


def _running(now: Amounts, given: Amounts, node: Rows, starts: Rows) -> Amounts:
    """What each entry's node has right after it."""
    before = np.concatenate([[0.0], np.cumsum(given)])
    return np.asarray(now[node] + before[1:] - before[starts[node]])
