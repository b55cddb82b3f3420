"""Predicted starts count only devices that the job may use: none booked for others, spot, spares, others' cells, shut nodes."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from phalanx.core.policy import Booking, Cells, Policy, Queue
from phalanx.decide.scheduler import Plan, schedule
from phalanx.decide.scheduler.plan import Eta
from phalanx.decide.scheduler.snapshot import JobFacts, NodeFacts, PendingJob, RunningJob, Snapshot
from phalanx.decide.scheduler.why.eta import forecasts
from phalanx.decide.scheduler.why.reach import Reaches
from phalanx.decide.scheduler.why.turnover import likely_waits
from tests.decide.scheduler.closed_loop import HOUR, MINUTE, NOW, facts, fleet, gang

UTC_NOW = "1970-01-05T04:00Z"  # NOW
AT_6 = "1970-01-05T06:00Z"
AT_8 = "1970-01-05T08:00Z"
SHUT: tuple[Callable[[NodeFacts], NodeFacts], ...] = (
    lambda node: replace(node, schedulable=False, drained=True),
    lambda node: replace(node, schedulable=False, gone=True),
    lambda node: replace(node, closing_ms=NOW + 9 * HOUR),
)


def booked(devices: int, start: str = UTC_NOW, end: str = AT_8) -> Policy:
    launch = Booking(queue="vip", devices=f"H100:{devices}", start=start, end=end)
    return Policy(bookings={"launch": launch}, queues={"vip": Queue(), "default": Queue()})


def holds(name: str, node: int, ends_in_ms: int | None, count: int = 8, **more: object) -> RunningJob:
    """Devices of a node, from the first on for 'vip', else from the last; it is at its limit then."""
    devices = range(count) if more.get("queue") == "vip" else range(8 - count, 8)
    found = gang(name, (node, devices), priority=50, **more)  # type: ignore[arg-type]
    limit_ms = None if ends_in_ms is None else HOUR + ends_in_ms  # it started an hour ago
    return replace(found, facts=replace(found.facts, limit_ms=limit_ms, expected_ms=limit_ms, preemptible=False))


def world(nodes: tuple[NodeFacts, ...], running: list[RunningJob], *jobs: JobFacts, policy: Policy | None = None) -> Snapshot:
    line = tuple(PendingJob(replace(job, sequence=number)) for number, job in enumerate(jobs))
    return Snapshot(NOW, nodes, tuple(running), line, policy or Policy())


def told(found: Snapshot) -> dict[str, Eta]:
    return {job: forecast.eta for job, forecast in forecasts(found, schedule(found)).items()}


def hours(found: Snapshot, plan: Plan | None = None) -> dict[str, float]:
    """Until each starts after all that are before it."""
    return {job: waits[0] / HOUR for job, waits in likely_waits(found, plan or schedule(found))[0].items()}


def test_nothing_is_expected_before_a_booking_is_over_that_leaves_too_little() -> None:
    """Four of eight are booked; the others come free in half an hour, which is enough for four and never for six."""
    running = [holds("r", 0, HOUR // 2, 4)]
    nodes = fleet(1, held=running)
    after = told(world(nodes, running, facts("six", 6), policy=booked(4)))["six"]
    assert NOW + 4 * HOUR <= after.low_ms <= after.likely_ms <= after.high_ms
    for policy, job in (
        (booked(4), facts("four", 4)),
        (booked(4), facts("six", 6, queue="vip")),
        (booked(4, "1970-01-05T02:00Z", "1970-01-05T03:59Z"), facts("six", 6)),
        (booked(4, AT_6), facts("six", 6, limit_ms=HOUR)),
    ):
        soon = told(world(nodes, running, job, policy=policy))[job.job]
        assert soon.low_ms < NOW + HOUR and soon.likely_ms < NOW + 2 * HOUR, (policy.bookings, job)
    to_come = told(world(nodes, running, facts("six", 6, limit_ms=3 * HOUR), policy=booked(4, AT_6)))["six"]
    assert to_come.low_ms >= NOW + 4 * HOUR, "it would not be done by then"


def test_what_gangs_let_go_of_that_is_booked_for_them_is_not_for_others() -> None:
    """All of the booking is in use, and that ends in an hour; two more of its devices than the booking has come free then."""
    running = [holds("theirs", 0, HOUR, 6, queue="vip"), holds("r", 0, 9 * HOUR, 2)]
    nodes = fleet(1, held=running)
    two, three = (world(nodes, running, facts("next", count), policy=booked(4)) for count in (2, 3))
    assert hours(two)["next"] < 1.4
    assert hours(three)["next"] == pytest.approx(4.0, abs=0.001)
    assert told(three)["next"].high_ms > NOW + 4 * HOUR


def test_at_the_latest_is_after_the_booking_where_what_it_has_now_is_kept_again() -> None:
    """Its gang ends on node 0 in an hour, by its limit, and the booking holds on. Unless as many are free elsewhere by then."""
    running = [holds("theirs", 0, HOUR, queue="vip"), holds("r", 1, None)]
    found = world(fleet(2, held=running), running, facts("head"), policy=booked(8))
    assert told(found)["head"].latest_ms == NOW + 4 * HOUR
    none = told(replace(found, policy=Policy()))["head"]
    assert none.latest_ms == NOW + HOUR
    running[1:] = [holds("r", 1, HOUR)]
    assert told(world(fleet(2, held=running), running, facts("head"), policy=booked(8)))["head"].latest_ms == NOW + HOUR


def test_a_start_that_only_a_booking_bars_is_expected_at_its_end() -> None:
    """Its gang ends a little before it, by its limit."""
    running = [holds("theirs", 0, 4 * HOUR - 4 * MINUTE, 4, queue="vip")]
    found = told(world(fleet(1, held=running), running, facts("six", 6), policy=booked(4)))["six"]
    assert (found.low_ms, found.latest_ms) == (NOW + 4 * HOUR, NOW + 4 * HOUR)
    assert found.high_ms <= NOW + 4 * HOUR + MINUTE


def test_at_the_latest_is_when_the_last_booking_is_over_that_keeps_it() -> None:
    later = Booking(queue="vip", devices="H100:8", start=AT_8, end="1970-01-05T10:00Z")
    policy = replace(booked(8), bookings={**booked(8).bookings, "later": later})
    assert told(world(fleet(1), [], facts("next", 8), policy=booked(8)))["next"].latest_ms == NOW + 4 * HOUR
    assert told(world(fleet(1), [], facts("next", 8), policy=policy))["next"].latest_ms == NOW + 6 * HOUR


def test_spot_nodes_count_for_nobody_who_may_not_use_them() -> None:
    """Idle or not, its start is expected as if they were not there; and who may use them does not stand before it for its node."""
    running = [holds("r", 0, 3 * HOUR)]
    on_demand, *spot = fleet(4, held=running)
    spot = [replace(node, spot=True) for node in spot]
    without = told(world((on_demand,), running, facts("next")))
    assert told(world((on_demand, *spot), running, facts("next"))) == without
    busy = [*running, holds("s", 1, HOUR)]
    allows = facts("spot-1")
    allows = replace(allows, shape=replace(allows.shape, spot="allow"))
    found = world((on_demand, replace(spot[0], free=())), busy, allows, facts("next"))
    assert hours(found)["spot-1"] < 1.4
    assert 2.2 < hours(found)["next"] < 4.0


def test_spares_are_not_counted_on() -> None:
    running = [holds("r", 0, 3 * HOUR)]
    found = world(fleet(2, held=running), running, facts("next"), policy=Policy(spares={"H100": 1}))
    assert told(found) == told(world(fleet(1, held=running), running, facts("next")))


def test_cells_of_others_are_not_counted_on() -> None:
    """One cell comes free in an hour: for whose it is, and for who may be ended on it. All else is held for nine."""
    cells = Cells(type="H100", count=1, tier="node")
    policy = Policy(queues={"a": Queue(cells=cells, borrow=False), "b": Queue(cells=cells), "z": Queue()})
    running = [holds("a-1", 0, 9 * HOUR, queue="a"), holds("b-1", 1, HOUR, queue="b"), holds("z-1", 2, 9 * HOUR, queue="z")]
    for job, is_theirs in (
        (facts("next", queue="a"), False),
        (facts("next", queue="z", preemptible=False), False),
        (facts("next", queue="z"), True),
        (facts("next", queue="b"), True),
    ):
        waits = hours(world(fleet(3, held=running), running, job, policy=policy))["next"]
        assert waits < 1.4 if is_theirs else waits > 8, job


@pytest.mark.parametrize("shut", SHUT)
def test_what_is_let_go_of_on_a_shut_node_is_not_counted_on(shut: Callable[[NodeFacts], NodeFacts]) -> None:
    running = [holds("r-1", 0, HOUR, 4), holds("r-2", 1, 9 * HOUR)]
    first, second = fleet(2, held=running)
    assert hours(world((first, second), running, facts("next")))["next"] < 4, "merely counted"
    away = replace(first, schedulable=False)
    assert hours(world((away, second), running, facts("next", 4)))["next"] < 1.4, "it comes back"
    assert hours(world((shut(first), second), running, facts("next")))["next"] > 8


def test_nodes_without_its_labels_are_not_counted_on() -> None:
    running = [holds("r-1", 0, HOUR), holds("r-2", 1, 9 * HOUR)]
    nodes = [replace(node, labels={"zone": zone}) for node, zone in zip(fleet(2, held=running), "ab", strict=True)]
    job = facts("next")
    there = {zone: replace(job, shape=replace(job.shape, where=(("zone", zone),))) for zone in "ab"}
    near, far = (hours(world(tuple(nodes), running, one))["next"] for one in there.values())
    assert near < 1.4 < 8 < far


def test_jobs_that_may_use_all_are_counted_as_one() -> None:
    found = world(fleet(2), [], facts("one"), facts("two", limit_ms=HOUR, queue="vip"))
    reaches = Reaches(found, schedule(found))
    assert all(reaches.of(job) is reaches.all for job in found.pending)
