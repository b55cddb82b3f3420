"""The ledger and the shares of a replay, kept as it goes on."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from phalanx.core.devices import WHOLE
from phalanx.core.errors import Bug
from phalanx.core.policy import Policy
from phalanx.decide.scheduler import Usage
from phalanx.operate.control.usage import period_of, period_start_ms
from phalanx.operate.sim.replay.outcome import TenantShare
from phalanx.record.telemetry.ledger.categories import (
    CATEGORIES,
    IDLE,
    UNHEALTHY,
)

SAMPLED_MS_MAX: Final = 20 * 60_000
"""What is seen in a sample counts for no longer than this: nobody may have waited for most of the time before it."""


DAY_MS: Final = 86_400_000
_COST_OF_A_DOLLAR: Final = 1_000_000 * WHOLE * 3_600_000


class Ledger:
    """Thousandths of devices times milliseconds, by category. Idle time is booked as the clock moves, held time as attempts end; so
    that both together are the capacity is a check, not a definition."""

    def __init__(self) -> None:
        self._amounts = dict.fromkeys(CATEGORIES, 0)
        self._at_ms = 0
        self.idle = IDLE

    def pass_time(self, now_ms: int, idle_milli: int, down_milli: int) -> None:
        """Up to now so much was idle, and idle on nodes that are away."""
        past_ms, self._at_ms = now_ms - self._at_ms, now_ms
        if past_ms < 0:
            raise Bug("simulated time went back")
        self._amounts[self.idle] += idle_milli * past_ms
        self._amounts[UNHEALTHY] += down_milli * past_ms

    def held(self, category: str, milli: int, ms: int) -> None:
        """An attempt had so many thousandths of devices for so long."""
        if ms < 0:
            raise Bug(f"a negative time is booked as {category}")
        self._amounts[category] += milli * ms

    def balanced(self, capacity_milli: int) -> Mapping[str, int]:
        """The categories that have anything. Raises Bug unless they sum to the capacity."""
        off = sum(self._amounts.values()) - capacity_milli * self._at_ms
        if off:
            raise Bug(f"the ledger is off by {off} milli-device-milliseconds")
        return {name: amount for name, amount in self._amounts.items() if amount}


@dataclass(slots=True)
class _Spent:
    """In its budget's period, which began at `since_ms` (Unix time). milli_ms: thousandths of devices times milliseconds. cost: a
    price as of `SimFleet.price` times milliseconds."""

    since_ms: int = 0
    milli_ms: int = 0
    cost: int = 0


class Tenants:
    """What each queue holds, wants and has had. `usage` is what the scheduler is told. start_ms: Unix time of time 0."""

    def __init__(self, policy: Policy, start_ms: int) -> None:
        self._policy, self._start_ms = policy, start_ms
        self._held: defaultdict[str, int] = defaultdict(int)
        self._prices: defaultdict[str, int] = defaultdict(int)
        self._wanted: defaultdict[str, int] = defaultdict(int)
        self._decayed: defaultdict[str, float] = defaultdict(float)
        self._served: defaultdict[str, int] = defaultdict(int)
        self._spent: defaultdict[str, _Spent] = defaultdict(_Spent)
        self._at_ms = 0
        self._sampled_ms = 0
        self.shares: dict[str, TenantShare] = {}

    def hold(self, queue: str, milli: int, price: int) -> None:
        """More, at a price as of `SimFleet.price`, or less where negative."""
        self._held[queue] += milli
        self._prices[queue] += price

    def want(self, queue: str, milli: int) -> None:
        """Jobs that wait ask for more, or less where negative."""
        self._wanted[queue] += milli

    def pass_time(self, now_ms: int) -> None:
        """Up to now everybody held what they hold."""
        past_ms, self._at_ms = now_ms - self._at_ms, now_ms
        if not past_ms:
            return
        half_ms = self._policy.half_life_ms
        fade = 0.5 ** (past_ms / half_ms)
        gained = (1.0 - fade) * half_ms / 0.6931471805599453  # of one device held all that time, faded as it came in
        for queue, milli in self._held.items():
            self._decayed[queue] = self._decayed[queue] * fade + gained * milli / WHOLE
            self._served[queue] += milli * past_ms
            self._spend(queue, milli, past_ms)

    def usage(self) -> Mapping[str, Usage]:
        return {queue: self._usage(queue, decayed) for queue, decayed in self._decayed.items() if decayed}

    def _usage(self, queue: str, decayed: float) -> Usage:
        spent = self._spent[queue]
        return Usage(decayed, spent.milli_ms // WHOLE, spent.cost / _COST_OF_A_DOLLAR)

    def _spend(self, queue: str, milli: int, past_ms: int) -> None:
        """What of the time that passed lies in the period in which it ends; all periods begin with a day."""
        now_ms, spent = self._start_ms + self._at_ms, self._spent[queue]
        if (now_ms - past_ms) // DAY_MS != now_ms // DAY_MS or not spent.since_ms:
            since_ms = period_start_ms(period_of(self._policy, queue), now_ms)
            if since_ms > spent.since_ms:
                spent = self._spent[queue] = _Spent(since_ms)
            past_ms = min(past_ms, now_ms - since_ms)
        spent.milli_ms += milli * past_ms
        spent.cost += self._prices[queue] * past_ms

    def sample(self, now_ms: int, capacity_milli: int) -> None:
        """Compares what each had since the last sample with its fair share."""
        past_ms, self._sampled_ms = min(now_ms - self._sampled_ms, SAMPLED_MS_MAX), now_ms
        wants = {queue: held + self._wanted[queue] for queue, held in self._held.items() if held + self._wanted[queue]}
        wants |= {queue: wanted for queue, wanted in self._wanted.items() if wanted and queue not in wants}
        fair = fair_shares(wants, {queue: self._weight(queue) for queue in wants}, capacity_milli)
        for queue, share in fair.items():
            told = self.shares.setdefault(queue, TenantShare(self._weight(queue)))
            told.held_ms += self._held[queue] * past_ms / WHOLE
            told.fair_ms += share * past_ms / WHOLE

    def told(self) -> Mapping[str, TenantShare]:
        """What came of it, up to now."""
        for queue, served in self._served.items():
            self.shares.setdefault(queue, TenantShare(self._weight(queue))).served_ms = served // WHOLE
        return self.shares

    def _weight(self, queue: str) -> float:
        known = self._policy.queues.get(queue)
        return known.weight if known else 1.0


def fair_shares(wants: Mapping[str, float], weights: Mapping[str, float], capacity: float) -> dict[str, float]:
    """Weighted max-min: nobody gets more than it wants, and what one leaves is shared by the others."""
    shares: dict[str, float] = {}
    left = capacity
    rest = sum(weights[name] for name in wants)
    for name in sorted(wants, key=lambda one: (wants[one] / weights[one], one)):
        shares[name] = min(wants[name], left * weights[name] / rest if rest > 0 else 0.0)
        left -= shares[name]
        rest -= weights[name]
    return shares
