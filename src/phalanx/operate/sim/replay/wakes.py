"""Times at which nothing happens in a replay and more may be decided than before, since they are known in advance: a live control
plane decides every second, and sees them all."""

from heapq import heapify, heappop, heappush

from phalanx.core.policy import Budget, Policy
from phalanx.core.units import utc_ms
from phalanx.decide.scheduler import PendingJob
from phalanx.decide.scheduler.quotas.budgets import resets_ms
from phalanx.decide.scheduler.targets import late_since


class Wakes:
    """Milliseconds since the start of the trace, which is at `start_ms` (Unix time). evicts: gangs may be ended for others.

    Bookings begin and end, budgets begin anew, gangs are old enough to be ended, jobs have waited for their class's target, or long
    enough for spot nodes."""

    def __init__(self, policy: Policy, start_ms: int, evicts: bool) -> None:
        self._start_ms, self._fallback_ms = start_ms, policy.spot_fallback_ms
        self._steady_ms = policy.preemption.min_runtime_ms if evicts else 0
        self._targets = {priority: -since_ms for priority, since_ms in late_since(policy, 0).items()} if evicts else {}
        self._budgets = [queue.budget for queue in policy.queues.values() if queue.budget is not None]
        times = (utc_ms(time) - start_ms for booking in policy.bookings.values() for time in (booking.start, booking.end))
        self._times = [time for time in times if time > 0]
        heapify(self._times)
        self._renewed(0)

    def started(self, now_ms: int) -> None:
        """A gang has its devices, and may be ended for others once it has run for long enough."""
        if self._steady_ms:
            heappush(self._times, now_ms + self._steady_ms)

    def waits(self, job: PendingJob) -> None:
        """It is in line."""
        since_ms = job.since_ms - self._start_ms
        if target_ms := self._targets.get(job.facts.priority):
            heappush(self._times, since_ms + target_ms + 1)
        if job.facts.shape.spot == "prefer":
            heappush(self._times, since_ms + self._fallback_ms)

    def next_ms(self, after_ms: int) -> int | None:
        """The first one later than that, which never is earlier than the time before."""
        while self._times and self._times[0] <= after_ms:
            if heappop(self._times) == self._renews_ms:
                self._renewed(after_ms)
        return self._times[0] if self._times else None

    def _renewed(self, now_ms: int) -> None:
        """Budgets begin anew; the next time that one does is a time too."""
        times = [at_ms for budget in self._budgets if (at_ms := self._resets_ms(budget, now_ms)) is not None]
        self._renews_ms = min(times, default=None)
        if self._renews_ms is not None:
            heappush(self._times, self._renews_ms)

    def _resets_ms(self, budget: Budget, now_ms: int) -> int | None:
        at_ms = resets_ms(budget, self._start_ms + now_ms)
        return None if at_ms is None else at_ms - self._start_ms
