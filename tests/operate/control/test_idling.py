"""P12 through the real controller: warnings as events and notices, the stop and its words, and what cancels it."""

from dataclasses import replace

import pytest

from phalanx.core import features
from phalanx.core.activity import Signal
from phalanx.core.errors import SpecError
from phalanx.core.events import IdleOver, IdleWarned, StopRequested
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.messages import Activity
from phalanx.core.policy import Policy
from phalanx.core.spec import Notify
from phalanx.core.states import Finished
from phalanx.operate.control import notices
from tests.operate.control.control_bench import Agent, Bench, a_spec

MIN = 60_000
FIRST = AttemptId("tiny-1.1")


def running(bench: Bench, **wishes: object) -> tuple[JobId, Agent]:
    agent = bench.add("a", features=(features.CHANNELS,))
    spec = replace(a_spec(kind="shell"), entrypoint=(), **wishes)  # type: ignore[arg-type] # a test's shorthand
    job = bench.submit(spec)
    bench.tick()
    agent.run(FIRST)
    bench.tick()
    assert bench.state(job) == "running"
    return job, agent


def sits(bench: Bench, minutes: int, **ages: int | None) -> None:
    """So long its node tells, twice a minute, of signals that were so many minutes old at the beginning; None is not known."""
    for half in range(2 * minutes):
        bench.clock.sleep(MIN // 2)
        bench.agents["a"].renew()
        signals = tuple(
            Signal(name, None if age is None else age * MIN + (half + 1) * MIN // 2)  # type: ignore[arg-type] # by name
            for name, age in ages.items()
        )
        bench.control.heard(bench.agents["a"].node, Activity(FIRST, signals))
        bench.tick()


def test_p12_an_idle_shell_is_warned_and_then_stopped_and_says_why(bench: Bench) -> None:
    job, _ = running(bench, notify=Notify(webhook="http://127.0.0.1:1/x", on=("idle", "finished")))
    sits(bench, 24, terminal=0, cpu=0)
    assert bench.log(IdleWarned) == []
    sits(bench, 2, terminal=24, cpu=24)
    (warned,) = bench.log(IdleWarned)
    assert isinstance(warned, IdleWarned)
    assert (warned.left_ms, warned.why) == (5 * MIN, "terminal: 25m 00s ago; cpu: 25m 00s ago")
    assert bench.control.idle_left_ms(FIRST) == 4 * MIN
    sits(bench, 5, terminal=26, cpu=26)
    (stopped,) = bench.log(StopRequested)
    assert isinstance(stopped, StopRequested)
    assert stopped.cause == "idle"
    bench.tick(2)
    state = bench.job(job).state
    assert isinstance(state, Finished)
    assert state.outcome == "cancelled"
    assert state.detail == "idle: terminal: 30m 00s ago; cpu: 30m 00s ago"
    assert told(bench) == ["idle", "finished"]
    bench.check()


def told(bench: Bench) -> list[str]:
    """What its webhook is told of, in order."""
    due = [one for to in notices.receivers(bench.store, 2**60) for one in notices.due(bench.store, to, 2**60, 100)]
    return [str(one.entry["occasion"]) for one in due]


def test_p12_activity_after_the_warning_cancels_it(bench: Bench) -> None:
    job, _ = running(bench)
    sits(bench, 26, terminal=0)
    assert len(bench.log(IdleWarned)) == 1
    sits(bench, 20, terminal=0)
    (over,) = bench.log(IdleOver)
    assert isinstance(over, IdleOver)
    assert over.because == "terminal: 30.0s ago"
    assert bench.control.idle_left_ms(FIRST) is None
    assert bench.state(job) == "running"


def test_p12_a_node_that_says_nothing_more_is_not_taken_for_idle(bench: Bench) -> None:
    job, _ = running(bench)
    sits(bench, 26, terminal=0)
    bench.pass_time(60 * MIN, "a")  # its agent lives, and does not tell
    assert bench.state(job) == "running"
    assert len(bench.log(IdleOver)) == 1


def test_p12_an_unknown_signal_keeps_it_whatever_the_others_say(bench: Bench) -> None:
    job, _ = running(bench)
    sits(bench, 60, terminal=100, gpu=None)
    assert bench.state(job) == "running"
    assert bench.log(IdleWarned) == []


def test_p12_a_restarted_control_plane_warns_anew_before_it_stops(bench: Bench) -> None:
    job, agent = running(bench)
    sits(bench, 27, terminal=0)
    bench.restart()
    bench.clock.sleep(30 * MIN)
    agent.hello()
    bench.tick()
    sits(bench, 4, terminal=57)
    assert bench.state(job) == "running"
    assert len(bench.log(IdleWarned)) == 2
    sits(bench, 3, terminal=61)
    assert bench.job(job).stop == "idle"


def test_other_jobs_and_never_are_never_idle(bench: Bench) -> None:
    job, _ = running(bench, idle_timeout="0")
    sits(bench, 40, terminal=1000)
    assert bench.state(job) == "running"


def test_the_policy_bounds_what_a_job_may_ask_and_what_is_there_already(bench: Bench) -> None:
    job, _ = running(bench)
    bench.control.set_policy(Policy(idle_timeout_max="10m"), "ada")
    for text in ("11m", "0"):
        with pytest.raises(SpecError, match="at most 10m") as refused:
            bench.submit(replace(a_spec("other", kind="notebook"), entrypoint=(), idle_timeout=text))
        assert refused.value.field == "idle_timeout"
    sits(bench, 11, terminal=0)
    assert bench.job(job).stop == "idle"
