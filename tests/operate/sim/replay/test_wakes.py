"""Times at which a replay decides though nothing happens."""

from phalanx.core.devices import DeviceRequest
from phalanx.core.ids import JobId
from phalanx.core.policy import Booking, Budget, Policy, Preemption, Queue
from phalanx.core.units import utc_ms
from phalanx.decide.scheduler import JobFacts, PendingJob, Shape
from phalanx.operate.sim.replay.wakes import Wakes

MINUTE = 60_000
HOUR = 60 * MINUTE
START = utc_ms("2026-12-01T22:00Z")


def waits(priority: int = 50, spot: str = "never", since_ms: int = 0) -> PendingJob:
    shape = Shape(DeviceRequest((), 1), spot=spot)  # type: ignore[arg-type]  # a test's shorthand
    return PendingJob(JobFacts(JobId("a"), shape, priority=priority), since_ms=START + since_ms)


def told(wakes: Wakes, until_ms: int) -> list[int]:
    found, at_ms = [], 0
    while (next_ms := wakes.next_ms(at_ms)) is not None and next_ms <= until_ms:
        at_ms = next_ms
        found.append(at_ms)
    return found


def test_a_policy_without_times_has_none() -> None:
    wakes = Wakes(Policy(), START, evicts=False)
    wakes.started(5)
    wakes.waits(waits())
    assert wakes.next_ms(0) is None


def test_budgets_begin_anew_again_and_again_and_bookings_begin_and_end() -> None:
    budgets = {"a": Queue(budget=Budget(gpu_hours=1, period="day")), "b": Queue(budget=Budget(gpu_hours=1, period="total"))}
    past = Booking(queue="a", devices="H100:8", start="2026-11-01T00:00Z", end="2026-12-01T23:00Z")
    wakes = Wakes(Policy(queues=budgets, bookings={"past": past}), START, evicts=True)
    assert told(wakes, 60 * HOUR) == [HOUR, 2 * HOUR, 26 * HOUR, 50 * HOUR]


def test_gangs_grow_old_and_jobs_late_where_gangs_may_be_ended() -> None:
    """The default policy's class from 75 on has a target of five minutes; one who has waited for exactly that long is in time."""
    for evicts in (True, False):
        wakes = Wakes(Policy(preemption=Preemption(min_runtime="1h")), START, evicts=evicts)
        wakes.started(MINUTE)
        wakes.waits(waits(priority=80, since_ms=2 * MINUTE))
        assert told(wakes, 60 * HOUR) == ([7 * MINUTE + 1, 61 * MINUTE] if evicts else [])


def test_who_prefers_spot_takes_other_nodes_in_the_end() -> None:
    wakes = Wakes(Policy(spot_fallback="20m"), START, evicts=False)
    wakes.waits(waits(spot="prefer", since_ms=MINUTE))
    wakes.waits(waits(spot="allow"))
    assert told(wakes, HOUR) == [21 * MINUTE]
