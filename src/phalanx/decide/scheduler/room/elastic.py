"""Step 5, gangs that may be smaller: shrink others to make room, grow into what is idle.

A gang that changes its size is ended like any other, and starts again from its checkpoint on what it keeps, which is claimed for
it.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from phalanx.core.devices import NodeSlice, Placement
from phalanx.decide.scheduler.plan import Claim, Evict
from phalanx.decide.scheduler.room.victims import lost_ms
from phalanx.decide.scheduler.round import Round
from phalanx.decide.scheduler.snapshot import PendingJob, RunningJob, Shape
from phalanx.decide.scheduler.where.fit import fit
from phalanx.decide.scheduler.where.fleet import CORES_SLACK, Counts, Fleet, Mask, Rows

PAYS_BACK_MS: Final = 3_600_000
"""A gang grows when what it gains in so long is more than it loses by starting again."""

GROWS_BY: Final = 4
"""And only to its full size, or by at least one node for each so many that it has."""


_TRIES_MAX: Final = 4
"""Times gangs are looked for again because one of them turned out to be within a guarantee once the others are smaller."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """Gangs to make smaller, by place, with what each gives up; and what the job then gets."""

    kind: str
    cost: float
    gives: tuple[tuple[int, tuple[NodeSlice, ...]], ...]
    placement: Placement


def shrink_others(job: PendingJob, kinds: Sequence[str], round_: Round) -> Claim | None:
    """The claim of the job on devices that elastic gangs give up, with their evictions (which keep the rest) added to the round;
    None when that does not make it fit."""
    offers = [offer for kind in kinds if (offer := _offer(job, kind, round_)) is not None]
    if not offers:
        return None
    best = min(offers, key=lambda offer: offer.cost)
    gangs = []
    for number, given in best.gives:
        gang = round_.victims.gangs[number]
        gangs.append(gang)
        keeps = Placement(tuple(part for part in gang.placement.slices if part not in given))
        resize(
            gang, Evict(gang.facts.job, gang.attempt, job.facts.job, "shrink", lost_ms(gang, round_.snapshot.now_ms), keeps), round_
        )
    round_.victims.asked((), best.placement)
    round_.fleet.hold(job.facts.shape, best.placement)
    round_.tree.use(job.facts, best.kind, best.placement.world_size)
    round_.kept.promised(job, best.placement, gangs)
    return Claim(job.facts.job, best.placement)


def resize(gang: RunningJob, evict: Evict, round_: Round) -> None:
    """It is ended, and what it keeps is its own."""
    round_.evictions.append(evict)
    round_.kept.ended(gang)
    kind = round_.tree.kind(gang.placement)
    round_.tree.give(gang.facts, kind, gang.placement.world_size)
    keeps = evict.keeps or Placement(())
    round_.victims.asked((gang.facts.job,), keeps)
    if keeps.slices:
        round_.tree.use(gang.facts, kind, keeps.world_size)
        round_.kept.promised(PendingJob(gang.facts), keeps, (gang,))


def _offer(job: PendingJob, kind: str, round_: Round) -> _Offer | None:
    """Without gangs of which it turns out that they would give up what they are guaranteed once the others have given."""
    firm: set[int] = set()
    for _ in range(_TRIES_MAX):
        offer = _cheapest(job, kind, firm, round_)
        refused = _within_guarantee(job, offer, round_) if offer is not None else None
        if refused is None:
            return offer
        firm.add(refused)
    return None


def _within_guarantee(job: PendingJob, offer: _Offer, round_: Round) -> int | None:
    """The first gang that has a node to give that its queue, or one above it, is guaranteed after what was given before."""
    victims, tree, kind = round_.victims, round_.tree, offer.kind
    given: list[tuple[RunningJob, int]] = []
    refused = None
    with tree.trial():
        for number, part in ((number, part) for number, parts in offer.gives for part in parts):
            if victims.stays(job, kind, number, "priority"):
                refused = number
                break
            given.append((victims.gangs[number], len(part.devices)))
            tree.give(victims.gangs[number].facts, kind, len(part.devices))
        for gang, num_devices in given:
            tree.take_back(gang.facts, kind, num_devices)
    return refused


def _cheapest(job: PendingJob, kind: str, firm: Collection[int], round_: Round) -> _Offer | None:
    """Gangs that lose the least for a node come first; of each, nodes of its last ranks. firm: by place, those that stay."""
    numbers = [number for number in round_.victims.elastic(job, kind) if number not in firm]
    if not numbers:
        return None
    shape, fleet, victims = job.facts.shape, round_.fleet, round_.victims
    base, is_open = round_.kept.free(job, kind), round_.kept.open(job, kind)
    missing = shape.fewest_nodes - int(np.count_nonzero(fleet.roomy(shape, kind, base)))
    surplus = {number: found for number in numbers if (found := _surplus(victims.gangs[number], job, base, is_open, round_))}
    ordered = sorted(surplus, key=lambda number: (victims.cost[number] / min(len(surplus[number]), max(1, missing)), number))
    chosen: list[int] = []
    for number in ordered[: round_.snapshot.policy.preemption.max_victims]:
        chosen.append(number)
        if sum(len(surplus[one]) for one in chosen) >= missing:
            offer = _trimmed(job, kind, chosen, surplus, missing, base, is_open, round_)
            if offer is not None:
                return offer
    return None


def _surplus(gang: RunningJob, job: PendingJob, base: Counts, is_open: Mask, round_: Round) -> list[NodeSlice]:
    """Nodes that the gang can do without, in whole groups of its ranks, and on which the job would then have room."""
    shape, asks, fleet = gang.facts.shape, job.facts.shape, round_.fleet
    group = max(1, shape.group)
    slices, found = gang.placement.slices, list[NodeSlice]()
    able = fleet.could_hold(asks, round_.tree.kind(gang.placement)) & fleet.ground.schedulable & is_open
    for last in range(len(slices), shape.fewest_nodes, -group):
        parts = slices[max(0, last - group) : last]
        if last - group < shape.fewest_nodes or len(parts) < group:
            break
        rows = [fleet.ground.row.get(part.node, -1) for part in parts]
        if all(
            row >= 0 and able[row] and _has_room(asks, shape, row, len(part.devices), base, fleet)
            for row, part in zip(rows, parts, strict=True)
        ):
            found.extend(parts)
    return found


def _has_room(asks: Shape, gang: Shape, row: int, devices: int, base: Counts, fleet: Fleet) -> bool:
    return bool(
        base[row] + devices >= asks.request.count
        and (asks.cpus <= 0 or fleet.free_cpus[row] + gang.cpus >= asks.cpus)
        and (asks.memory_bytes <= 0 or fleet.free_memory_bytes[row] + gang.memory_bytes >= asks.memory_bytes)
    )


def _trimmed(
    job: PendingJob,
    kind: str,
    chosen: Sequence[int],
    surplus: dict[int, list[NodeSlice]],
    missing: int,
    base: Counts,
    is_open: Mask,
    round_: Round,
) -> _Offer | None:
    """With as few nodes of each as will do, or else with all that they can do without; and without gangs that are not needed."""
    victims = round_.victims
    for wanted in (missing, len(round_.fleet.ground.nodes)):
        trial, given, left = round_.fleet.copy(), dict[int, Placement](), wanted
        for number in chosen:
            group = max(1, victims.gangs[number].facts.shape.group)
            parts = surplus[number][: -(-max(group, left) // group) * group]
            given[number] = Placement(tuple(parts))
            left -= len(parts)
            trial.give_back(victims.gangs[number].facts.shape, given[number])
        rows = _fits(job, kind, trial, base, is_open)
        if rows is None:
            continue
        for number in sorted(chosen, key=lambda number: (-victims.cost[number], number)):
            trial.hold(victims.gangs[number].facts.shape, given[number])
            without = _fits(job, kind, trial, base, is_open)
            if without is None:
                trial.give_back(victims.gangs[number].facts.shape, given[number])
            else:
                rows = without
                del given[number]
        placement = trial.take(job.facts.shape, kind, [int(row) for row in rows])
        gives = tuple(
            (number, _touched(victims.gangs[number], parts, placement, job.facts.shape, round_.fleet))
            for number, parts in sorted(given.items())
        )
        return _Offer(kind, float(sum(victims.cost[number] for number in given)), gives, placement) if gives else None
    return None


def _touched(gang: RunningJob, given: Placement, placement: Placement, asks: Shape, fleet: Fleet) -> tuple[NodeSlice, ...]:
    """What the gang really has to give, in whole groups of its ranks: devices of the placement, or the cores and memory that one of
    its nodes lacks."""
    taken = {part.node: set(part.devices) for part in placement.slices}
    rows = {node: fleet.ground.row[node] for node in taken}
    bare = {
        node
        for node, row in rows.items()
        if fleet.free_cpus[row] + CORES_SLACK < asks.cpus or fleet.free_memory_bytes[row] < asks.memory_bytes
    }
    group, place = max(1, gang.facts.shape.group), {part: rank for rank, part in enumerate(gang.placement.slices)}
    wanted = (part for part in given.slices if part.node in bare or not taken.get(part.node, set()).isdisjoint(part.devices))
    groups = {place[part] // group for part in wanted}
    return tuple(part for part in given.slices if place[part] // group in groups)


def _fits(job: PendingJob, kind: str, trial: Fleet, base: Counts, is_open: Mask) -> Rows | None:
    return fit(job.facts.shape, kind, trial, np.where(is_open, trial.free[kind], base), job.avoids)


def grow(round_: Round) -> None:
    """Elastic gangs under their full size take what nobody waits for."""
    gangs, kinds = round_.gangs, round_.fleet.ground.kinds
    sought = np.array([*(kind in round_.kept.waited for kind in kinds), True], np.bool_)  # the last for gangs on no type
    small = [gangs.all[at] for at in np.flatnonzero(gangs.is_small & ~gangs.stopping & ~sought[gangs.kind])]
    if not small:
        return
    claimed = {round_.tree.kind(job.claim) for job in round_.snapshot.claimants if job.claim is not None}
    claimed |= {round_.tree.kind(claim.placement) for claim in round_.claims if claim.placement is not None}
    for gang in sorted(small, key=lambda gang: (-gang.facts.priority, gang.placed_ms, gang.facts.job)):
        kind = round_.tree.kind(gang.placement)
        if kind not in round_.kept.waited | claimed and round_.victims.may_change(gang):
            _grow(gang, kind, round_)


def _grow(gang: RunningJob, kind: str, round_: Round) -> None:
    shape, have = gang.facts.shape, len(gang.placement.slices)
    least = min(shape.num_nodes, have + max(1, -(-have // GROWS_BY)))
    lost = lost_ms(gang, round_.snapshot.now_ms)
    if (shape.num_nodes - have) * shape.request.count * PAYS_BACK_MS <= lost:
        return
    most = have + _admitted(gang, kind, shape.num_nodes - have, round_)
    found = _larger(gang, replace(shape, min_nodes=least, num_nodes=most), kind, round_) if most >= least else None
    if found is None or (found.world_size - gang.placement.world_size) * PAYS_BACK_MS <= lost:
        return
    own = {part.node for part in gang.placement.slices}
    round_.fleet.hold(shape, Placement(tuple(part for part in found.slices if part.node not in own)))
    resize(gang, Evict(gang.facts.job, gang.attempt, gang.facts.job, "grow", lost, found), round_)


def _admitted(gang: RunningJob, kind: str, num_nodes: int, round_: Round) -> int:
    """How many nodes more its queue may have, of so many."""
    shape = gang.facts.shape
    more = range(max(1, shape.group), num_nodes + 1, max(1, shape.group))
    refused = bisect_left(more, True, key=lambda num: not round_.tree.admit(gang.facts, kind, shape.request.count * num).ok)
    return more[refused - 1] if refused else 0


def _larger(gang: RunningJob, shape: Shape, kind: str, round_: Round) -> Placement | None:
    """Its own nodes and more beside them, or where tiers say how it must lie, wherever that is."""
    job, fleet = PendingJob(gang.facts), round_.fleet
    own = [fleet.ground.row.get(part.node, -1) for part in gang.placement.slices]
    if -1 in own or not fleet.ground.schedulable[own].all():
        return None
    base = round_.kept.free(job, kind)
    if shape.within is None and shape.group <= 1:
        more = replace(shape, num_nodes=shape.num_nodes - len(own), min_nodes=shape.min_nodes - len(own))
        others = base.copy()
        others[own] = 0
        rows = fit(more, kind, fleet, others)
        if rows is None:
            return None
        return Placement((*gang.placement.slices, *(fleet.slice_of(shape.request, kind, int(row)) for row in rows)))
    trial = fleet.copy()
    trial.give_back(gang.facts.shape, gang.placement)
    rows = fit(shape, kind, trial, np.where(round_.kept.open(job, kind), trial.free[kind], base))
    if rows is None:
        return None
    held = {part.node: part for part in gang.placement.slices}
    found = trial.take(shape, kind, [int(row) for row in rows]).slices
    return Placement(tuple(held.get(part.node, part) for part in found))  # on its own nodes nothing else is held for it
