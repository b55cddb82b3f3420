"""The ledger: exact examples of each category, and the laws that hold for any log and any records, absurd ones included."""

from collections.abc import Mapping, Sequence
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.devices import Device, NodeShape, NodeSlice, Placement
from phalanx.core.events import (
    AttemptEnded,
    AttemptPlaced,
    AttemptRunning,
    Event,
    EventBody,
    JobEvicted,
    JobResumed,
    JobRetried,
    JobSubmitted,
    JobWaits,
    NodeAway,
    NodeDrained,
    NodeUndrained,
    NodeUp,
    PartLost,
    PartReleased,
    StopRequested,
)
from phalanx.core.ids import AttemptId, JobId, NodeId, attempt_id
from phalanx.core.reasons import (
    ArrayFull,
    Backoff,
    Behind,
    Dependencies,
    DependencyCycle,
    Geometry,
    Kept,
    MakingRoom,
    NeverFits,
    NoNodes,
    NoRoom,
    OutsideWindow,
    OverBudget,
    OverLimit,
    OverQuota,
    Reason,
)
from phalanx.core.records import StepRecord
from phalanx.core.spec import JobSpec, Kind
from phalanx.core.units import MILLI
from phalanx.record.telemetry.ledger import CATEGORIES, Account, account, cost
from tests.drawn import examples

NODE = NodeId("box")
JOB = JobId("tiny-lm-1")
FIRST, SECOND = attempt_id(JOB, 1), attempt_id(JOB, 2)


def up(node: NodeId = NODE, devices: int = 2, kind: str = "cpu") -> NodeUp:
    shape = NodeShape(node, "127.0.0.1", tuple(Device(index, kind, kind) for index in range(devices)), 2.0, 1, (1, 2))
    return NodeUp(shape, "boot")


def submitted(job: JobId = JOB, kind: Kind = "train", priority: int = 50) -> JobSubmitted:
    return JobSubmitted(job, JobSpec(name="tiny-lm", kind=kind, priority=priority, entrypoint="x"), "", "", "me")


def placed(attempt: AttemptId = FIRST, devices: tuple[int, ...] = (0, 1), job: JobId = JOB) -> AttemptPlaced:
    return AttemptPlaced(job, attempt, Placement((NodeSlice(NODE, devices),)), 1, 1)


def ended(attempt: AttemptId = FIRST, again: bool = False, job: JobId = JOB, ended_ms: int = 0) -> AttemptEnded:
    return AttemptEnded(job, attempt, not again, again, "", (), ended_ms=ended_ms)


def log(*bodies: tuple[int, EventBody]) -> list[Event]:
    return [Event(seq, at_ms, body) for seq, (at_ms, body) in enumerate(bodies, start=1)]


def step(number: int, started: int, end: int, rank: int = 0, data: int = 0, comm: int = 0, save: int = 0) -> StepRecord:
    return StepRecord(
        rank=rank,
        step=number,
        total_steps=9,
        loss=1.0,
        loss_hex="0x1p+0",
        grad_norm=1.0,
        lr=1.0,
        tokens=1,
        tokens_per_s=1.0,
        mfu=0.0,
        started_ms=started,
        ended_ms=end,
        data_wait_ms=data,
        comm_ms=comm,
        checkpoint_ms=save,
    )


def used(result: Account) -> dict[str, int]:
    """Categories with something in them, in device-milliseconds."""
    assert result.balanced
    assert set(result.categories) == set(CATEGORIES)
    return {name: amount // MILLI for name, amount in result.categories.items() if amount}


def test_an_idle_fleet_counts_from_its_first_node_on() -> None:
    result = account(log((100, up())), {}, 0, 1_100)
    assert used(result) == {"idle": 2_000}
    assert result.capacity == 2_000 * MILLI
    assert result.by_type == {"cpu": 2_000 * MILLI}
    assert used(account([], {}, 0, 1_000)) == {}


def test_a_training_run_is_spent_by_its_step_records() -> None:
    events = log((0, up()), (0, submitted()), (1_000, placed()), (1_100, AttemptRunning(JOB, FIRST, ())), (10_000, ended()))
    steps = {
        FIRST: [
            step(1, 3_000, 4_000, data=100, comm=200, save=50),
            step(2, 4_300, 5_300),  # a gap of 300 ms: the loop's own
            step(3, 7_000, 9_000),  # a gap of 1,700 ms: not known
            step(1, 2_000, 9_500, rank=1, comm=500),
        ]
    }
    assert used(account(events, steps, 0, 12_000)) == {
        "idle": 2 * 1_000 + 2 * 2_000,
        "startup": 2_000 + 1_000,
        "data_wait": 100,
        "exposed_communication": 200 + 500,
        "checkpoint_stall": 50,
        "productive": 650 + 300 + 1_000 + 2_000 + 7_000,
        "running_unmeasured": 1_700,
        "draining": 1_000 + 500,
    }


def test_steps_done_again_after_a_failure_are_recompute() -> None:
    events = log(
        (0, up(devices=1)), (0, submitted()), (0, placed(devices=(0,))), (5_000, ended(again=True)),
        (5_200, placed(SECOND, (0,))), (12_000, ended(SECOND)),
    )  # fmt: skip
    steps = {
        FIRST: [step(1, 1_000, 2_000), step(2, 2_000, 3_000), step(3, 3_000, 4_500)],
        SECOND: [step(2, 7_000, 8_000, comm=900), step(3, 8_400, 9_000), step(4, 9_000, 12_000)],
    }
    assert used(account(events, steps, 0, 12_000)) == {
        "startup": 1_000,
        "productive": 3_500 + 3_000,
        "draining": 500,
        "idle": 200,
        "restart": 1_800,
        "recompute": 1_000 + 400 + 600,
    }


def test_what_another_rank_did_before_is_not_recompute() -> None:
    events = log(
        (0, up(devices=1)), (0, submitted()), (0, placed(devices=(0,))), (10, ended(again=True)), (10, placed(SECOND, (0,)))
    )
    steps = {FIRST: [step(1, 0, 10, rank=1)], SECOND: [step(1, 10, 20)]}
    assert used(account(events, steps, 10, 20)) == {"productive": 10}


@pytest.mark.parametrize(
    ("kind", "category"),
    [("batch", "running_unmeasured"), ("service", "service"), ("interactive", "interactive"), ("train", "startup")],
)
def test_what_reports_no_steps_is_booked_by_its_kind(kind: Kind, category: str) -> None:
    events = log((0, up()), (0, submitted(kind=kind)), (0, placed()), (100, AttemptRunning(JOB, FIRST, ())))
    expected = {"startup": 200, category: 1_800} if kind != "train" else {"startup": 2_000}
    assert used(account(events, {}, 0, 1_000)) == expected


def test_a_training_attempt_that_ended_without_a_record_was_not_measured_from_where_it_ran() -> None:
    events = log((0, up()), (0, submitted()), (0, placed()), (100, AttemptRunning(JOB, FIRST, ())), (1_000, ended()))
    assert used(account(events, {}, 0, 1_000)) == {"startup": 200, "running_unmeasured": 1_800}
    never_ran = log((0, up()), (0, submitted()), (0, placed()), (1_000, ended()))
    assert used(account(never_ran, {}, 0, 1_000)) == {"startup": 2_000}
    one_rank = {FIRST: [step(1, 100, 1_000)]}
    assert used(account(events, one_rank, 0, 1_000)) == {"startup": 200, "productive": 900, "running_unmeasured": 900}


@pytest.mark.parametrize("kind", ["batch", "train", "service", "interactive"])
def test_asked_to_stop_is_draining_until_the_end(kind: Kind) -> None:
    events = log(
        (0, up()), (0, submitted(kind=kind)), (0, placed()), (0, AttemptRunning(JOB, FIRST, ())),
        (600, StopRequested(JOB, "cancel", "me")), (900, ended()),
    )  # fmt: skip
    steps = {FIRST: [step(1, 0, 800), step(1, 0, 800, rank=1)]}
    assert account(events, steps, 0, 1_000).balanced
    assert account(events, steps, 600, 900).categories["draining"] == 600 * MILLI
    assert account(events, steps, 0, 600).categories["draining"] == 0


def test_the_tail_of_a_running_attempt_is_not_yet_measured() -> None:
    events = log((0, up(devices=1)), (0, submitted()), (0, placed(devices=(0,))))
    assert used(account(events, {FIRST: [step(1, 100, 500)]}, 0, 800)) == {
        "startup": 100,
        "productive": 400,
        "running_unmeasured": 300,
    }


WAITER, BOSS = JobId("waiter-2"), JobId("boss-3")
NO_ROOM, NEVER, BEHIND = NoRoom(4, 2, 0), NeverFits("devices", "4", "2", "ask for 2"), Behind(JOB, 2)
APART = Geometry(4, 6, 2)


def test_idle_time_is_booked_under_the_reason_of_the_first_in_line() -> None:
    events = log(
        (0, up()),
        (1_000, submitted(WAITER)), (1_000, JobWaits(WAITER, APART)),
        (2_000, submitted(BOSS, priority=90)), (2_000, JobWaits(BOSS, BEHIND)),
        (3_000, StopRequested(BOSS, "cancel", "me")),
        (4_000, placed(attempt_id(WAITER, 1), job=WAITER)), (5_000, ended(attempt_id(WAITER, 1), job=WAITER)),
    )  # fmt: skip
    assert used(account(events, {}, 0, 6_000)) == {
        "idle": 2_000 + 2_000,
        "idle_waiting_geometry": 2_000 + 2_000,
        "idle_waiting_reservation": 2_000,
        "startup": 2_000,
    }


WAITS = [
    ("idle_waiting_geometry", APART),
    ("idle_waiting_geometry", NoRoom(4, 4, 0)),
    ("idle_waiting_reservation", NO_ROOM),
    ("idle_waiting_reservation", NoNodes(1)),
    ("idle_waiting_reservation", BEHIND),
    ("idle_waiting_reservation", Kept("the booking night", None)),
    ("idle_waiting_reservation", MakingRoom((WAITER,), 2)),
    ("idle_waiting_quota", OverQuota("vision", "*", 2, 2, 4, "nobody lends")),
    ("idle_waiting_quota", OverLimit("vision", "*", 2, 2, 4)),
    ("idle_waiting_quota", OverBudget("vision", "USD", 2.0, 2.0, None)),
]
"""Where too few are free for a job, these wait for the rest: only enough in the wrong shapes is geometry."""

BY_ITSELF = [
    NEVER,
    Backoff(1_000, 1, 1_000, "failed"),
    Dependencies((WAITER,)),
    DependencyCycle((JOB, WAITER)),
    ArrayFull("arr-1", 2),
    OutsideWindow("nights", 9_000),
]


@pytest.mark.parametrize(("category", "reason"), WAITS)
def test_idle_time_agrees_with_why_the_first_job_waits(category: str, reason: Reason) -> None:
    events = log((0, up()), (0, submitted()), (0, JobWaits(JOB, reason)))
    assert used(account(events, {}, 0, 10)) == {category: 20}


@pytest.mark.parametrize("reason", BY_ITSELF)
def test_no_device_is_idle_on_account_of_a_job_that_none_would_start(reason: Reason) -> None:
    """Nor does such a job hide what the next one waits for; and one that waited for devices before does so no more."""
    alone = log((0, up()), (0, submitted()), (0, JobWaits(JOB, NO_ROOM)), (5, JobWaits(JOB, reason)))
    assert used(account(alone, {}, 0, 10)) == {"idle_waiting_reservation": 10, "idle": 10}
    before = log(
        (0, up()), (0, submitted(priority=90)), (0, JobWaits(JOB, reason)), (0, submitted(WAITER)), (0, JobWaits(WAITER, APART))
    )
    assert used(account(before, {}, 0, 10)) == {"idle_waiting_geometry": 20}


def test_every_reason_to_wait_is_one_or_the_other() -> None:
    told = [*(reason for _, reason in WAITS), *BY_ITSELF]
    assert {type(reason) for reason in told} == set(get_args(get_args(Reason)[0]))


def share(job: JobId, milli: int, device: int = 0) -> AttemptPlaced:
    return AttemptPlaced(job, attempt_id(job, 1), Placement((NodeSlice(NODE, (device,), milli),)), 1, 1)


def test_a_share_counts_as_its_part_of_the_device_and_the_rest_is_idle() -> None:
    other = JobId("other-2")
    events = log(
        (0, up()), (0, submitted(kind="batch")), (0, submitted(other, "batch")),
        (1_000, share(JOB, 250)), (2_000, share(other, 500)), (4_000, ended()), (5_000, ended(attempt_id(other, 1), job=other)),
    )  # fmt: skip
    whole = account(events, {}, 0, 10_000)
    assert whole.capacity == 20_000 * MILLI
    assert used(whole)["idle"] == 20_000 - 750 - 1_500
    assert used(account(events, {}, 0, 10_000, JOB)) == {"startup": 750}
    assert account(events, {}, 0, 10_000, other).capacity == 3_000 * 500
    assert used(account(events, {}, 3_000, 4_000)) == {"startup": 750, "idle": 1_250}


def test_more_of_a_device_than_there_is_is_booked_to_the_first() -> None:
    two, three = JobId("other-2"), JobId("third-3")
    events = log(
        (0, up(devices=1)), (0, share(JOB, 600)), (0, share(two, 600)), (1_000, ended()),
        (2_000, AttemptPlaced(three, attempt_id(three, 1), Placement((NodeSlice(NODE, (0,)),)), 1, 1)),
        (3_000, ended(attempt_id(two, 1), job=two)),
    )  # fmt: skip
    found = [account(events, {}, 0, 4_000, job).capacity for job in (JOB, two, three)]
    assert found == [600 * 1_000, 400 * 1_000 + 600 * 2_000, 400 * 1_000 + 1_000 * 1_000]
    assert account(events, {}, 0, 4_000).capacity == 4_000 * MILLI
    assert account(events, {}, 0, 4_000).balanced


def test_an_evicted_gang_drains_from_the_moment_it_is_asked() -> None:
    events = log(
        (0, up(devices=1)), (0, submitted(kind="batch")), (0, placed(devices=(0,))), (1_000, AttemptRunning(JOB, FIRST, ())),
        (3_000, JobEvicted(JOB, FIRST, JobId("high-2"), "priority", 5)), (4_000, ended(again=True)),
    )  # fmt: skip
    assert used(account(events, {}, 0, 4_000)) == {"startup": 1_000, "running_unmeasured": 2_000, "draining": 1_000}


def test_a_free_node_that_is_away_is_unhealthy_and_a_held_one_stays_with_its_attempt() -> None:
    events = log(
        (0, up()), (0, submitted(kind="batch")), (0, placed(devices=(0,))), (0, AttemptRunning(JOB, FIRST, ())),
        (100, NodeAway(NODE)), (400, up()),
    )  # fmt: skip
    assert used(account(events, {}, 0, 1_000)) == {"running_unmeasured": 1_000, "unhealthy": 300, "idle": 700}


def test_a_drained_node_is_reserved_where_it_is_free_and_there() -> None:
    """Somebody keeps it free: neither idle nor broken. What runs there runs on, and a node that is away is unhealthy first."""
    waits = (0, submitted(WAITER)), (0, JobWaits(WAITER, NO_ROOM))
    events = log(
        (0, up()), (0, submitted(kind="batch")), (0, placed(devices=(0,))), (0, AttemptRunning(JOB, FIRST, ())), *waits,
        (100, NodeDrained(NODE, "disk", "me")), (200, NodeDrained(NODE, "the other disk", "me")),
        (300, NodeAway(NODE)), (500, up()), (600, ended()), (900, NodeUndrained(NODE, "me")), (950, NodeUndrained(NODE, "me")),
    )  # fmt: skip
    assert used(account(events, {}, 0, 1_000)) == {
        "running_unmeasured": 600,
        "idle_waiting_reservation": 100 + 2 * 100,
        "reserved": 200 + 100 + 2 * 300,
        "unhealthy": 200,
    }
    for_ever = log((0, up()), (100, NodeDrained(NODE, "disk", "me")))
    assert used(account(for_ever, {}, 0, 1_000)) == {"idle": 200, "reserved": 1_800}


def test_from_the_loss_of_a_node_on_a_gang_drains_and_then_the_node_is_unhealthy_until_it_is_heard() -> None:
    events = log(
        (0, up()), (0, submitted(kind="batch")), (0, placed()), (0, AttemptRunning(JOB, FIRST, ())), (100, NodeAway(NODE)),
        (200, PartLost(JOB, FIRST, NODE, "its lease ended")), (300, ended(again=True)), (700, up()),
    )  # fmt: skip
    assert used(account(events, {}, 0, 1_000)) == {
        "running_unmeasured": 2 * 200,
        "draining": 2 * 100,
        "unhealthy": 2 * 400,
        "idle": 2 * 300,
    }
    steps = {FIRST: [step(1, 0, 800), step(1, 0, 800, rank=1)]}
    assert account(events, steps, 200, 300).categories["draining"] == 200 * MILLI
    assert account(events, {}, 0, 1_000, job=JOB).capacity == 600 * MILLI


def test_a_gang_that_goes_on_without_a_node_trains_on_and_that_node_is_free() -> None:
    two = NodeId("two")
    over_both = Placement((NodeSlice(NODE, (0,)), NodeSlice(two, (0,))))
    events = log(
        (0, up(devices=1)), (0, up(two, 1)), (0, submitted()), (0, AttemptPlaced(JOB, FIRST, over_both, 1, 1, 2)),
        (0, AttemptRunning(JOB, FIRST, ())), (100, NodeAway(two)), (200, PartLost(JOB, FIRST, two, "its lease ended")),
        (210, PartReleased(JOB, FIRST, two)), (800, ended()), (900, up(two, 1)),
    )  # fmt: skip
    steps = {FIRST: [step(number, 100 * number, 100 * number + 100) for number in range(8)]}
    steps[FIRST] += [step(number, 100 * number, 100 * number + 100, rank=1) for number in range(2)]
    found = used(account(events, steps, 0, 1_000))
    assert found["unhealthy"] == 900 - 210, "held until it is released, and then free, until it is heard"
    assert account(events, steps, 0, 1_000, job=JOB).capacity == (800 + 210) * MILLI
    assert (found["productive"], found["draining"]) == (1_000, 10), "no longer than it was held after its last record"
    assert sum(found.values()) == 2_000
    first_lost = [*events[:-4], *log((200, PartLost(JOB, FIRST, NODE, "its lease ended")), (800, ended()))]
    numbered = [Event(seq, event.at_ms, event.body) for seq, event in enumerate(first_lost, 1)]
    assert used(account(numbered, {}, 0, 800))["draining"] == 2 * 600, "without its first it ends as any"


def test_a_node_that_comes_back_with_another_shape_changes_capacity_from_then_on() -> None:
    events = log((0, up(devices=2)), (100, up(devices=3, kind="H100")), (200, up(devices=1, kind="H100")))
    result = account(events, {}, 0, 300)
    assert result.capacity == (200 + 300 + 100) * MILLI
    assert result.by_type == {"cpu": 200 * MILLI, "H100": 400 * MILLI}


def test_a_hold_ends_when_its_last_rank_was_gone_however_late_that_was_heard() -> None:
    events = log(
        (0, up()), (0, submitted(kind="batch")), (0, placed()), (9_000, NodeAway(NODE)), (10_000, up()),
        (10_000, AttemptRunning(JOB, FIRST, ())), (10_000, ended(again=True, ended_ms=4_000)),
        (10_000, placed(SECOND)),
    )  # fmt: skip
    assert used(account(events, {}, 0, 11_000)) == {
        "startup": 2 * 4_000,
        "idle": 2 * 5_000,
        "unhealthy": 2 * 1_000,
        "restart": 2 * 1_000,
    }
    assert account(events, {}, 3_000, 10_000, job=JOB).capacity == 2 * 1_000 * MILLI
    for said, held in ((-5, 0), (99_000, 20_000)):
        cut = log((0, up()), (0, submitted()), (0, placed()), (10_000, ended(ended_ms=said)))
        assert account(cut, {}, 0, 20_000, job=JOB).capacity == held * MILLI


def test_a_jobs_account_is_its_held_time() -> None:
    other = JobId("other-2")
    events = log(
        (0, up(devices=3)), (0, submitted()), (0, submitted(other, "service")), (100, placed(devices=(0, 1))),
        (200, placed(attempt_id(other, 1), (2,), other)), (1_100, ended()),
    )  # fmt: skip
    mine = account(events, {}, 0, 2_000, job=JOB)
    assert used(mine) == {"startup": 2_000}
    assert mine.capacity == 2_000 * MILLI
    assert used(account(events, {}, 0, 2_000, job=other)) == {"startup": 1_800}
    assert used(account(events, {}, 0, 2_000, job=JobId("none-9"))) == {}


def test_doubled_and_skewed_records_are_cut_to_what_fits() -> None:
    events = log((1_000, up(devices=1)), (1_000, submitted()), (1_000, placed(devices=(0,))), (2_000, ended()))
    records = [
        step(1, -5_000, 1_100),
        step(2, 1_100, 1_300, data=10**6, comm=10**6), step(2, 1_100, 1_300), step(3, 1_200, 1_400, comm=-7),
        step(4, 1_600, 1_500), step(5, 1_900, 99_000), step(6, 50_000, 60_000),
    ]  # fmt: skip
    assert used(account(events, {FIRST: records}, 0, 3_000)) == {
        "productive": 100 + 100 + 500 + 100,
        "data_wait": 200,
        "idle": 1_000,
    }


def test_a_device_given_twice_stays_with_the_first_and_counts_once() -> None:
    other = JobId("other-2")
    events = log(
        (0, up(devices=1)), (0, submitted(kind="service")), (0, submitted(other, "interactive")),
        (0, placed(devices=(0, 0))), (0, AttemptRunning(JOB, FIRST, ())),
        (100, placed(attempt_id(other, 1), (0,), other)), (100, AttemptRunning(other, attempt_id(other, 1), ())),
        (300, ended()), (700, ended(attempt_id(other, 1), job=other)),
    )  # fmt: skip
    assert used(account(events, {}, 0, 1_000)) == {"service": 300, "interactive": 400, "idle": 300}


def test_a_clock_set_back_takes_nothing_back() -> None:
    """What the log says later happened later: time stands still until the clock has caught up."""
    events = log((1_000, up(devices=1)), (2_000, NodeAway(NODE)), (1_500, up(devices=2)))
    assert used(account(events, {}, 0, 3_000)) == {"idle": 1_000 + 2 * 1_000}


def test_cost_needs_a_price_of_every_type_used() -> None:
    prices: Mapping[str, float] = {"H100": 3.0, "cpu": 0.05}
    hour = 3_600_000 * MILLI
    assert cost({"H100": 2 * hour, "cpu": hour}, prices.get) == pytest.approx(6.05)
    assert cost({"H100": hour, "odd": 1}, prices.get) is None
    assert cost({"odd": 0}, prices.get) == 0.0


def test_amounts_beyond_64_bits_are_exact() -> None:
    days = 86_400_000 * 100_000
    result = account(log((0, up(devices=300))), {}, 0, days * 4)
    assert result.capacity == days * 4 * 300 * MILLI > 2**63


# Any log: devices taken twice, nodes nobody knows, ends of what never began, clocks that jump.
NODES = [NodeId("a"), NodeId("b")]
JOBS = [JobId("x-1"), JobId("y-2"), JobId("z-3")]
TIMES = st.integers(0, 3_000)
SLICES = st.builds(
    NodeSlice,
    st.sampled_from([*NODES, NodeId("ghost")]),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from([1000, 1000, 600, 250]),
)


def _body(job: JobId, number: int) -> st.SearchStrategy[EventBody]:
    attempt = attempt_id(job, number)
    placement = st.lists(SLICES, max_size=2).map(lambda parts: Placement(tuple(parts)))
    kinds: st.SearchStrategy[Kind] = st.sampled_from(["train", "train", "batch", "service", "interactive"])
    bodies: list[st.SearchStrategy[EventBody]] = [
        st.builds(up, st.sampled_from(NODES), st.integers(0, 3), st.sampled_from(["cpu", "H100"])),
        st.builds(NodeAway, st.sampled_from(NODES)),
        st.builds(NodeDrained, st.sampled_from(NODES), st.just("disk"), st.just("me")),
        st.builds(NodeUndrained, st.sampled_from(NODES), st.just("me")),
        st.builds(PartLost, st.just(job), st.just(attempt), st.sampled_from(NODES), st.just("gone")),
        st.builds(PartReleased, st.just(job), st.just(attempt), st.sampled_from(NODES)),
        st.sampled_from([JobResumed(job, "me"), JobRetried(job, "me")]),
        st.builds(submitted, st.just(job), kinds, st.integers(0, 2)),
        st.builds(JobWaits, st.just(job), st.sampled_from([NO_ROOM, APART, NEVER, BEHIND, NoNodes(0)])),
        st.builds(AttemptPlaced, st.just(job), st.just(attempt), placement, st.just(1), st.just(1), st.sampled_from([0, 2])),
        st.just(AttemptRunning(job, attempt, ())),
        st.just(StopRequested(job, "cancel", "me")),
        st.builds(ended, st.just(attempt), st.booleans(), st.just(job), st.just(0) | TIMES),
    ]
    return st.one_of(bodies)


BODIES = st.tuples(st.sampled_from(JOBS), st.integers(1, 3)).flatmap(lambda pair: _body(*pair))
SHORT = st.integers(-50, 600)
RECORDS = st.builds(
    lambda number, start, length, rank, phases: step(number, start, start + length, rank, *phases),
    st.integers(1, 4), st.integers(-200, 3_200), st.integers(-20, 1_500), st.integers(0, 3), st.tuples(SHORT, SHORT, SHORT),
)  # fmt: skip
LOGS = st.lists(st.tuples(TIMES, BODIES), max_size=30).map(
    lambda found: log((0, up(NODES[0], 3)), *sorted(found, key=lambda pair: pair[0]))
)
SCRAMBLED = st.lists(st.tuples(TIMES, BODIES), max_size=20).map(lambda found: log(*found))
ATTEMPTS = [attempt_id(job, number) for job in JOBS for number in (1, 2, 3)]
STEPS = st.dictionaries(st.sampled_from(ATTEMPTS), st.lists(RECORDS, max_size=8), max_size=6)
WINDOWS = st.tuples(st.integers(-100, 3_500), st.integers(-100, 3_500), st.integers(-100, 3_500)).map(sorted)


def _plus(one: Account, other: Account) -> dict[str, int]:
    return {name: one.categories[name] + other.categories[name] for name in CATEGORIES}


@settings(max_examples=examples(200), deadline=None)
@given(LOGS | SCRAMBLED, STEPS, WINDOWS)
def test_every_window_balances_and_adjacent_windows_add_up(
    events: list[Event], steps: Mapping[AttemptId, Sequence[StepRecord]], times: list[int]
) -> None:
    since, middle, until = times
    jobs: list[JobId | None] = [None, *JOBS]
    for job in jobs:
        whole = account(events, steps, since, until, job)
        parts = account(events, steps, since, middle, job), account(events, steps, middle, until, job)
        assert whole.balanced
        assert min(whole.categories.values()) >= 0
        assert _plus(*parts) == whole.categories
        assert parts[0].capacity + parts[1].capacity == whole.capacity


@settings(max_examples=examples(80), deadline=None)
@given(LOGS, STEPS, st.sampled_from(ATTEMPTS), st.lists(RECORDS, min_size=1, max_size=4))
def test_late_records_move_time_between_categories_only(
    events: list[Event], steps: dict[AttemptId, list[StepRecord]], attempt: AttemptId, late: list[StepRecord]
) -> None:
    before = account(events, steps, 0, 4_000)
    after = account(events, {**steps, attempt: [*steps.get(attempt, []), *late]}, 0, 4_000)
    assert after.capacity == before.capacity
    assert after.balanced
    free = [name for name in CATEGORIES if name.startswith("idle") or name in ("unhealthy", "reserved", "service", "interactive")]
    assert [after.categories[name] for name in free] == [before.categories[name] for name in free]


def capacity_of(events: Sequence[Event], until: int) -> int:
    """Another way to it: of each node the last shape said counts until the next one."""
    total = 0
    for node in NODES:
        shapes = [
            (event.at_ms, len(event.body.shape.devices))
            for event in events
            if isinstance(event.body, NodeUp) and event.body.shape.node == node
        ]
        ends = [at for at, _ in shapes[1:]] + [until]
        total += sum(count * max(0, min(end, until) - at) for (at, count), end in zip(shapes, ends, strict=False))
    return total * MILLI


@settings(max_examples=examples(60), deadline=None)
@given(LOGS, STEPS, st.integers(0, 4_000))
def test_capacity_is_what_the_nodes_have_whoever_holds_it(
    events: list[Event], steps: dict[AttemptId, list[StepRecord]], until: int
) -> None:
    assert account(events, steps, 0, until).capacity == capacity_of(events, until)


@settings(max_examples=examples(60), deadline=None)
@given(LOGS, STEPS, st.integers(0, 3_200))
def test_jobs_and_free_time_make_up_the_fleet(events: list[Event], steps: dict[AttemptId, list[StepRecord]], until: int) -> None:
    whole = account(events, steps, 0, until)
    parts = [account(events, steps, 0, until, job) for job in JOBS]
    free = sum(amount for name, amount in whole.categories.items() if name.startswith("idle") or name in ("unhealthy", "reserved"))
    assert sum(part.capacity for part in parts) + free == whole.capacity


@settings(max_examples=examples(40), deadline=None)
@given(LOGS, STEPS, st.integers(0, 3_000))
def test_each_device_is_in_one_category_in_any_millisecond(
    events: list[Event], steps: dict[AttemptId, list[StepRecord]], at: int
) -> None:
    """And each thousandth of one, where jobs have shares."""
    result = account(events, steps, at, at + 1)
    assert result.balanced
    placements = [event.body.placement for event in events if isinstance(event.body, AttemptPlaced)]
    if all(part.milli == MILLI for placement in placements for part in placement.slices):
        assert all(amount % MILLI == 0 for amount in result.categories.values())


@settings(max_examples=examples(60), deadline=None)
@given(LOGS, STEPS, st.integers(0, 40))
def test_what_happens_later_changes_nothing_before_it_but_the_tail_of_what_runs(
    events: list[Event], steps: dict[AttemptId, list[StepRecord]], cut: int
) -> None:
    kept = events[: cut + 1]
    until = kept[-1].at_ms
    now, later = account(kept, steps, 0, until), account(events, steps, 0, until)
    assert now.capacity == later.capacity
