"""One look for the cheapest set of gangs, on one type, without which a job fits.

Nodes are bought one after the other, the cheapest first. A gang on several nodes is paid once, so that its price is spread over
those of its nodes that help. In the end whoever turned out not to be needed is left alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from phalanx.core.devices import WHOLE, Placement
from phalanx.decide.scheduler.room.buying import Amounts, Market, Offered, has_room
from phalanx.decide.scheduler.room.ends import NEVER
from phalanx.decide.scheduler.room.freed import Columns
from phalanx.decide.scheduler.room.on_device import NEEDS, as_whole_devices, on_cheapest_device
from phalanx.decide.scheduler.room.reservation import soonest
from phalanx.decide.scheduler.room.trimming import Trimming
from phalanx.decide.scheduler.room.victims import Victims
from phalanx.decide.scheduler.round import Round
from phalanx.decide.scheduler.snapshot import PendingJob, Shape
from phalanx.decide.scheduler.where.eligible import largest_of
from phalanx.decide.scheduler.where.fleet import CORES_SLACK, Mask, Rows


@dataclass(frozen=True, slots=True)
class Found:
    """Gangs to end, by place; and exactly what the job then gets, which is worked out when it is asked for."""

    numbers: tuple[int, ...]
    placed: Callable[[], Placement]


class Search:
    """is_enough: what is ending anyway is; it is kept for the head, unless the job reclaims."""

    def __init__(self, job: PendingJob, shape: Shape, kind: str, allowed: Mask, round_: Round, reclaims: bool) -> None:
        self._job, self._kind, self._round, self._reclaims = job, kind, round_, reclaims
        self._shape = shape
        self._victims: Victims = round_.victims
        self._columns: Columns = self._victims.columns(kind)
        self._base = round_.kept.free(job, kind)
        self._holding = self._holding_rows()
        self._open = self._holding & round_.kept.open(job, kind)
        self._could = self._holding
        self.is_enough = False
        self._together: Rows | None = None
        self._usable = allowed | self._victims.ending

    def run(self) -> Found | None:
        if not self._has_devices():
            return None
        columns, ending = self._columns, self._victims.ending
        self._at = np.flatnonzero(self._usable[columns.slice_gang] & self._open[columns.slice_row])
        self._wanted, self._has, self._given = self._things()
        gangs = columns.slice_gang[self._at]
        free: list[int] = np.unique(gangs[ending[gangs]]).tolist()
        self._release(free)
        if not self._is_possible():
            return None
        chosen = self._bought()
        self.is_enough = chosen == []
        if chosen is None or (self.is_enough and not self._reclaims):
            return None
        return self._trimmed(chosen, free)

    def _things(self) -> tuple[Sequence[float], Amounts, Amounts]:
        """What one node's part needs of each thing, what each node has of it, and what comes free with each slice."""
        shape, fleet, columns = self._shape, self._round.fleet, self._columns
        needs: Sequence[float] = (shape.request.count * shape.request.milli / WHOLE,)
        has, given = [np.maximum(0, self._base)], [columns.slice_devices]
        if shape.request.is_share and shape.request.count == 1:
            needs, (there, freed) = NEEDS, on_cheapest_device(shape, self._kind, self._base, self._at, self._round)
            has, given = [*there], [*freed]
        elif columns.shared.any() and not shape.request.is_share:
            whole, self._together = as_whole_devices(self._kind, self._at, self._round)
            given = [whole]
        has += [fleet.free_cpus, fleet.free_memory_bytes]
        given += [columns.slice_cpus, columns.slice_memory]
        return (*needs, shape.cpus, shape.memory_bytes), np.array(has, np.float64), np.array(given)

    def _holding_rows(self) -> Mask:
        """Where the job may run at all."""
        fleet = self._round.fleet
        mask = fleet.could_hold(self._shape, self._kind) & fleet.ground.schedulable
        for node in self._job.avoids:
            if node in fleet.ground.row:
                mask[fleet.ground.row[node]] = False
        return mask

    def _has_devices(self) -> bool:
        """Whether enough nodes would have the devices if all of them let go, whatever else there is: mostly they have not."""
        if self._shape.request.is_share:
            return True
        have = np.maximum(0, self._base) + np.where(self._open, self._victims.freed(self._kind, self._usable), 0)
        enough = self._holding & (have + 2 * CORES_SLACK >= self._shape.request.count)
        return bool(np.count_nonzero(enough) >= self._shape.fewest_nodes)

    def _release(self, numbers: Sequence[int]) -> None:
        """They let go."""
        columns, gone = self._columns, np.zeros(len(self._victims.gangs), np.bool_)
        gone[numbers] = True
        are_gone = gone[columns.slice_gang[self._at]]
        at, self._at = self._at[are_gone], self._at[~are_gone]
        self._has = self._with(at)

    def _with(self, at: Rows) -> Amounts:
        """What nodes would have with these slices."""
        rows, num_rows = self._columns.slice_row[at], self._has.shape[1]
        return self._has + [np.bincount(rows, given[at], num_rows) for given in self._given]

    def _is_possible(self) -> bool:
        """Whether it would fit if all of them let go, and as few as may be ended have as much together."""
        self._could = self._holding & has_room(self._wanted, self._with(self._at))
        if largest_of(self._shape, self._could, self._round.fleet) < self._shape.fewest_nodes:
            return False
        count, num_nodes = self._shape.request.count, self._shape.fewest_nodes
        there = np.sort(np.minimum(self._has[0][self._could], count))[::-1][:num_nodes].sum()
        sizes = np.sort(np.bincount(self._columns.slice_gang[self._at], self._given[0][self._at]))[::-1]
        most = self._round.snapshot.policy.preemption.max_victims
        enough = there + sizes[:most].sum() + CORES_SLACK >= count * num_nodes  # parts of devices were added up
        return bool(enough) or self._shape.request.is_share

    def _bought(self) -> list[int] | None:
        """Gangs, node after node, until there are enough nodes; None when that takes more gangs than may be ended for one."""
        shape, most, chosen = self._shape, self._round.snapshot.policy.preemption.max_victims, list[int]()
        ready = self._could & has_room(self._wanted, self._has)
        if shape.within is not None or shape.group > 1:
            self._could = self._lying_right(ready)
            ready &= self._could
        missing, market = shape.fewest_nodes - int(np.count_nonzero(ready)), self._market(ready)
        while missing > 0 and len(chosen) < most:
            more, num_ready = market.buy(missing, most - len(chosen))
            if not more:
                return None
            chosen.extend(more)
            missing -= num_ready
        return chosen if missing <= 0 and len(chosen) <= most else None

    def _market(self, ready: Mask) -> Market:
        lacking, columns = self._could & ~ready, self._columns
        at = self._at[lacking[columns.slice_row[self._at]]]
        together = None if self._together is None else self._together[at]
        offered = Offered(columns.slice_gang[at], columns.slice_row[at], self._given[:, at], together)
        return Market(self._wanted, offered, self._has, self._victims.cost)

    def _lying_right(self, ready: Mask) -> Mask:
        """The nodes on which a gang that must lie in certain tiers is cheapest, about: their dearest node is the cheapest."""
        market, prices = self._market(ready), np.where(ready, 0.0, np.inf)
        prices[market.rows] = market.prices(self._shape.fewest_nodes)
        score = np.where(np.isfinite(prices), prices, NEVER).astype(np.int64)
        target = soonest(self._shape, self._round.fleet.ground, np.flatnonzero(self._could), score, np.zeros(len(score), np.int32))
        mask = np.zeros(len(score), np.bool_)
        if target is not None:
            mask[target] = True
        return mask

    def _trimmed(self, chosen: Sequence[int], free: Sequence[int]) -> Found | None:
        """Without those that are not needed after all, the dearest first."""
        where = self._open, self._base
        trimming = Trimming(self._job, self._shape, self._kind, where, [*free, *chosen], self._round)
        if not trimming.fits():
            return None
        dearest_first = sorted(chosen, key=lambda number: (-self._victims.cost[number], number))
        needed = trimming.needed(dearest_first)
        return Found(needed, trimming.placed) if needed or self._reclaims else None
