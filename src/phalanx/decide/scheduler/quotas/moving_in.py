"""A tenant's job takes its place in its own cells: on the nodes that were found for it there, whoever else is on them is ended."""

from collections.abc import Iterator
from dataclasses import replace

from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.reasons import OverBudget, OverLimit, Reason
from phalanx.decide.scheduler.plan import Claim, Evict, Start
from phalanx.decide.scheduler.quotas import budgets
from phalanx.decide.scheduler.quotas.homes import Home, Homes
from phalanx.decide.scheduler.room import elastic, preemption
from phalanx.decide.scheduler.room.taking import Taking
from phalanx.decide.scheduler.room.victims import lost_ms
from phalanx.decide.scheduler.round import Round
from phalanx.decide.scheduler.snapshot import PendingJob, RunningJob
from phalanx.decide.scheduler.why.explain import no_room


def move_in(job: PendingJob, home: Home, homes: Homes, round_: Round) -> Start | Claim | Reason:
    """It starts, or gets a claim; or why it has to wait even so."""
    kind = round_.tree.kind(home.placement)
    refusal = _refusal(job, kind, home, round_)
    if refusal is not None:
        return refusal
    found = _Move(job, kind, home, homes, round_).placed()
    if found is None:
        return no_room(job.facts.shape, (kind,), round_.fleet)
    placement, victims, ending = found
    if victims or ending:
        offer = preemption.Offer(kind, 0.0, tuple((number, "reclaim") for number in victims), ending, placement)
        return preemption.settle(job, offer, round_)
    round_.fleet.hold(job.facts.shape, placement)
    round_.tree.use(job.facts, kind, placement.world_size)
    round_.kept.started(job, kind, placement)
    return Start(job.facts.job, placement)


def _refusal(job: PendingJob, kind: str, home: Home, round_: Round) -> OverLimit | OverBudget | None:
    """By a limit or budget above the tenant, of which its own cluster knows nothing. What of its quota the tenant uses elsewhere
    does not count here, and of a limit only what its victims do not leave."""
    milli = job.facts.shape.request.milli
    left = sum(int(round_.gangs.amount[round_.victims.place[name]]) for name in home.victims)
    more = -(-(home.placement.world_size * milli - left) // milli)
    found = round_.tree.refusal(job.facts, kind, more) if more > 0 else None
    if isinstance(found, OverLimit):
        return found
    return budgets.stops(round_.tree.lines.queue(job.facts.queue).path, round_.snapshot.now_ms)


def bring_home(homes: Homes, round_: Round) -> None:
    """Gangs that borrowed until now, and whose turn it is in their tenant's own cells. They start again there, but where what they
    have becomes their tenant's own."""
    victims = round_.victims
    for name, home in homes.of.items():
        gang = round_.running.get(name)
        if gang is None or victims.ending[victims.place[name]]:
            continue
        if home.placement == replace(gang.placement, borrowed=False):
            round_.claims.append(Claim(name, home.placement))
            continue
        job, kind, own = PendingJob(gang.facts), round_.tree.kind(home.placement), victims.place[name]
        found = _Move(job, kind, home, homes, round_).placed()
        if found is None:
            continue
        placement, numbers, _ = found
        now_ms, others = round_.snapshot.now_ms, [victims.gangs[number] for number in numbers if number != own]
        for other in others:
            round_.evictions.append(Evict(other.facts.job, other.attempt, name, "reclaim", lost_ms(other, now_ms)))
            round_.kept.ended(other)
            victims.give(victims.place[other.facts.job])
        victims.asked([other.facts.job for other in others], placement)
        round_.fleet.hold(gang.facts.shape, placement)
        elastic.resize(gang, Evict(name, gang.attempt, name, "home", lost_ms(gang, now_ms), placement), round_)


class _Move:
    """One look for devices on the nodes of a home."""

    def __init__(self, job: PendingJob, kind: str, home: Home, homes: Homes, round_: Round) -> None:
        self._home, self._homes, self._round = home, homes, round_
        self._job, self._mine = job.facts.job, homes.tenant[job.facts.queue]
        self._taking = Taking(job.facts.shape, kind, self._others, round_)

    def placed(self) -> tuple[Placement, list[int], tuple[int, ...]] | None:
        slices = self._home.placement.slices
        for part in slices:
            self._taking.send_away(self._lodgers(part))
        placement = self._taking.placed(slices)
        return None if placement is None else (placement, sorted(self._taking.victims), self._taking.ending)

    def _lodgers(self, part: NodeSlice) -> Iterator[int]:
        """Other tenants' gangs: a cell has one tenant."""
        for number in self._others(part):
            if self._homes.tenant.get(self._gang(number).facts.queue, self._mine) != self._mine:
                yield number

    def _others(self, part: NodeSlice) -> list[int]:
        """Gangs on the node that may be ended for it, the cheapest first."""
        victims = self._round.victims
        if not self._round.snapshot.policy.preemption.reclaim:
            return []
        found = [number for number in victims.on_node(part.node) if self._may_end(number)]
        return sorted(found, key=lambda number: (self._gang(number).facts.job != self._job, victims.cost[number], number))

    def _may_end(self, number: int) -> bool:
        """Of those at home whoever the tenant's own cluster would end, and whoever only borrows: as soon as it is asked."""
        gang = self._gang(number)
        borrows = gang.facts.job not in self._homes.guaranteed and gang.facts.preemptible
        return (borrows or gang.facts.job in self._home.victims) and not self._round.victims.ending[number]

    def _gang(self, number: int) -> RunningJob:
        return self._round.victims.gangs[number]
