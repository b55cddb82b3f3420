"""Step 6, whom to end so that a job fits: the cheapest set of whole gangs, in device time that is lost.

Nodes are bought one after the other, the cheapest first. A gang on several nodes is paid once, so that its price is spread over
those of its nodes that help. In the end whoever turned out not to be needed is left alone.

Jobs that reclaim share one large gang's devices, where what others have ended it for leaves enough. Else the rest would go back to
its queue, which comes before them by its share of all types, and a whole gang would be ended again for each of them.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from phalanx.core.devices import WHOLE, Placement
from phalanx.decide.scheduler.plan import Claim, Evict
from phalanx.decide.scheduler.room.ends import NEVER
from phalanx.decide.scheduler.room.reservation import soonest
from phalanx.decide.scheduler.room.victims import Cause, Columns, Victims, lost_ms
from phalanx.decide.scheduler.round import Round
from phalanx.decide.scheduler.snapshot import PendingJob, Shape
from phalanx.decide.scheduler.where.eligible import largest_of
from phalanx.decide.scheduler.where.fit import fit
from phalanx.decide.scheduler.where.fleet import CORES_SLACK, Fleet, Mask, Rows

Amounts = NDArray[np.float64]

_TRIES_MAX = 4
"""Times a set is looked for again because one of it turned out to be within a guarantee once the others are ended."""


def make_room(job: PendingJob, kinds: Sequence[str], round_: Round) -> Claim | None:
    """The claim of the job on devices that running gangs are asked to let go of, with the evictions added to the round; None when
    no such set exists or the policy forbids it."""
    offers = [offer for kind in kinds if (offer := _offer(job, kind, round_)) is not None]
    if not offers:
        return None
    best = min(offers, key=lambda offer: offer.cost)  # the first type of equals: the one that the job likes best
    return settle(job, best, round_)


@dataclass(frozen=True, slots=True)
class Offer:
    """Gangs to end, by place, with why; what the job then gets; and who of those that are ending anyway holds some of it."""

    kind: str
    cost: float
    victims: tuple[tuple[int, Cause], ...]
    ending: tuple[int, ...]
    placement: Placement


def _offer(job: PendingJob, kind: str, round_: Round) -> Offer | None:
    victims = round_.victims
    causes = victims.causes(job, kind, job.facts.shape.request.count * job.facts.shape.fewest_nodes)
    reclaims = "reclaim" in causes or victims.deserves(job, kind)
    if not (causes or reclaims):
        return None
    allowed = np.zeros(len(victims.gangs), np.bool_)
    for mask in causes.values():
        allowed |= mask
    for _ in range(_TRIES_MAX):
        if not (allowed.any() or reclaims):
            return None
        if round_.known.is_in_vain(job, kind, allowed, round_.kept):
            return None
        search = _Search(job, _as_deserved(job, kind, causes, victims), kind, allowed, round_, reclaims)
        found = search.run()
        if found is None:
            everybody = np.ones_like(allowed)
            round_.known.in_vain(job, kind, everybody if search.is_enough else allowed, round_.kept)
            return None
        numbers, placement = found
        reasons, refused = _reasons(job, kind, numbers, causes, round_)
        if refused is None:
            cost = float(sum(victims.cost[number] for number in numbers))
            ending = ending_on(placement, victims, numbers)
            return Offer(kind, cost, reasons, ending, placement) if numbers or ending else None
        allowed[refused] = False
    return None


def _as_deserved(job: PendingJob, kind: str, causes: dict[Cause, Mask], victims: Victims) -> Shape:
    """An elastic job that reclaims takes no more nodes than its queue deserves: else others would reclaim them in their turn."""
    shape = job.facts.shape
    if causes and "reclaim" not in causes:
        return shape
    more = range(shape.fewest_nodes + 1, shape.num_nodes + 1)
    deserved = bisect_left(more, True, key=lambda num_nodes: not victims.reclaimable(job, kind, num_nodes).any())
    return replace(shape, num_nodes=shape.fewest_nodes + deserved)


def _reasons(
    job: PendingJob, kind: str, numbers: Sequence[int], causes: dict[Cause, Mask], round_: Round
) -> tuple[tuple[tuple[int, Cause], ...], int | None]:
    """Why each of them may be ended; or the one that may not, since its queue has no more than its own once the others are gone."""
    victims, given, reasons = round_.victims, list[int](), list[tuple[int, Cause]]()
    refused = None
    with round_.tree.trial():
        for number in numbers:
            cause = next(cause for cause, mask in causes.items() if mask[number])
            if victims.stays(job, kind, number, cause):
                refused = number
                break
            reasons.append((number, cause))
            given.append(number)
            victims.give(number)
        for number in given:
            victims.take_back(number)
    return tuple(reasons), refused


def ending_on(placement: Placement, victims: Victims, numbers: Sequence[int]) -> tuple[int, ...]:
    """Gangs that are ending already and hold some of the placement."""
    wanted = {part.node: set(part.devices) for part in placement.slices}
    return tuple(
        int(number)
        for number in np.flatnonzero(victims.ending)
        if number not in numbers
        and any(not wanted.get(part.node, set()).isdisjoint(part.devices) for part in victims.gangs[number].placement.slices)
    )


def settle(job: PendingJob, offer: Offer, round_: Round) -> Claim:
    """From now on it counts in this decision."""
    victims, now_ms = round_.victims, round_.snapshot.now_ms
    gangs = [victims.gangs[number] for number, _ in offer.victims]
    for gang, (number, cause) in zip(gangs, offer.victims, strict=True):
        round_.evictions.append(Evict(gang.facts.job, gang.attempt, job.facts.job, cause, lost_ms(gang, now_ms)))
        round_.kept.ended(gang)
        victims.give(number)
    victims.asked([gang.facts.job for gang in gangs], offer.placement)
    round_.fleet.hold(job.facts.shape, offer.placement)
    round_.tree.use(job.facts, offer.kind, offer.placement.world_size)
    round_.kept.promised(job, offer.placement, [*gangs, *(victims.gangs[number] for number in offer.ending)])
    return Claim(job.facts.job, offer.placement)


@dataclass(frozen=True, slots=True)
class _Prices:
    """of_row: what a node costs. at: places of slices, by row, the cheapest first; a row's are from `starts` on; `first` is the
    place there of the one with which it is enough."""

    of_row: Amounts
    at: Rows
    starts: Rows
    first: Rows


class _Search:
    """One look for the cheapest set, on one type. is_enough: what is ending anyway is; it is kept for the head, unless the job
    reclaims."""

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
        usable = (allowed | self._victims.ending)[self._columns.slice_gang] & self._open[self._columns.slice_row]
        self._at = np.flatnonzero(usable)
        self._have = np.maximum(0, self._base).astype(np.float64)
        self._cpus = round_.fleet.free_cpus.copy()
        self._memory = round_.fleet.free_memory_bytes.astype(np.float64)

    def run(self) -> tuple[tuple[int, ...], Placement] | None:
        free = [int(number) for number in np.unique(self._columns.slice_gang[self._at]) if self._victims.ending[number]]
        self._release(free)
        if not self._is_possible():
            return None
        chosen = self._bought()
        self.is_enough = chosen == []
        if chosen is None or (self.is_enough and not self._reclaims):
            return None
        return self._trimmed(chosen, free)

    def _holding_rows(self) -> Mask:
        """Where the job may run at all."""
        fleet = self._round.fleet
        mask = fleet.could_hold(self._shape, self._kind) & fleet.ground.schedulable
        for node in self._job.avoids:
            if node in fleet.ground.row:
                mask[fleet.ground.row[node]] = False
        return mask

    def _release(self, numbers: Sequence[int]) -> None:
        """They let go."""
        columns = self._columns
        at = self._at[np.isin(columns.slice_gang[self._at], numbers)]
        np.add.at(self._have, columns.slice_row[at], columns.slice_devices[at])
        np.add.at(self._cpus, columns.slice_row[at], columns.slice_cpus[at])
        np.add.at(self._memory, columns.slice_row[at], columns.slice_memory[at])
        self._at = np.setdiff1d(self._at, at, assume_unique=True)

    def _roomy(self, have: Amounts, cpus: Amounts, memory: Amounts) -> Mask:
        return self._holding & self._has_room(have, cpus, memory)

    def _has_room(self, have: Amounts, cpus: Amounts, memory: Amounts) -> Mask:
        """For one node's part of the gang."""
        shape = self._shape
        mask: Mask = have + CORES_SLACK >= shape.request.count * shape.request.milli / WHOLE
        if shape.cpus > 0:
            mask = mask & (cpus + CORES_SLACK >= shape.cpus)
        if shape.memory_bytes > 0:
            mask = mask & (memory >= shape.memory_bytes)
        return mask

    def _is_possible(self) -> bool:
        """Whether it would fit if all of them let go, and as few as may be ended have as much together."""
        columns, at = self._columns, self._at
        rows, num_rows = columns.slice_row[at], len(self._have)
        have = self._have + np.bincount(rows, columns.slice_devices[at], num_rows)
        cpus = self._cpus + np.bincount(rows, columns.slice_cpus[at], num_rows)
        memory = self._memory + np.bincount(rows, columns.slice_memory[at], num_rows)
        self._could = self._roomy(have, cpus, memory)
        if largest_of(self._shape, self._could, self._round.fleet) < self._shape.fewest_nodes:
            return False
        count, num_nodes = self._shape.request.count, self._shape.fewest_nodes
        there = np.sort(np.minimum(self._have[self._could], count))[::-1][:num_nodes].sum()
        sizes = np.sort(np.bincount(columns.slice_gang[at], columns.slice_devices[at]))[::-1]
        most = self._round.snapshot.policy.preemption.max_victims
        return bool(there + sizes[:most].sum() >= count * num_nodes) or self._shape.request.is_share

    def _bought(self) -> list[int] | None:
        """Gangs, node after node, until there are enough nodes; None when that takes more gangs than may be ended for one."""
        shape, chosen = self._shape, list[int]()
        if shape.within is not None or shape.group > 1:
            self._could = self._lying_right()
        while True:
            missing = shape.fewest_nodes - int(np.count_nonzero(self._ready()))
            if missing <= 0:
                return chosen
            prices = self._prices(missing)
            row = int(np.argmin(prices.of_row))
            if not np.isfinite(prices.of_row[row]):
                return None
            more = self._cheapest(prices, row)
            chosen.extend(more)
            if len(chosen) > self._round.snapshot.policy.preemption.max_victims:
                return None
            self._release(more)

    def _ready(self) -> Mask:
        return self._roomy(self._have, self._cpus, self._memory) & self._could

    def _lying_right(self) -> Mask:
        """The nodes on which a gang that must lie in certain tiers is cheapest, about: their dearest node is the cheapest."""
        prices = np.where(self._ready(), 0, self._prices(self._shape.fewest_nodes).of_row)
        score = np.where(np.isfinite(prices), prices, NEVER).astype(np.int64)
        target = soonest(self._shape, self._round.fleet.ground, np.flatnonzero(self._could), score, np.zeros(len(score), np.int32))
        mask = np.zeros(len(score), np.bool_)
        if target is not None:
            mask[target] = True
        return mask

    def _prices(self, missing: int) -> _Prices:
        """Of each node that has yet to be bought: on each, gangs that lose the least for a device come first. A gang's price is
        spread over the nodes on which it helps, at most those that are missing."""
        columns = self._columns
        wanted = self._could & ~self._ready()
        at = self._at[wanted[columns.slice_row[self._at]]]
        gang, row = columns.slice_gang[at], columns.slice_row[at]
        helps = np.clip(np.bincount(gang, minlength=len(self._victims.gangs)), 1, missing)
        share = self._victims.cost[gang] / helps[gang]
        need = np.maximum(1e-3, self._shape.request.count - self._have[row])
        order = np.lexsort((gang, share / np.minimum(need, np.maximum(1e-3, columns.slice_devices[at])), row))
        at, row, share = at[order], row[order], share[order]
        starts = np.searchsorted(row, np.arange(len(wanted) + 1))
        after = [
            _running(now, given[at], row, starts)
            for now, given in (
                (self._have, columns.slice_devices),
                (self._cpus, columns.slice_cpus),
                (self._memory, columns.slice_memory),
            )
        ]
        enough = self._has_room(*after)
        first = starts[:-1] + np.bincount(row[~enough], minlength=len(wanted))
        paid = _running(np.zeros(len(wanted)), share, row, starts)
        of_row = np.where(first < starts[1:], np.append(paid, np.inf)[np.minimum(first, len(paid))], np.inf)
        return _Prices(of_row, at, starts, first)

    def _cheapest(self, prices: _Prices, row: int) -> list[int]:
        """Gangs to end on a node: those that come first on it, without the ones that are not needed with those that follow."""
        columns = self._columns
        at = [int(one) for one in prices.at[prices.starts[row] : prices.first[row] + 1]]
        for one in sorted(at, key=lambda one: (-self._victims.cost[columns.slice_gang[one]], one)):
            rest = [other for other in at if other != one]
            amounts = (columns.slice_devices, columns.slice_cpus, columns.slice_memory)
            now = (self._have[row], self._cpus[row], self._memory[row])
            if self._has_room(*(np.asarray(has + sum(given[rest])) for has, given in zip(now, amounts, strict=True))):
                at = rest
        return list(dict.fromkeys(int(columns.slice_gang[one]) for one in at))

    def _trimmed(self, chosen: Sequence[int], free: Sequence[int]) -> tuple[tuple[int, ...], Placement] | None:
        """Without those that are not needed after all, the dearest first; and exactly what the job then gets."""
        trial = self._round.fleet.copy()
        for number in (*free, *chosen):
            trial.give_back(self._victims.gangs[number].facts.shape, self._victims.releasable(number))
        rows = self._fits(trial)
        if rows is None:
            return None
        needed = sorted(chosen, key=lambda number: (-self._victims.cost[number], number))
        for number in tuple(needed):
            gang = self._victims.gangs[number]
            trial.hold(gang.facts.shape, gang.placement)
            without = self._fits(trial)
            if without is None:
                trial.give_back(gang.facts.shape, gang.placement)
            else:
                rows = without
                needed.remove(number)
        if not needed and not self._reclaims:
            return None
        return tuple(sorted(needed)), trial.take(self._shape, self._kind, [int(row) for row in rows])

    def _fits(self, trial: Fleet) -> Rows | None:
        free = np.where(self._open, trial.free[self._kind], self._base)
        return fit(self._shape, self._kind, trial, free, self._job.avoids)


def _running(now: Amounts, given: Amounts, row: Rows, starts: Rows) -> Amounts:
    """What each entry's row has right after it."""
    before = np.concatenate([[0.0], np.cumsum(given)])
    return np.asarray(now[row] + before[1:] - before[starts[row]])
