"""The same trace through `schedule` alone and through the whole control plane with simulated agents."""

from dataclasses import replace

from phalanx.core.policy import Budget, Policy, Queue
from phalanx.operate.sim.replay.cluster import cluster_of
from phalanx.operate.sim.replay.controlled import queue_name, through_control
from phalanx.operate.sim.replay.costs import FREE
from phalanx.operate.sim.replay.engine import Replay, Setup
from phalanx.operate.sim.replay.outcome import Outcome
from phalanx.operate.sim.replay.simulated import deciding
from phalanx.operate.sim.traces.trace import Trace, TraceJob

SECOND = 1_000
SETUP = Setup(costs=FREE, interval_ms=1)


def test_both_start_the_same_jobs_in_the_same_order() -> None:
    """Gangs of several sizes on three nodes, most of which have to wait. Of one tenant: what tenants have had is counted to the
    millisecond, so that the seconds of messages and ticks would change whose turn it is."""
    sizes = (8, 3, 16, 1, 24, 5, 2, 8, 4, 1, 8, 16, 2, 6, 7, 1, 8, 3)
    jobs = [
        TraceJob(f"j{number}", number * 37 * SECOND, (190 + 83 * (number % 7)) * SECOND, devices)
        for number, devices in enumerate(sizes)
    ]
    direct, controlled = both(jobs, "H100:8x3")
    assert [index for _, index in controlled.starts] == [index for _, index in direct.starts]
    for ours, theirs in zip(controlled.lives, direct.lives, strict=True):
        assert ours.wait_ms is not None
        assert theirs.wait_ms is not None
        assert abs(ours.wait_ms - theirs.wait_ms) < 30 * SECOND
    assert sum(controlled.ledger.values()) == controlled.capacity
    assert max(life.wait_ms or 0 for life in direct.lives) > 100 * SECOND


def test_a_job_that_the_control_plane_refuses_is_named_and_the_rest_runs() -> None:
    _, controlled = both([TraceJob("big", 0, SECOND, 64), TraceJob("small", 0, 60 * SECOND, 8)], "H100:8x2")
    big, small = controlled.lives
    assert "largest" in big.never or "fit" in big.never
    assert small.ended_ms is not None
    assert 60 * SECOND <= small.ended_ms <= 70 * SECOND
    assert (big.fits, small.fits) == (False, True)


def test_who_has_no_budget_left_or_no_queue_is_told_so_though_it_would_fit() -> None:
    jobs = [TraceJob(name, at * SECOND, 60 * SECOND, 8, name) for at, name in ((0, "paid"), (90, "paid"), (90, "strange"))]
    setup = replace(SETUP, policy=Policy(queues={"paid": Queue(budget=Budget(money=0.01, period="total"))}))
    trace = Trace.of("t", jobs)
    nodes = cluster_of("H100:8x1", trace)
    for outcome in (Replay(trace, nodes, setup, deciding()).run(), through_control(trace, nodes, setup, lambda done, total: None)):
        first, second, strange = outcome.lives
        assert (first.never, first.fits, second.fits, strange.fits) == ("", True, True, True)
        assert second.never.startswith("did not start though nothing else ran: waits for budget: paid has spent 0.")
    assert strange.never.startswith("queue is 'strange': is not in the policy")


def test_tenants_of_traces_become_names_of_queues() -> None:
    assert queue_name("6214e9") == "6214e9"
    assert queue_name("Group 7/b") == "group-7-b"
    assert queue_name("///") == "default"


def both(jobs: list[TraceJob], cluster: str) -> tuple[Outcome, Outcome]:
    trace = Trace.of("t", jobs)
    nodes = cluster_of(cluster, trace)
    direct = Replay(trace, nodes, SETUP, deciding()).run()
    return direct, through_control(trace, nodes, SETUP, lambda done, total: None)
