"""Where a queue may have no more, a job of a higher class takes the place of lower ones of that queue: else a limit would turn
priorities round.

Each gang that is ended holds some of what the job gets. So all of them are gone when it starts, and the queue never has too much.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from phalanx.core.devices import Placement
from phalanx.core.ids import NodeId
from phalanx.core.reasons import OverLimit, OverQuota
from phalanx.decide.scheduler.plan import Claim
from phalanx.decide.scheduler.quotas.lines import under
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.room import preemption
from phalanx.decide.scheduler.round import Round
from phalanx.decide.scheduler.snapshot import PendingJob, RunningJob, Shape
from phalanx.decide.scheduler.where.fit import fit
from phalanx.decide.scheduler.where.fleet import Fleet


def hand_over(job: PendingJob, round_: Round) -> Claim | None:
    """The claim of a job that a quota or limit refused, on what lower gangs let go of; None when that does not make it fit."""
    shape = job.facts.shape
    kinds = helped_on(job, round_.eligible(shape), round_)
    if not kinds:
        return None
    smallest = job
    if shape.fewest_nodes < shape.num_nodes:
        smallest = replace(job, facts=replace(job.facts, shape=round_.known.resized(shape, shape.fewest_nodes)))
    offers = [offer for kind in kinds if (offer := _offer(smallest, kind, round_)) is not None]
    return preemption.settle(job, min(offers, key=lambda offer: offer.cost), round_) if offers else None


def helped_on(job: PendingJob, kinds: tuple[str, ...], round_: Round) -> list[str]:
    """Types on which it could make a difference who is ended; for most jobs none, and that is all there is to find out."""
    tree, key = round_.tree, (job.facts.queue, kinds, job.facts.priority)
    if key in round_.known.unhelped:
        return []
    lower = [kind for kind in kinds if round_.victims.lower(job, kind, tree.lines.root)]
    found = [kind for kind in lower if not tree.is_saved(job.facts, kind)]
    if not found:
        round_.known.unhelped.add(key)
    return found


def _offer(job: PendingJob, kind: str, round_: Round) -> preemption.Offer | None:
    victims = round_.victims
    facts, known = job.facts, round_.known.yielding
    amount, class_ = facts.shape.num_devices * facts.shape.request.milli, victims.class_of(facts.priority)
    key = (facts.queue, kind, amount, class_, facts.preemptible)
    if key not in known:
        known[key] = _yielding(job, kind, round_)
    chosen = known[key]
    placement = _placed(job, kind, chosen, round_) if chosen else None
    if placement is None:
        return None
    ending = preemption.ending_on(placement, victims, chosen)
    cost = float(sum(victims.cost[number] for number in chosen))
    return preemption.Offer(kind, cost, tuple((number, "priority") for number in sorted(chosen)), ending, placement)


def _yielding(job: PendingJob, kind: str, round_: Round) -> list[int]:
    """Gangs without which its queue may have the job; none when it may not anyway, or where they are too few."""
    victims, gangs, most = round_.victims, round_.gangs, round_.snapshot.policy.preemption.max_victims
    refusal = round_.tree.refusal(job.facts, kind, job.facts.shape.num_devices)
    if not isinstance(refusal, OverLimit | OverQuota):
        return []
    lower = list(victims.lower(job, kind, round_.tree.lines.queue(refusal.queue))[:most])
    held, least = np.sort(gangs.amount[lower])[::-1], _lacking(refusal, job, kind, round_.tree)
    fewest = int(np.searchsorted(np.cumsum(held), least)) + 1
    are_whole = not gangs.shares[lower].any()
    if fewest > len(lower) or (are_whole and fewest > job.facts.shape.num_devices):  # each has to hold some of what it gets
        return []
    return _enough(job, kind, lower, least, round_)


def _lacking(refusal: OverLimit | OverQuota, job: PendingJob, kind: str, tree: Tree) -> int:
    """Thousandths of devices that gangs of the queue have to let go of at least, to know quickly when that is too much, or too
    little."""
    line, amount = tree.lines.queue(refusal.queue), job.facts.shape.num_devices * job.facts.shape.request.milli
    if isinstance(refusal, OverLimit):
        return amount - (line.limit[refusal.type] - under(line.held, line.limit, refusal.type))
    if line.queue.borrow or refusal.queue != job.facts.queue or refusal.type not in line.quota:
        return 0
    return amount - (line.quota[refusal.type] - under(line.used, line.quota, refusal.type))


def _enough(job: PendingJob, kind: str, lower: Sequence[int], least: int, round_: Round) -> list[int]:
    """Of gangs in that order, those without which its queue may have the job; none when all of them are too few, or more of them
    have to go than the job gets devices. least: thousandths of devices; with less it may not, which need not be asked."""
    let_go = np.cumsum(round_.gangs.amount[lower])
    sizes = range(int(np.searchsorted(let_go, least)) + 1, len(lower) + 1)
    with round_.tree.trial():
        trial = _Trial(job, kind, round_)
        enough = bisect_left(sizes, True, key=lambda size: trial.may_have(lower[:size]))
        chosen = lower[: sizes[enough]] if enough < len(sizes) else []
        needed = _needed(job, chosen, int(let_go[len(chosen) - 1]) - least, trial, round_) if chosen else []
        trial.without([])
    return needed


def _needed(job: PendingJob, chosen: Sequence[int], spare: int, trial: "_Trial", round_: Round) -> list[int]:
    """Of these, the dearest are left alone first. spare: who holds more than so much has to go."""
    cost, gangs, needed, num_sure = round_.victims.cost, round_.gangs, list(chosen), 0
    most = len(chosen) if gangs.shares[needed].any() else job.facts.shape.num_devices
    dear: dict[int, int] = {}  # what of each queue is too much to stay: whoever holds as much of it has to go too
    for number in sorted(chosen, key=lambda number: (-cost[number], number)):
        amount, queue = int(gangs.amount[number]), int(gangs.queue[number])
        fewer = [one for one in needed if one != number]
        if amount <= spare and amount < dear.get(queue, amount + 1):
            if trial.may_have(fewer):
                needed, spare = fewer, spare - amount
                continue
            dear[queue] = amount
        num_sure += 1
        if num_sure > most:
            return []
    return needed


class _Trial:
    """What the queue may have were some gangs gone. Whoever makes one brings all back at the end."""

    def __init__(self, job: PendingJob, kind: str, round_: Round) -> None:
        self._job, self._kind, self._tree, self._gangs = job, kind, round_.tree, round_.gangs
        self._gone = self._of_queue([])

    def may_have(self, gone: Sequence[int]) -> bool:
        self.without(gone)
        return self._tree.refusal(self._job.facts, self._kind, self._job.facts.shape.num_devices) is None

    def without(self, gone: Sequence[int]) -> None:
        """These, and no others."""
        now = self._of_queue(gone)
        for number in np.flatnonzero(now != self._gone):
            self._tree.try_without(self._gangs.queues[number], self._kind, int(now[number] - self._gone[number]))
        self._gone = now

    def _of_queue(self, gone: Sequence[int]) -> NDArray[np.int64]:
        at = np.array(gone, np.intp)
        return np.bincount(self._gangs.queue[at], self._gangs.amount[at], len(self._gangs.queues)).astype(np.int64)


def _placed(job: PendingJob, kind: str, chosen: Sequence[int], round_: Round) -> Placement | None:
    """Where it fits on some of what each of them holds, anywhere or at least on their nodes."""
    shape, gangs = job.facts.shape, [round_.victims.gangs[number] for number in chosen]
    if sum(not gang.facts.shape.request.is_share for gang in gangs) > shape.num_devices:
        return None  # each of those holds other devices
    if not shape.request.is_share and not _may_share_nodes(shape, kind, gangs, round_.fleet):
        return None
    trial = round_.fleet.copy()
    for gang in gangs:
        trial.give_back(gang.facts.shape, gang.placement)
    free = np.where(round_.kept.open(job, kind), trial.free[kind], round_.kept.free(job, kind))
    theirs = np.zeros(len(free), np.bool_)
    row_of = trial.ground.row
    near = [{row_of[part.node] for part in gang.placement.slices if part.node in row_of} for gang in gangs]
    theirs[[row for rows in near for row in rows]] = True
    for where in (free, np.where(theirs, free, 0)):
        found = fit(shape, kind, trial, where, job.avoids)
        rows = [] if found is None else [int(row) for row in found]
        if any(one.isdisjoint(rows) for one in near):  # most often; and devices are dear to name
            continue
        placement = Placement(tuple(trial.slice_of(shape.request, kind, row) for row in rows))
        if all(_overlap(placement, gang.placement) for gang in gangs):
            return placement
    return None


def _may_share_nodes(shape: Shape, kind: str, gangs: Sequence[RunningJob], fleet: Fleet) -> bool:
    """Whether each of them has a node with devices enough for a part of the gang, once all let go: often one has not, and a trial
    is dear."""
    let_go, row_of, free = Counter[NodeId](), fleet.ground.row, fleet.free[kind]
    for gang in gangs:
        for part in gang.placement.slices:
            let_go[part.node] += len(part.devices)
    enough = {node for node, num in let_go.items() if node in row_of and free[row_of[node]] + num >= shape.request.count}
    return all(any(part.node in enough for part in gang.placement.slices) for gang in gangs)


def _overlap(one: Placement, other: Placement) -> bool:
    held = {part.node: part.devices for part in one.slices}
    return any(not set(held.get(part.node, ())).isdisjoint(part.devices) for part in other.slices)
