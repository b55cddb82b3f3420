"""What queues have used: decayed for the fair share, and by period for budgets. Pure.

Kept with the events, attempt by attempt as they end, so that no tick adds up the log; what still runs is added on top of it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from phalanx.core.devices import WHOLE, Placement
from phalanx.core.ids import AttemptId, NodeId
from phalanx.core.policy import Policy, Queue
from phalanx.decide.scheduler.snapshot import Usage
from phalanx.operate.control.failures import failures_of
from phalanx.operate.control.node_rules import known_of
from phalanx.operate.control.world import AttemptRecord, NodeRecord, QueueUsage, Spent, World

Period = Literal["day", "week", "month", "total"]
PERIODS: Final[tuple[Period, ...]] = ("day", "week", "month", "total")
HOUR_MS: Final = 3_600_000

Rate = tuple[int, float]
"""Of a gang: thousandths of devices, and their price in US dollars an hour."""

RateKey = tuple[AttemptId, tuple[NodeId, ...]]
"""An attempt, and the nodes of which it holds nothing any more: a gang that goes on without one has another rate."""


@dataclass(frozen=True, slots=True)
class _Run:
    """So many devices' worth, in thousandths, from `start_ms` to `end_ms` (Unix time), at `price` US dollars an hour in all."""

    milli: int
    start_ms: int
    end_ms: int
    price: float

    def since(self, since_ms: int) -> tuple[int, float]:
        """Device-milliseconds and money of what of it lies after `since_ms`."""
        lasted_ms = max(0, self.end_ms - max(self.start_ms, since_ms))
        return self.milli * lasted_ms // WHOLE, self.price * lasted_ms / HOUR_MS

    def decayed(self, half_life_ms: int, at_ms: int) -> float:
        """Each of its device-milliseconds counts half for each half-life that it lies before `at_ms`: the integral over the run."""
        if self.end_ms <= self.start_ms:
            return 0.0
        left = _halved(at_ms - self.end_ms, half_life_ms) - _halved(at_ms - self.start_ms, half_life_ms)
        return self.milli / WHOLE * half_life_ms / math.log(2) * left


def device_ms(placement: Placement, lasted_ms: int) -> int:
    """Device-milliseconds of a gang that held its devices for so long; a share of a device counts as its part of one."""
    return _milli(placement) * max(0, lasted_ms) // WHOLE


def after(world: World, queue: str, attempt: AttemptRecord) -> QueueUsage:
    """The queue's usage once the attempt has ended. What it let go of before was counted then."""
    used = after_part(world, queue, attempt)
    return replace(used, failures=used.failures + failures_of(attempt))


def after_part(world: World, queue: str, attempt: AttemptRecord) -> QueueUsage:
    """Once what the attempt holds until its end is not held any more. How often it failed is counted at its own end."""
    milli, price = rate(world, attempt)
    run = _Run(milli, attempt.placed_ms, attempt.ended_ms or attempt.placed_ms, price)
    before = world.usage.get(queue) or QueueUsage(queue=queue, at_ms=run.end_ms)
    at_ms, half_life_ms = max(before.at_ms, run.end_ms), world.policy.half_life_ms
    decayed = before.decayed * _halved(at_ms - before.at_ms, half_life_ms) + run.decayed(half_life_ms, at_ms)
    spent: dict[str, Spent] = {kind: _added(before.spent.get(kind), kind, run) for kind in PERIODS}
    node_ms = before.node_ms + len(attempt.held.slices) * max(0, run.end_ms - run.start_ms)
    return QueueUsage(queue=queue, at_ms=at_ms, decayed=decayed, spent=spent, node_ms=node_ms, failures=before.failures)


def usage(world: World, now_ms: int, rates: dict[RateKey, Rate] | None = None) -> dict[str, Usage]:
    """Of each queue itself, as of now, with what runs. A budget's period is that of the nearest queue upwards that has a budget.

    rates: of running attempts as they were the last time under this policy; brought up to date."""
    rates = {} if rates is None else rates
    runs: dict[str, list[_Run]] = {}
    for job, attempt in world.holding():
        milli, price = rates.get(key := rate_key(attempt)) or rates.setdefault(key, rate(world, attempt))
        runs.setdefault(job.spec.queue, []).append(_Run(milli, attempt.placed_ms, now_ms, price))
    queues = sorted(world.usage.keys() | runs.keys())
    return {queue: _now(world, queue, runs.get(queue, ()), now_ms) for queue in queues}


def _now(world: World, queue: str, runs: Iterable[_Run], now_ms: int) -> Usage:
    known, half_life_ms = world.usage.get(queue), world.policy.half_life_ms
    kind = period_of(world.policy, queue)
    since_ms = period_start_ms(kind, now_ms)
    decayed, spent = 0.0, Spent(since_ms=since_ms)
    if known is not None:
        decayed = known.decayed * _halved(now_ms - known.at_ms, half_life_ms)
        kept = known.spent.get(kind, spent)
        spent = kept if kept.since_ms >= since_ms else spent
    total_ms, money = spent.device_ms, spent.money
    for run in runs:
        decayed += run.decayed(half_life_ms, now_ms)
        ran_ms, cost = run.since(spent.since_ms)
        total_ms, money = total_ms + ran_ms, money + cost
    return Usage(decayed, total_ms, money)


def period_of(policy: Policy, queue: str) -> Period:
    """Of the budget that counts for the queue: its own, or that of the nearest one it is part of; a month where none has one."""
    for name in upwards(policy.queues, queue):
        budget = policy.queues.get(name, Queue()).budget
        if budget is not None:
            return budget.period
    return "month"


def upwards(queues: Mapping[str, Queue], queue: str) -> Iterator[str]:
    """The queue and those that it is part of."""
    seen: set[str] = set()
    while queue and queue not in seen:
        seen.add(queue)
        yield queue
        queue = queues[queue].parent if queue in queues else ""


def period_start_ms(kind: Period, at_ms: int) -> int:
    """When the period began in which `at_ms` lies, in UTC; weeks begin on Monday."""
    day = datetime.fromtimestamp(at_ms / 1000, tz=UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    match kind:
        case "day":
            start = day
        case "week":
            start = day - timedelta(days=day.weekday())
        case "month":
            start = day.replace(day=1)
        case "total":
            return 0
    return int(start.timestamp()) * 1000


def _added(before: Spent | None, kind: Period, run: _Run) -> Spent:
    """A clock that was set back opens no earlier period again."""
    since_ms = period_start_ms(kind, run.end_ms)
    if before is None or before.since_ms < since_ms:
        before = Spent(since_ms=since_ms)
    ran_ms, cost = run.since(before.since_ms)
    return Spent(since_ms=before.since_ms, device_ms=before.device_ms + ran_ms, money=before.money + cost)


def rate_key(attempt: AttemptRecord) -> RateKey:
    return attempt.id, attempt.released


def rate(world: World, attempt: AttemptRecord) -> Rate:
    """As its nodes and the policy are now."""
    prices = (_price(world.policy, world.nodes.get(part.node), part.devices) * part.milli / WHOLE for part in attempt.held.slices)
    return _milli(attempt.held), math.fsum(prices)


def _price(policy: Policy, node: NodeRecord | None, devices: Iterable[int]) -> float:
    """Of whole devices of a node, an hour."""
    if node is None:
        return 0.0
    known, types = known_of(policy, node.shape.node), {device.index: device.type for device in node.shape.devices}
    return sum(known.price_of(types.get(index, "")) for index in devices)


def _milli(placement: Placement) -> int:
    return sum(len(part.devices) * part.milli for part in placement.slices)


def _halved(age_ms: int, half_life_ms: int) -> float:
    """What is left of one after that time. A clock that was set back makes nothing grow."""
    return math.exp2(-max(0, age_ms) / half_life_ms)
