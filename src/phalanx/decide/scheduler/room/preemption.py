"""Step 6, whom to end so that a job fits: the cheapest set of whole gangs, in device time that is lost (`search.py`), on the type
on which that is least.

Jobs that reclaim share one large gang's devices, where what others have ended it for leaves enough. Else the rest would go back to
its queue, which comes before them by its share of all types, and a whole gang would be ended again for each of them.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from phalanx.core.devices import Placement
from phalanx.decide.scheduler.plan import Claim, Evict
from phalanx.decide.scheduler.room.search import Search
from phalanx.decide.scheduler.room.victims import Cause, Victims, lost_ms
from phalanx.decide.scheduler.round import Round
from phalanx.decide.scheduler.snapshot import PendingJob, Shape
from phalanx.decide.scheduler.where.fleet import Mask

_TRIES_MAX = 4
"""Times a set is looked for again because one of it turned out to be within a guarantee once the others are ended."""


def make_room(job: PendingJob, kinds: Sequence[str], round_: Round) -> Claim | None:
    """The claim of the job on devices that running gangs are asked to let go of, with the evictions added to the round; None when
    no such set exists or the policy forbids it."""
    bids = [bid for kind in kinds if (bid := _bid(job, kind, round_)) is not None]
    if not bids:
        return None
    best = min(bids, key=lambda bid: bid.cost)  # the first type of equals: the one that the job likes best
    return settle(job, best.offer(round_.victims), round_)


@dataclass(frozen=True, slots=True)
class Offer:
    """Gangs to end, by place, with why; what the job then gets; and who of those that are ending anyway holds some of it."""

    kind: str
    cost: float
    victims: tuple[tuple[int, Cause], ...]
    ending: tuple[int, ...]
    placement: Placement


@dataclass(frozen=True, slots=True)
class _Bid:
    """What an offer on a type would cost; where exactly, is worked out for the best alone."""

    kind: str
    cost: float
    victims: tuple[tuple[int, Cause], ...]
    placed: Callable[[], Placement]

    def offer(self, victims: Victims) -> Offer:
        placement = self.placed()
        ending = ending_on(placement, victims, [number for number, _ in self.victims])
        return Offer(self.kind, self.cost, self.victims, ending, placement)


def _bid(job: PendingJob, kind: str, round_: Round) -> _Bid | None:
    victims = round_.victims
    causes, everybody = victims.causes(job, kind, job.facts.shape.request.count * job.facts.shape.fewest_nodes)
    reclaims = "reclaim" in causes or victims.deserves(job, kind)
    if not (causes or reclaims):
        return None
    allowed = everybody.copy()
    for _ in range(_TRIES_MAX):
        if not (allowed.any() or reclaims):
            return None
        if round_.known.is_in_vain(job, kind, allowed, reclaims, round_.kept):
            return None
        search = Search(job, _as_deserved(job, kind, causes, victims), kind, allowed, round_, reclaims)
        found = search.run()
        if found is None:
            whoever = np.ones_like(allowed) if search.is_enough else allowed
            round_.known.in_vain(job, kind, whoever, reclaims, round_.kept)
            return None
        numbers = found.numbers
        reasons, refused = _reasons(job, kind, numbers, causes, round_)
        if not refused:
            bid = _Bid(kind, float(sum(victims.cost[number] for number in numbers)), reasons, found.placed)
            return bid if numbers or bid.offer(victims).ending else None
        allowed[refused] = False
    return None


def _as_deserved(job: PendingJob, kind: str, causes: dict[Cause, Mask], victims: Victims) -> Shape:
    """An elastic job that reclaims takes no more nodes than its queue deserves: else others would reclaim them in their turn."""
    shape = job.facts.shape
    if causes and "reclaim" not in causes:
        return shape
    sizes = shape.sizes
    deserved = bisect_left(sizes[1:], True, key=lambda num_nodes: not victims.reclaimable(job, kind, num_nodes).any())
    return replace(shape, num_nodes=sizes[deserved])


def _reasons(
    job: PendingJob, kind: str, numbers: Sequence[int], causes: dict[Cause, Mask], round_: Round
) -> tuple[tuple[tuple[int, Cause], ...], list[int]]:
    """Why each of them may be ended; and those that may not, since their queues have no more than their own once the others are
    gone: whichever of them goes last. Else one that is within its queue's own after all would be back at once, at others' cost."""
    victims, given, refused = round_.victims, dict[int, Cause](), list[int]()
    with round_.tree.trial():
        for number in numbers:
            cause = next(cause for cause, mask in causes.items() if mask[number])
            if victims.stays(job, kind, number, cause):
                refused.append(number)
            else:
                given[number] = cause
                victims.give(number)
        for number, cause in given.items():
            victims.take_back(number)
            if victims.stays(job, kind, number, cause):
                refused.append(number)
            victims.give(number)
        for number in given:
            victims.take_back(number)
    return tuple(given.items()), refused


def ending_on(placement: Placement, victims: Victims, numbers: Sequence[int]) -> tuple[int, ...]:
    """Gangs that are ending already and hold some of the placement."""
    return tuple(number for number in victims.ending_on(placement) if number not in numbers)


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
