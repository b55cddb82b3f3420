"""Nodes that are bought for a job, one after the other, by ending gangs on them: what each costs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from phalanx.decide.scheduler.where.fleet import CORES_SLACK, Mask, Rows

Amounts = NDArray[np.float64]
"""Of things such as devices, cores and bytes: a row for each thing, a column for each node or slice."""


def has_room(needs: Sequence[float], has: Sequence[Amounts] | Amounts) -> Mask:
    """For one node's part of the gang. Of the first thing, devices, something is always needed."""
    mask: Mask = has[0] + CORES_SLACK >= needs[0]
    for need, there in zip(needs[1:], has[1:], strict=True):
        if need > 0:
            mask = mask & (there + CORES_SLACK >= need)
    return mask


@dataclass(frozen=True, slots=True)
class Offered:
    """Slices of gangs that may be bought: whose, on which node, and what comes free with each. together: equal for slices on a node
    of which one without the others frees nothing; None where there are none such."""

    gang: Rows
    node: Rows
    given: Amounts
    together: Rows | None = None


class Market:
    """Nodes on which slices of gangs may be bought. rows: these nodes. Slices are in order of nodes, and on each of gangs: whose
    (place in `_names`), and whether the node has room with it. That is the same all the time for a slice that is alone on its
    node, as most are; of crowded nodes it is found out each time what comes free with whom."""

    def __init__(self, needs: Sequence[float], offered: Offered, has: Amounts, cost: NDArray[np.float64]) -> None:
        """needs: of one node's part of the gang. has: what there is on each node of the fleet. cost: of gangs."""
        self._needs = needs
        order = np.argsort(offered.node, kind="stable")
        self.rows, self._node = np.unique(offered.node[order], return_inverse=True)
        self._names, self._gang = np.unique(offered.gang[order], return_inverse=True)
        self._cost = cost[self._names]
        self._has, given = has[:, self.rows], offered.given[:, order]
        self._is_crowded = (np.bincount(self._node, minlength=len(self.rows)) > 1)[self._node]
        self._enough: Mask = has_room(needs, self._has[:, self._node] + given) & ~self._is_crowded
        self._given = given[:, self._is_crowded]
        """What comes free with slices on crowded nodes."""
        self._known: tuple[NDArray[np.float64], _Crowd] | None = None
        self._together = None if offered.together is None else offered.together[order][self._is_crowded]

    def buy(self, missing: int, most: int) -> tuple[list[int], int]:
        """Gangs to end for the node that costs the least, and how many more nodes have room then. Nobody where no node can be
        bought, and where not even so many gangs are on as many nodes as are missing."""
        sizes = np.bincount(self._gang, minlength=len(self._names))
        if (sizes if most >= len(sizes) else np.partition(sizes, -most)[-most:]).sum() < missing:
            return [], 0
        gangs = self._cheapest(self._share(sizes, missing))
        return self._names[gangs].tolist(), self._sold(gangs) if gangs else 0

    def prices(self, missing: int) -> NDArray[np.float64]:
        """Of each node, infinite where nothing helps. A gang's price is spread over the nodes on which it helps, at most those that
        are missing."""
        share = self._share(np.bincount(self._gang, minlength=len(self._names)), missing)
        crowd = self._crowd(share)
        found = np.full(len(self.rows), np.inf)
        found[self._node[self._enough]] = share[self._enough]
        if crowd is not None:
            found[crowd.node] = crowd.prices(share)
        return found

    def _share(self, sizes: Rows, missing: int) -> NDArray[np.float64]:
        """Of its gang's price, that each slice bears."""
        return np.asarray((self._cost / np.minimum(np.maximum(sizes, 1), missing))[self._gang])

    def _crowd(self, share: NDArray[np.float64]) -> "_Crowd | None":
        """On crowded nodes, gangs that lose the least for a device that helps come first, with those that have to go with them; of
        equals the first gang."""
        at = np.flatnonzero(self._is_crowded)
        if not len(at):
            return None
        paid = share[at]
        if self._known is None or not np.array_equal(self._known[0], paid):  # most are bought elsewhere, and change nothing here
            self._known = paid, self._found_crowd(at, paid)
        return replace(self._known[1], at=at)

    def _found_crowd(self, at: Rows, paid: NDArray[np.float64]) -> "_Crowd":
        node, given = self._node[at], self._given
        need = np.maximum(1e-3, self._needs[0] - self._has[0][node])
        helps, together = given[0], self._together
        if together is not None:
            paid, helps = (np.bincount(together, one).astype(np.float64)[together] for one in (paid, helps))
        price = paid / np.minimum(need, np.maximum(1e-3, helps))
        order = np.lexsort((price, node) if together is None else (together, price, node))
        starts = np.flatnonzero(np.concatenate([[True], node[1:] != node[:-1]]))
        place = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(node)))
        has = [_running(has, more[order], node, starts[place]) for has, more in zip(self._has, given, strict=True)]
        lacking = place[~has_room(self._needs, has)]
        return _Crowd(at, order, node[starts], starts, starts + np.bincount(lacking, minlength=len(starts)))

    def _cheapest(self, share: NDArray[np.float64]) -> list[int]:
        """Those that come first on the cheapest node, without the ones that are not needed with those that follow."""
        crowd, alone = self._crowd(share), np.where(self._enough, share, np.inf)
        at = int(np.argmin(alone))
        if crowd is not None:
            prices = crowd.prices(share)
            place = int(np.argmin(prices))
            if np.isfinite(prices[place]) and (prices[place], crowd.node[place]) < (alone[at], self._node[at]):
                return self._needed(crowd, place)
        return [int(self._gang[at])] if np.isfinite(alone[at]) else []

    def _needed(self, crowd: "_Crowd", place: int) -> list[int]:
        node, gang = crowd.node[place], self._gang[crowd.at]
        at: list[int] = crowd.order[crowd.starts[place] : crowd.first[place] + 1].tolist()
        for one in sorted(at, key=lambda one: (-self._cost[gang[one]], one)):
            rest = [other for other in at if other != one]
            if has_room(self._needs, self._has[:, node] + self._given[:, rest].sum(axis=1)):
                at = rest
        return list(dict.fromkeys(int(gang[one]) for one in at))

    def _sold(self, gangs: Sequence[int]) -> int:
        """How many more nodes have room without these gangs. Such nodes are bought no more."""
        gone = np.isin(self._gang, gangs) if len(gangs) > 1 else self._gang == gangs[0]
        num_ready, stay = int(np.count_nonzero(self._enough & gone)), ~gone
        if self._given.size:
            num_ready += self._sold_of_crowded(gone, stay)
            left = stay[self._is_crowded]
            self._given = self._given[:, left]
            self._together = None if self._together is None else self._together[left]
        self._node, self._gang = self._node[stay], self._gang[stay]
        self._enough, self._is_crowded = self._enough[stay], self._is_crowded[stay]
        return num_ready

    def _sold_of_crowded(self, gone: Mask, stay: Mask) -> int:
        """How many crowded nodes have room now; those on them do not stay for sale."""
        crowded, of_crowd = self._node[self._is_crowded], gone[self._is_crowded]
        touched = np.unique(crowded[of_crowd])
        if not len(touched):
            return 0
        self._known = None
        for has, given in zip(self._has, self._given, strict=True):
            np.add.at(has, crowded[of_crowd], given[of_crowd])
        ready = touched[has_room(self._needs, self._has[:, touched])]
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

    def prices(self, share: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of each node."""
        paid = np.concatenate([[0.0], np.cumsum(share[self.at[self.order]])])
        ends = np.append(self.starts[1:], len(self.at))
        up_to = paid[np.minimum(self.first + 1, len(self.at))]
        return np.where(self.first < ends, up_to - paid[self.starts], np.inf)


def _running(now: NDArray[np.float64], given: NDArray[np.float64], node: Rows, start: Rows) -> NDArray[np.float64]:
    """What each entry's node has right after it. start: where the node's entries begin."""
    before = np.concatenate([[0.0], np.cumsum(given)])
    return np.asarray(now[node] + before[1:] - before[start])
