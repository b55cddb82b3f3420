"""What queues used: decayed, in a budget's period, in money; kept as attempts end, and the same as if it were added up anew."""

import math
from dataclasses import replace

import pytest

from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.events import NodeUp, PolicySet
from phalanx.core.ids import JobId, NodeId
from phalanx.core.policy import Budget, NodeRule, Policy, Queue
from phalanx.core.units import utc_ms
from phalanx.decide.scheduler.snapshot import Usage
from phalanx.operate.control.usage import Period, device_ms, period_of, period_start_ms, usage
from tests.operate.control.control_bench import a_spec, shape
from tests.operate.control.test_snapshots import Story

A = NodeId("a")
ONE, TWO = JobId("tiny-1"), JobId("tiny-2")
DAY_MS = 86_400_000
WHOLE, HALF = Placement((NodeSlice(A, (0, 1)),)), Placement((NodeSlice(A, (2,), 500),))


@pytest.fixture
def story() -> Story:
    story = Story()
    story.at_ms = utc_ms("2026-11-28T12:00Z")  # a Saturday
    return story.then(NodeUp(shape("a", 4), "x"))


def of(story: Story, queue: str = "default") -> Usage:
    return usage(story.world, story.at_ms)[queue]


@pytest.mark.parametrize(
    ("kind", "start"),
    [("day", "2026-11-28T00:00Z"), ("week", "2026-11-23T00:00Z"), ("month", "2026-11-01T00:00Z"), ("total", "1970-01-01T00:00Z")],
)
def test_when_periods_begin(kind: Period, start: str) -> None:
    assert period_start_ms(kind, utc_ms("2026-11-28T12:00Z")) == utc_ms(start)
    assert period_start_ms(kind, utc_ms(start)) == utc_ms(start)


def test_a_share_counts_as_its_part() -> None:
    assert (device_ms(WHOLE, 1_000), device_ms(HALF, 1_000), device_ms(WHOLE, -5)) == (2_000, 500, 0)


def test_what_runs_counts_while_it_runs_and_after(story: Story) -> None:
    story.submit(ONE).place(ONE, WHOLE)
    story.at_ms += 3_600_000
    assert of(story).spent_ms == 7_200_000
    assert of(story).money == pytest.approx(0.1)
    running = of(story)
    story.end(ONE, again=False)
    assert of(story).spent_ms == running.spent_ms
    assert of(story).decayed == pytest.approx(running.decayed)
    assert of(story).money == pytest.approx(running.money)


def test_old_use_counts_half_after_each_half_life(story: Story) -> None:
    story.then(PolicySet(Policy(half_life="1d"), "ada"))
    story.submit(ONE).place(ONE, HALF).end(ONE, again=False, ms=1_000)
    assert of(story).decayed == pytest.approx(500, rel=1e-4)
    story.at_ms += 2 * DAY_MS
    assert of(story).decayed == pytest.approx(125, rel=1e-4)
    story.submit(TWO).place(TWO, HALF).end(TWO, again=False, ms=1_000)
    assert of(story).decayed == pytest.approx(625, rel=1e-3)


def test_a_long_run_counts_by_when_it_ran(story: Story) -> None:
    """The integral: two devices for ever at a half-life of a day come to 2 / ln 2 device-days."""
    story.then(PolicySet(Policy(half_life="1d"), "ada")).submit(ONE).place(ONE, WHOLE)
    story.at_ms += 100 * DAY_MS
    assert of(story).decayed == pytest.approx(2 * DAY_MS / math.log(2))


@pytest.mark.parametrize(("period", "spent_hours"), [("day", 2), ("week", 3), ("month", 3), ("total", 3)])
def test_a_run_over_midnight_counts_in_the_new_day_from_midnight_on(story: Story, period: Period, spent_hours: int) -> None:
    story.then(PolicySet(Policy(queues={"default": Queue(budget=Budget(gpu_hours=1, period=period))}), "ada"))
    story.at_ms = utc_ms("2026-11-28T23:30Z")
    story.submit(ONE).place(ONE, WHOLE)
    story.at_ms = utc_ms("2026-11-29T01:00Z")
    assert of(story).spent_ms == spent_hours * 3_600_000
    story.end(ONE, again=False)
    assert of(story).spent_ms == spent_hours * 3_600_000
    story.at_ms = utc_ms("2027-01-01T00:00Z")
    assert of(story).spent_ms == (spent_hours * 3_600_000 if period == "total" else 0)


def test_the_period_is_that_of_the_nearest_budget_upwards() -> None:
    queues = {
        "lab": Queue(budget=Budget(gpu_hours=1, period="day")),
        "team": Queue(parent="lab"),
        "own": Queue(parent="lab", budget=Budget(gpu_hours=1, period="week")),
    }
    policy = Policy(queues=queues)
    assert [period_of(policy, name) for name in ("lab", "team", "own", "other")] == ["day", "day", "week", "month"]


def test_prices_are_the_policys_else_the_catalogues(story: Story) -> None:
    story.then(PolicySet(Policy(nodes=(NodeRule(match="a", price=4.0),)), "ada"))
    story.submit(ONE).place(ONE, HALF).end(ONE, again=False, ms=1_800_000)
    assert of(story).money == pytest.approx(1.0)


def test_queues_are_counted_apart(story: Story) -> None:
    story.submit(ONE, replace(a_spec(), queue="left")).submit(TWO, replace(a_spec(), queue="right"))
    story.place(ONE, WHOLE).place(TWO, HALF).end(TWO, again=False, ms=1_000)
    assert {queue: one.spent_ms for queue, one in usage(story.world, story.at_ms).items()} == {"left": 2_000, "right": 500}


def test_a_clock_that_is_set_back_makes_nothing_grow(story: Story) -> None:
    story.submit(ONE).place(ONE, WHOLE).end(ONE, again=False, ms=3_600_000)
    before = of(story)
    story.at_ms -= 10 * DAY_MS
    assert of(story) == before
    story.submit(TWO).place(TWO, HALF).end(TWO, again=False, ms=1_000)
    assert before.spent_ms < of(story).spent_ms <= before.spent_ms + 500
    assert before.decayed < of(story).decayed <= before.decayed + 500
