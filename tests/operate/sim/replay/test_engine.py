"""The event-driven replay: what a trace does on a small fleet under the real scheduler, by hand-made traces whose outcome is
known."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.errors import Bug
from phalanx.core.ids import NodeId
from phalanx.core.policy import Booking, Budget, Cells, Policy, Preemption, Queue
from phalanx.core.units import utc_ms
from phalanx.decide.scheduler import Evict, NodeFacts, Plan, Snapshot, Start
from phalanx.operate.sim.replay.cluster import cluster_of
from phalanx.operate.sim.replay.costs import FREE, Costs
from phalanx.operate.sim.replay.engine import Replay, Setup
from phalanx.operate.sim.replay.fleet import SimFleet
from phalanx.operate.sim.replay.gangs import Limits
from phalanx.operate.sim.replay.outcome import Outcome
from phalanx.operate.sim.replay.simulated import deciding
from phalanx.operate.sim.traces.trace import Trace, TraceJob
from tests.drawn import examples

MINUTE = 60_000
EXACT = Setup(costs=FREE, interval_ms=1)


def test_a_job_that_fits_starts_at_once_and_runs_as_long_as_the_trace_says() -> None:
    outcome = replayed([job("a", 5, 10, 8)], "H100:8x1")
    (life,) = outcome.lives
    assert (life.started_ms, life.ended_ms, life.wait_ms, life.jct_ms) == (0, 10 * MINUTE, 0, 10 * MINUTE)
    assert outcome.ledger == {"productive": 8000 * 10 * MINUTE}


def test_jobs_wait_for_devices_and_idle_time_is_booked_under_why() -> None:
    """Six devices are held, two idle; the gang of eight in line has to wait for the six."""
    outcome = replayed([job("a", 0, 10, 6), job("b", 2, 5, 8)], "H100:8x1")
    assert [life.wait_ms for life in outcome.lives] == [0, 8 * MINUTE]
    assert outcome.ledger == {
        "productive": 1000 * MINUTE * (6 * 10 + 8 * 5),
        "idle": 2000 * 2 * MINUTE,
        "idle_waiting_reservation": 2000 * 8 * MINUTE,
    }


def test_enough_free_devices_in_the_wrong_shapes_are_geometry() -> None:
    """Each node has three of eight free: six in all, and the gang of four needs them on one."""
    outcome = replayed([job("a", 0, 10, 5), job("b", 0, 10, 5), job("c", 2, 5, 4)], "H100:8x2")
    assert outcome.ledger["idle_waiting_geometry"] == 6000 * 8 * MINUTE
    assert "idle_waiting_reservation" not in outcome.ledger


def test_what_a_quota_leaves_free_is_quota() -> None:
    """Its queue may have four of the eight, and borrows none."""
    policy = Policy(queues={"a": Queue(quota={"H100": 4}, borrow=False)})
    jobs = [job("a", 0, 10, 4, tenant="a"), job("b", 2, 5, 4, tenant="a")]
    outcome = replayed(jobs, "H100:8x1", replace(EXACT, policy=policy))
    assert outcome.ledger["idle_waiting_quota"] == 4000 * 8 * MINUTE
    assert not {"idle_waiting_geometry", "idle_waiting_reservation"} & set(outcome.ledger)


def test_decisions_are_made_on_the_grid_of_the_interval() -> None:
    outcome = replayed([job("a", 0, 1, 8), job("b", 0.5, 1, 8)], "H100:8x1", replace(EXACT, interval_ms=45_000))
    assert [life.started_ms for life in outcome.lives] == [0, 90_000]
    assert outcome.ledger["idle"] == 8000 * 30_000


def test_a_job_larger_than_the_cluster_is_named_and_the_others_run() -> None:
    outcome = replayed([job("big", 0, 1, 32), job("odd", 0, 1, 8, types=("B200",)), job("small", 0, 1, 8)], "H100:8x2")
    big, odd, small = outcome.lives
    assert "never fits" in big.never
    assert "never fits" in odd.never
    assert small.ended_ms == MINUTE
    assert big.started_ms is None


def test_the_start_is_inside_the_trace_time_and_shown_apart() -> None:
    outcome = replayed([job("a", 0, 10, 8)], "H100:8x1", replace(EXACT, costs=Costs(start_ms=30_000)))
    assert outcome.lives[0].jct_ms == 10 * MINUTE
    assert outcome.ledger == {"startup": 8000 * 30_000, "productive": 8000 * (10 * MINUTE - 30_000)}


def test_blind_lets_short_ones_pass_a_long_one_and_is_told_no_run_time() -> None:
    """The first of the short ones says how long they are; the long one goes on from what it saved."""
    jobs = [job("long", 0, 6000, 8), *(job(f"short-{number}", 60 + number, 10, 8) for number in range(6))]
    setup = Setup(policy=Policy(order="blind"), limits=Limits("none"))
    outcome = replayed(jobs, "H100:8x1", setup)
    long, *short = outcome.lives
    assert set(outcome.evictions) == {"order"} and 0 < long.evictions <= outcome.evictions["order"] <= len(jobs)
    assert all(life.wait_ms is not None and life.wait_ms < 600 * MINUTE for life in short)
    assert long.ended_ms == max(life.ended_ms or 0 for life in outcome.lives)
    plain = replayed(jobs, "H100:8x1", replace(setup, policy=Policy()))
    assert sum(life.jct_ms or 0 for life in outcome.lives) < 0.4 * sum(life.jct_ms or 0 for life in plain.lives)


def test_a_higher_class_takes_the_devices_of_a_lower_one_which_goes_on_from_what_it_saved() -> None:
    """low runs 10 of 60 minutes, is ended for high within 10 s, and runs the other 50 after a restart of a minute."""
    jobs = [job("low", 0, 60, 8, priority=10), job("high", 10, 30, 8, priority=90)]
    outcome = replayed(jobs, "H100:8x1", replace(EXACT, costs=Costs(start_ms=0, release_ms=10_000, restart_ms=MINUTE)))
    low, high = outcome.lives
    assert (low.evictions, high.evictions) == (1, 0)
    assert high.started_ms == 10 * MINUTE + 10_000
    assert low.ended_ms == 10_000 + (10 + 30 + 1 + 50) * MINUTE
    assert outcome.ledger == {
        "productive": 8000 * 90 * MINUTE, "draining": 8000 * 10_000, "restart": 8000 * MINUTE,
    }  # fmt: skip
    assert sum(outcome.evictions.values()) == 1


def test_a_gang_that_saves_nothing_when_it_is_ended_does_again_what_came_after_its_checkpoint() -> None:
    costs = Costs(start_ms=0, release_ms=0, restart_ms=0, checkpoint_ms=8 * MINUTE, saves=False)
    jobs = [job("low", 0, 60, 8, priority=10), job("high", 10, 30, 8, priority=90)]
    outcome = replayed(jobs, "H100:8x1", replace(EXACT, costs=costs))
    assert outcome.ledger == {"productive": 8000 * 90 * MINUTE, "recompute": 8000 * 2 * MINUTE}
    assert outcome.lives[0].ended_ms == 92 * MINUTE


@pytest.mark.parametrize(("first_min", "ended"), [(10, {}), (60, {"priority": 1})])
def test_a_gang_that_borrows_a_cell_is_safe_there_once_its_turn_has_come(first_min: int, ended: dict[str, int]) -> None:
    """`b` borrows the other node while `a` has the queue's own one; when `a` is done, that node is its queue's own."""
    policy = Policy(queues={"q": Queue(cells=Cells(type="H100", count=1))})
    jobs = [job("a", 0, first_min, 8, tenant="q"), job("b", 1, 40, 8, tenant="q")]
    jobs += [job("c", 15, 60, 8, priority=90), job("d", 16, 10, 8, priority=90)]
    outcome = replayed(jobs, "H100:8x2", replace(EXACT, policy=policy))
    assert dict(outcome.evictions) == ended
    assert [life.evictions for life in outcome.lives[:2]] == [0, len(ended)]


def test_a_failed_node_ends_its_gang_alone_and_the_gang_starts_again_elsewhere() -> None:
    costs = Costs(start_ms=0, restart_ms=MINUTE, checkpoint_ms=MINUTE, mtbf_ms=300 * MINUTE, repair_ms=60 * MINUTE)
    outcome = replayed([job(name, 0, 600, 8) for name in "abc"], "H100:8x4", replace(EXACT, costs=costs, seed=3))
    failures = sum(life.failures for life in outcome.lives)
    assert failures > 0
    assert all(life.ended_ms is not None and life.attempts == life.failures + 1 for life in outcome.lives)
    assert outcome.ledger["restart"] <= 8000 * MINUTE * failures
    assert outcome.ledger["unhealthy"] > 0
    assert outcome.ledger["productive"] == 3 * 8000 * 600 * MINUTE


def test_the_same_seed_is_the_same_history_and_another_one_another() -> None:
    jobs = [job(str(number), number, 50 + number, 1 + number % 9, tenant="ab"[number % 2]) for number in range(30)]
    costs = Costs(mtbf_ms=200 * MINUTE, repair_ms=30 * MINUTE)
    first, again, other = (replayed(jobs, "H100:8x3", replace(EXACT, costs=costs, seed=seed)) for seed in (1, 1, 2))
    assert (first.starts, first.ledger) == (again.starts, again.ledger)
    assert (first.starts, first.ledger) != (other.starts, other.ledger)


def test_shares_of_one_device_run_beside_each_other() -> None:
    outcome = replayed([job(str(number), 0, 10, 1, milli=500) for number in range(3)], "H100:1x1")
    assert sorted(life.wait_ms or 0 for life in outcome.lives) == [0, 0, 10 * MINUTE]
    assert outcome.ledger["productive"] == 3 * 500 * 10 * MINUTE


def test_tenants_shares_are_weighed_by_the_policy() -> None:
    """Both want everything all the time; b has three times the weight."""
    policy = Policy(queues={"a": Queue(weight=1.0), "b": Queue(weight=3.0)})
    jobs = [job(f"{tenant}{number}", 0, 30, 1, tenant=tenant) for number in range(64) for tenant in "ab"]
    outcome = replayed(jobs, "H100:8x1", replace(EXACT, policy=policy))
    assert outcome.shares["b"].weight == 3.0
    first = [outcome.lives[index].job.tenant for _, index in outcome.starts[:64]]
    assert first.count("b") == pytest.approx(48, abs=8)


def test_estimates_come_from_finished_jobs_of_the_tenant_and_end_nobody() -> None:
    jobs = [job(str(number), number * 20, 10 + number % 3, 8) for number in range(40)] + [job("long", 820, 500, 8)]
    limits: list[int | None] = []

    def watching(snapshot: Snapshot) -> Plan:
        limits.extend(one.facts.limit_ms for one in snapshot.pending)
        return decide(snapshot)

    decide = deciding()
    nodes = cluster_of("H100:8x1", TRACE)
    outcome = Replay(Trace.of("t", jobs), nodes, replace(EXACT, limits=Limits("estimate")), watching).run()
    assert limits[0] is None
    assert limits[-1] == 12 * MINUTE
    assert outcome.lives[-1].jct_ms is not None
    assert outcome.lives[-1].jct_ms >= 500 * MINUTE


def test_predicted_starts_are_kept_with_what_came_of_them() -> None:
    jobs = [job(str(number), number, 60, 8) for number in range(6)]
    outcome = replayed(jobs, "H100:8x1", replace(EXACT, limits=Limits("exact")))
    told = [life.eta for life in outcome.lives]
    assert told[0] is None
    assert all(eta is not None and eta.low_ms <= eta.high_ms for eta in told[1:])


def test_a_device_that_is_given_twice_is_a_bug() -> None:
    """The fleet is the witness against the scheduler."""
    fleet = SimFleet(cluster_of("H100:2x1", TRACE))
    placement = Placement((NodeSlice(NodeId("h100-00001"), (0,)),))
    fleet.take(placement, 0, 0)
    with pytest.raises(Bug, match="h100-00001 device 0"):
        fleet.take(placement, 0, 0)


def test_an_elastic_gang_that_is_shrunk_goes_on_more_slowly() -> None:
    """Half of its devices do half of its work; the plan that shrinks it is made by hand."""
    whole = Placement((NodeSlice(NodeId("h100-00001"), (0, 1)),))
    half = Placement((NodeSlice(NodeId("h100-00001"), (0,)),))

    def decide(snapshot: Snapshot) -> Plan:
        if snapshot.running:
            gang = snapshot.running[0]
            if gang.placement == whole and not gang.stopping and len(snapshot.pending) == 1:
                return Plan((), (Evict(gang.facts.job, gang.attempt, gang.facts.job, "shrink", 0, half),))
            return Plan(())
        return Plan(tuple(Start(one.facts.job, one.claim or whole) for one in snapshot.pending if one.facts.job == "job-1"))

    trace = Trace.of("t", [job("a", 0, 60, 2), job("b", 30, 1, 1)])
    outcome = Replay(trace, cluster_of("H100:2x1", TRACE), replace(EXACT, predicts=False), decide).run()
    assert outcome.lives[0].ended_ms == (30 + 60) * MINUTE
    assert outcome.lives[1].never == "did not start though nothing else ran"


HOUR = 60 * MINUTE
TUESDAY = utc_ms("2026-12-01T00:00Z")


def budget_starts(budget: Budget, parent: str = "") -> tuple[Outcome, list[int | None]]:
    """When three jobs start, in hours: one uses 8 GPU-hours of H100 for 23.92 USD on the first day, one of one GPU-hour comes then,
    and one at one o'clock on the second day."""
    jobs = [job("a", 0, 120, 4, tenant="a"), job("b", 120, 60, 1, tenant="a"), job("c", 25 * 60, 60, 1, tenant="a")]
    queues = {"a": Queue(parent=parent), parent: Queue(budget=budget)} if parent else {"a": Queue(budget=budget)}
    outcome = replayed(jobs, "H100:8x2", Setup(policy=Policy(queues=queues), costs=FREE, start_ms=TUESDAY))
    return outcome, [None if life.started_ms is None else life.started_ms // HOUR for life in outcome.lives]


@pytest.mark.parametrize("parent", ["", "above"])
@pytest.mark.parametrize(
    ("budget", "starts"),
    [
        (Budget(gpu_hours=5, period="day"), [0, 24, 25]),
        (Budget(gpu_hours=5, period="week"), [0, 6 * 24, 6 * 24]),
        (Budget(gpu_hours=5, period="month"), [0, 31 * 24, 31 * 24]),
        (Budget(gpu_hours=5, period="total"), [0, None, None]),
        (Budget(gpu_hours=9, period="day"), [0, 2, 25]),
        (Budget(money=1, period="day"), [0, 24, 48]),
        (Budget(money=23.92, period="total"), [0, None, None]),
        (Budget(money=23.93, period="total"), [0, 2, None]),
        (Budget(money=1, period="total", at="warn"), [0, 2, 25]),
    ],
)
def test_budgets_begin_anew_with_their_period_and_count_money(budget: Budget, starts: list[int | None], parent: str) -> None:
    outcome, found = budget_starts(budget, parent)
    assert found == starts
    for life in outcome.lives:
        assert bool(life.never) == (life.started_ms is None)
        assert life.fits, "it waits for a budget, not for a larger cluster"


def test_who_waits_for_a_budget_for_ever_is_told_so_without_waiting_for_it() -> None:
    outcome, _ = budget_starts(Budget(gpu_hours=5, period="total"))
    assert outcome.lives[1].never == (
        "did not start though nothing else ran: waits for budget: a has spent 8 of 5 GPU-hours"
    )  # fmt: skip
    assert outcome.ended_ms <= 26 * HOUR, "forty idle days would say nothing of the utilisation"


@pytest.mark.parametrize("hours", [1, 5])
def test_who_borrows_is_ended_once_it_has_run_for_long_enough(hours: int) -> None:
    """Nothing happens then, and decisions have become rare."""
    policy = Policy(queues={"own": Queue(quota={"H100": 8}), "lend": Queue()}, preemption=Preemption(min_runtime=f"{hours}h"))
    jobs = [job("x", 0, 400, 8, tenant="lend"), job("y", 10, 60, 8, tenant="own")]
    outcome = replayed(jobs, "H100:8x1", Setup(policy=policy))
    assert outcome.lives[1].started_ms == hours * HOUR + 10_000
    assert outcome.decisions < 60


def test_what_a_booking_keeps_is_free_when_it_ends() -> None:
    booking = Booking(queue="vip", devices="H100:8", start="2026-11-30T00:00Z", end="2026-12-01T03:07Z")
    booked = Policy(queues={"vip": Queue(), "a": Queue()}, bookings={"demo": booking})
    outcome = replayed([job("x", 10, 60, 8, tenant="a")], "H100:8x1", Setup(policy=booked, start_ms=TUESDAY))
    assert outcome.lives[0].started_ms == (3 * 60 + 7) * MINUTE


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 200), st.integers(1, 100), st.integers(1, 40), st.sampled_from("abc"), st.sampled_from((10, 50, 90))
        ),
        min_size=1,
        max_size=25,
    ),
    st.sampled_from((1, 10_000, 60_000)),
    st.sampled_from((0, 400 * MINUTE)),
    st.booleans(),
)
def test_whatever_happens_work_is_conserved_and_the_ledger_sums_to_capacity(
    rows: list[tuple[int, int, int, str, int]], interval_ms: int, mtbf_ms: int, saves: bool
) -> None:
    """`Ledger.balanced` raises where it does not; every job's own work is productive exactly once."""
    jobs = [TraceJob(str(at), at * MINUTE, ms * MINUTE, devices, tenant, priority=p) for at, ms, devices, tenant, p in rows]
    costs = Costs(mtbf_ms=mtbf_ms, repair_ms=20 * MINUTE, checkpoint_ms=7 * MINUTE, saves=saves)
    outcome = replayed(jobs, "H100:8x4", Setup(costs=costs, interval_ms=interval_ms, seed=len(rows)))
    assert sum(outcome.ledger.values()) == outcome.capacity
    fits = [life for life in outcome.lives if not life.never]
    assert all(life.job.devices > 32 for life in outcome.lives if life.never)
    assert all(life.ended_ms is not None and life.ended_ms >= life.job.submit_ms + life.job.duration_ms for life in fits)
    # Nine devices on nodes of eight are a gang of two by five: rounded up, and held.
    done = sum(outcome.ledger.get(name, 0) for name in ("productive", "startup"))
    least = sum(life.job.devices * 1000 * life.job.duration_ms for life in fits)
    assert least <= done + sum(1000 * life.job.devices * costs.start_ms for life in fits)


TRACE = Trace.of("one", [TraceJob("x", 0, 1, 1)])


def job(
    name: str, at: float, minutes: float, devices: int, *, tenant: str = "default", priority: int = 50, milli: int = 1000,
    types: tuple[str, ...] = (),
) -> TraceJob:  # fmt: skip
    return TraceJob(name, round(at * MINUTE), round(minutes * MINUTE), devices, tenant, priority=priority, milli=milli, types=types)


def replayed(jobs: Sequence[TraceJob], cluster: str, setup: Setup = EXACT) -> Outcome:
    nodes: tuple[NodeFacts, ...] = cluster_of(cluster, TRACE)
    return Replay(Trace.of("t", jobs), nodes, setup, deciding()).run()
