"""Before the platform goes down: what runs on other nodes is stopped, and nothing new is started."""

import structlog

from phalanx.core.events import StopRequested
from phalanx.core.ids import AttemptId, NodeId
from phalanx.core.states import Pending
from phalanx.core.views import HaltView
from phalanx.operate.control.controller import HALT_MS
from tests.operate.control.control_bench import Bench, a_spec

A, B = NodeId("a"), NodeId("b")


def test_what_runs_elsewhere_is_stopped_before_the_platform_goes_down(bench: Bench) -> None:
    """Only gangs with a part on another node: whoever asks ends its own node's ranks itself."""
    one, two = bench.add("a"), bench.add("b")
    own, other = bench.submit(a_spec("own")), bench.submit(a_spec("other", max_restarts=0))
    bench.tick()
    for agent in (one, two):
        agent.run(next(iter(agent.launches)))
    bench.tick()
    mine, theirs = (A, B) if AttemptId(f"{other}.1") in two.launches else (B, A)
    assert bench.control.halt(mine, "ada") == HaltView(left=(theirs,), busy=True)
    bench.tick(2)
    assert bench.control.halt(mine, "ada") == HaltView(left=(), busy=False)
    assert (bench.state(own), bench.job(other).state, bench.job(other).interruptions) == ("running", Pending(1), 1)
    assert bench.world.attempts[AttemptId(f"{other}.1")].detail == "stopped with the platform"
    assert bench.log(StopRequested) == [StopRequested(other, "down", "ada")]
    bench.tick(3)
    assert bench.state(other) == "pending", "nothing is started while the platform goes down"
    bench.pass_time(HALT_MS + 1, "a", "b")
    assert bench.state(other) == "starting", "it stayed up"


def test_a_node_that_is_away_or_whose_ranks_stay_is_named(bench: Bench) -> None:
    one, two = bench.add("a"), bench.add("b")
    job = bench.submit(a_spec(num_nodes=2))
    bench.tick()
    for agent in (one, two):
        agent.run(AttemptId(f"{job}.1"))
    bench.tick()
    two.deaf = True
    assert bench.control.halt(A, "ada") == HaltView(left=(B,), busy=True)
    bench.tick(2)
    assert bench.control.halt(A, "ada") == HaltView(left=(B,), busy=True)
    bench.pass_time(16_000, "a")
    assert bench.control.halt(A, "ada") == HaltView(left=(B,), busy=False)
    two.end(AttemptId(f"{job}.1"))
    bench.tick(2)
    assert bench.control.halt(A, "ada") == HaltView(left=(), busy=False)


def test_that_nothing_starts_for_a_while_is_in_the_log_once_with_who_asked(bench: Bench) -> None:
    """Where nothing is stopped there is no event that says so; `down` asks twenty times a second."""
    with structlog.testing.capture_logs() as logs:
        assert bench.control.halt(A, "ada") == bench.control.halt(A, "ada") == HaltView(left=(), busy=False)
    assert [(one["event"], one["by"], one["but"]) for one in logs] == [("halted", "ada", A)]
    job = bench.submit(a_spec())
    bench.add("a")
    bench.tick()
    assert bench.state(job) == "pending"
    bench.pass_time(HALT_MS + 1, "a")
    assert bench.state(job) == "starting"
