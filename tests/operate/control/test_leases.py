"""Leases that end: what is given up and what is not, what its ranks may still have, and what becomes of the job."""

from dataclasses import replace

import pytest

from phalanx.core.events import AttemptEnded, AttemptRunning, NodeAway, PartLost
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.messages import Forget, Report, StartRanks, StopRanks
from phalanx.core.records import ModelSaved
from phalanx.core.states import Finished, Paused, Pending
from phalanx.decide.scheduler import schedule
from phalanx.operate.control.leases import LOSS_MARGIN_MS, TICK_GAP_MS
from phalanx.operate.control.views import job_view, why_view
from tests.operate.control.control_bench import LEASE_MS, Agent, Bench, a_spec

FIRST, SECOND = AttemptId("tiny-1.1"), AttemptId("tiny-1.2")
LOSS_MS = LEASE_MS + 10_000 + LOSS_MARGIN_MS
A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def gang(bench: Bench, nodes: str = "ab", **wishes: object) -> tuple[JobId, list[Agent]]:
    """A gang over all of the first two nodes that runs; the others of `nodes` are spare."""
    agents = [bench.add(node) for node in nodes]
    job = bench.submit(a_spec(**{"num_nodes": 2, **wishes}))  # type: ignore[arg-type] # the caller names a_spec's own arguments
    bench.tick()
    for agent in agents[:2]:
        agent.run(FIRST)
    bench.tick()
    assert bench.state(job) == "running"
    return job, agents


def cut(bench: Bench, node: str) -> Agent:
    bench.agents[node].cut = True
    return bench.agents[node]


def back(bench: Bench, node: str) -> Agent:
    """On the network again, over a new connection."""
    agent = bench.agents[node]
    agent.cut = False
    agent.hello()
    return agent


def said(bench: Bench, job: JobId) -> str:
    return why_view(bench.world, bench.job(job), bench.control.waiting).sentence


def test_a_silent_nodes_part_is_lost_when_lease_grace_and_margin_are_over_and_not_before(bench: Bench) -> None:
    job, (one, _, three) = gang(bench, "abc", max_restarts=0)
    cut(bench, "b")
    bench.pass_time(LOSS_MS, "a", "c")
    assert [type(body) for body in bench.log() if isinstance(body, NodeAway | PartLost)] == [NodeAway]
    assert bench.state(job) == "running"
    assert one.got[-1].kind == "start"
    bench.pass_time(1, "a", "c")
    (lost,) = bench.log(PartLost)
    assert lost == PartLost(job, FIRST, B, "its lease ended, nothing was heard of it for 26 s")
    bench.tick(2)
    assert StopRanks(FIRST, 1, 10_000) in one.got, "the gang is broken: what is left of it is stopped"
    (ended,) = bench.log(AttemptEnded)
    assert isinstance(ended, AttemptEnded)
    assert (ended.ok, ended.again, ended.interrupted) == (False, True, True)
    assert ended.detail == "node b was lost: its lease ended, nothing was heard of it for 26 s"
    assert bench.attempt(job).placement.slices[0].node == "a"
    assert [part.node for part in bench.attempt(job).placement.slices] == [A, C], "it starts again on what is left, at once"
    assert (one.starts, three.starts) == ([FIRST, SECOND], [SECOND])
    assert bench.job(job).interruptions == 1
    view = job_view(bench.world, bench.job(job), bench.control.waiting)
    assert view.attempts[0].detail == ended.detail


def test_why_names_the_lost_node_while_the_others_are_stopped(bench: Bench) -> None:
    job, (one, two) = gang(bench)
    one.deaf = True
    cut(bench, "b")
    bench.pass_time(LEASE_MS + 1, "a")
    assert said(bench, job) == "runs on a (devices 0, 1) and b (devices 0, 1, away now)"
    bench.pass_time(LOSS_MS - LEASE_MS, "a")
    assert said(bench, job) == (
        "node b was lost (its lease ended, nothing was heard of it for 26 s); its other ranks are being stopped on "
        "a (devices 0, 1), then it starts again and no restart is used up"
    )
    bench.control.cancel(job, "ada")
    assert said(bench, job) == "stops since somebody cancelled it; holds its devices until every rank is gone on a (devices 0, 1)"
    one.deaf = False
    bench.tick(2)
    assert bench.job(job).state == Finished(
        1, "cancelled", "cancelled; node b was lost: its lease ended, nothing was heard of it for 26 s"
    )
    assert two.held[FIRST].phase == "running"


def test_a_job_whose_every_node_is_lost_waits_again_at_once(bench: Bench) -> None:
    bench.add("z", count=1)
    agent = bench.add("a")
    job = bench.submit()
    bench.tick()
    cut(bench, "a")
    bench.pass_time(LOSS_MS + 1, "z")
    assert bench.job(job).state == Pending(1)
    assert (bench.attempt(job).ok, bench.attempt(job).running_ms) == (False, None)
    assert bench.world.held() == {}
    assert agent.held[FIRST].phase == "starting", "it lives on, and keeps its node's devices"


def test_nothing_is_given_up_while_no_other_node_is_heard(bench: Bench) -> None:
    """Then it may be this side that is cut off: ranks go on, for hours if need be."""
    job, _ = gang(bench)
    cut(bench, "a")
    cut(bench, "b")
    bench.pass_time(200_000)
    assert bench.log(PartLost) == []
    assert bench.state(job) == "running"
    assert not any(record.up for record in bench.world.nodes.values())
    back(bench, "a")
    bench.pass_time(LOSS_MS, "a")
    assert bench.log(PartLost) == [], "the network healed, and the second node has as long as after a start to come back"
    back(bench, "b")
    bench.tick()
    assert bench.state(job) == "running"
    cut(bench, "b")
    bench.pass_time(LOSS_MS + 1, "a")
    assert [body.node for body in bench.log(PartLost) if isinstance(body, PartLost)] == [B]


def test_a_lone_node_is_never_given_up(bench: Bench) -> None:
    agent = bench.add("a")
    job = bench.submit()
    bench.tick()
    agent.run(FIRST)
    bench.pass_time(10 * LOSS_MS)
    assert (bench.state(job), bench.log(PartLost)) == ("running", [])


def test_a_restarted_control_plane_gives_every_node_lease_and_grace_from_its_start(bench: Bench) -> None:
    job, (one, two) = gang(bench)
    cut(bench, "b")
    bench.pass_time(LOSS_MS, "a")
    bench.restart()
    one.hello()
    bench.pass_time(LOSS_MS, "a")
    assert bench.log(PartLost) == []
    bench.pass_time(1, "a")
    assert len(bench.log(PartLost)) == 1
    bench.tick(2)
    assert bench.state(job) == "pending"
    bench.restart()
    one.hello()
    bench.pass_time(2 * LOSS_MS, "a")
    assert len(bench.log(PartLost)) == 1, "what is lost is lost once"
    assert two.held[FIRST].phase == "running"


@pytest.mark.parametrize("gap_ms", [TICK_GAP_MS + LOSS_MS + 1, 3_600_000])
def test_time_in_which_the_control_plane_did_not_tick_is_nobodys_silence(bench: Bench, gap_ms: int) -> None:
    job, (_, two) = gang(bench)
    bench.pass_time(10_000, "a")
    for _ in range(3):
        bench.clock.sleep(gap_ms)
        bench.agents["a"].renew()
        bench.tick()
        assert all(record.up for record in bench.world.nodes.values())
        two.renew()
        bench.tick()
    assert (bench.state(job), bench.log(PartLost), bench.log(NodeAway)) == ("running", [], [])
    bench.pass_time(LOSS_MS, "a")
    assert bench.log(PartLost) == []
    bench.pass_time(1, "a")
    assert len(bench.log(PartLost)) == 1


def test_a_gap_takes_no_more_than_itself_out_of_a_silence(bench: Bench) -> None:
    gang(bench)
    cut(bench, "b")
    bench.pass_time(20_000, "a")
    bench.clock.sleep(60_000)
    bench.agents["a"].renew()
    bench.tick()
    assert bench.log(PartLost) == []
    bench.pass_time(LOSS_MS - 20_000 - TICK_GAP_MS + 1, "a")
    assert len(bench.log(PartLost)) == 1


def test_a_message_that_waited_while_nothing_ticked_is_as_young_as_the_tick(bench: Bench) -> None:
    gang(bench)
    bench.agents["b"].renew()
    cut(bench, "b")
    bench.clock.sleep(60_000)
    bench.agents["a"].renew()
    bench.tick()
    bench.pass_time(LOSS_MS - TICK_GAP_MS, "a")
    assert bench.log(PartLost) == []
    bench.pass_time(1, "a")
    assert len(bench.log(PartLost)) == 1


def test_a_message_at_the_end_of_a_gap_is_no_younger_than_it_is(bench: Bench) -> None:
    gang(bench)
    bench.clock.sleep(3_600_000)
    for agent in bench.agents.values():
        agent.renew()
    cut(bench, "b")
    bench.tick()
    bench.pass_time(LOSS_MS, "a")
    assert bench.log(PartLost) == []
    bench.pass_time(1, "a")
    assert len(bench.log(PartLost)) == 1


def test_max_duration_counts_the_time_in_which_the_control_plane_did_not_tick(bench: Bench) -> None:
    """The ranks ran meanwhile: a gap is nobody's silence, and yet a minute of theirs."""
    job, agents = gang(bench, max_duration="1h")
    for agent in agents:
        agent.deaf = True
    bench.clock.sleep(3_599_999)
    bench.tick()
    assert bench.job(job).stop is None
    bench.clock.sleep(1)
    bench.tick()
    assert bench.job(job).stop == "max_duration"


def test_a_broken_gang_is_not_stopped_for_its_time_as_well(bench: Bench) -> None:
    job, (one, _) = gang(bench, max_duration="1m")
    one.deaf = True
    cut(bench, "b")
    bench.pass_time(59_000, "a")
    assert len(bench.log(PartLost)) == 1
    bench.pass_time(60_000, "a")
    assert bench.job(job).stop is None
    one.deaf = False
    bench.tick(2)
    assert bench.state(job) == "pending"


@pytest.mark.parametrize("phase", ["before", "after"])
def test_a_lost_part_counts_as_ended_whatever_its_node_says_later(bench: Bench, phase: str) -> None:
    job, (one, two) = gang(bench, max_restarts=0)
    one.deaf = True
    if phase == "before":
        two.exit(FIRST, {2: 0, 3: 0})
    cut(bench, "b")
    bench.pass_time(LOSS_MS + 1, "a")
    two.deaf = True
    if phase == "after":
        two.exit(FIRST, {2: 1, 3: 0})
    back(bench, "b")
    bench.tick()
    assert bench.state(job) == "running", "a has not said that its ranks are gone"
    assert isinstance(two.got[-1], StopRanks), "the node is back, and what it still has is stopped there too"
    one.deaf = False
    bench.tick(2)
    assert bench.world.attempts[FIRST].detail.startswith("node b was lost: its lease ended")
    assert bench.job(job).interruptions == 1


def test_a_gang_that_lost_a_part_before_it_ran_whole_does_not_run(bench: Bench) -> None:
    one, two = bench.add("a"), bench.add("b")
    job = bench.submit(a_spec(num_nodes=2))
    bench.tick()
    two.run(FIRST)
    bench.tick()
    cut(bench, "b")
    one.deaf = True
    bench.pass_time(LOSS_MS + 1, "a")
    one.run(FIRST)
    bench.tick()
    assert (bench.state(job), bench.log(AttemptRunning)) == ("starting", [])
    one.deaf = False
    bench.tick(2)
    assert bench.job(job).state == Pending(1)
    assert bench.log(AttemptRunning) == []


def test_a_part_that_had_ended_is_not_lost_with_its_node(bench: Bench) -> None:
    job, (one, two) = gang(bench)
    two.end(FIRST)
    bench.tick()
    cut(bench, "b")
    bench.pass_time(LOSS_MS + 1, "a")
    assert bench.log(PartLost) == []
    one.end(FIRST)
    bench.tick()
    assert bench.job(job).state == Finished(1, "succeeded", "every rank exited with code 0")


def test_failures_of_its_own_still_use_up_the_restarts_of_a_job_that_lost_a_node(bench: Bench) -> None:
    job, (one, _, three) = gang(bench, "abc", max_restarts=1)
    cut(bench, "b")
    bench.pass_time(LOSS_MS + 1, "a", "c")
    bench.tick(2)
    for attempt in (SECOND, AttemptId("tiny-1.3")):
        one.run(attempt)
        three.run(attempt)
        one.exit(attempt, {0: 3})
        bench.pass_time(3_000, "a", "c")
    assert bench.job(job).state == Finished(3, "failed", "rank 0 exited with code 3")
    assert (bench.job(job).interruptions, one.starts) == (1, [FIRST, SECOND, "tiny-1.3"])


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        ("cancel", Finished(1, "cancelled", "cancelled")),
        ("pause", Paused(1)),
        ("drain", Pending(1)),
        ("max_duration", Finished(1, "failed", "stopped: it ran for max_duration (1m)")),
    ],
)
def test_a_job_that_stops_ends_too_when_its_node_is_lost(bench: Bench, cause: str, state: object) -> None:
    bench.add("z", count=1)
    bench.add("a")
    job = bench.submit(a_spec(max_duration="1m" if cause == "max_duration" else "", max_restarts=0))
    bench.tick()
    bench.agents["a"].run(FIRST)
    bench.agents["a"].deaf = True
    bench.tick()
    match cause:
        case "cancel":
            bench.control.cancel(job, "ada")
        case "pause":
            bench.control.pause(job, "ada")
        case "drain":
            bench.control.drain(A, "disk", "ada", now=True)
        case _:
            bench.pass_time(60_000, "a", "z")
    bench.tick()
    cut(bench, "a")
    bench.pass_time(LOSS_MS, "z")
    assert bench.state(job) == "stopping"
    bench.pass_time(1, "z")
    words = "; node a was lost: its lease ended, nothing was heard of it for 26 s"
    wanted = replace(state, detail=state.detail + words) if isinstance(state, Finished) else state
    assert bench.job(job).state == wanted
    assert bench.world.held() == {}


# Ranks that were given up


def given_up(bench: Bench) -> tuple[JobId, Agent, Agent]:
    """A job of one node that was lost, and whose ranks live on there; and another node that is too small for it."""
    small = bench.add("z", count=1)
    agent = bench.add("a")
    job = bench.submit(a_spec(max_restarts=9))
    bench.tick()
    agent.run(FIRST)
    agent.deaf = True
    bench.tick()
    agent.cut = True
    bench.pass_time(LOSS_MS + 1, "z")
    agent.cut = False
    assert bench.job(job).state == Pending(1)
    return job, agent, small


def test_a_zombie_keeps_its_devices_until_its_node_says_that_it_ended(bench: Bench) -> None:
    job, agent, _ = given_up(bench)
    for message in ("renew", "hello", "renew"):
        agent.renew() if message == "renew" else agent.hello()
        bench.tick(3)
        assert bench.world.nodes[A].up
        assert bench.job(job).state == Pending(1)
        assert bench.control.observe().nodes[1].free == ()
    assert "2 not yet let go of by ranks that were given up" in said(bench, job)
    assert agent.got[-1] == StopRanks(FIRST, 1, 10_000)
    agent.deaf = False
    bench.tick()
    assert bench.job(job).state == Pending(1)
    bench.tick()
    assert Forget(FIRST, 1) in agent.got
    assert (bench.state(job), agent.starts) == ("starting", [FIRST, SECOND])


def test_an_attempt_is_not_started_beside_a_zombie_of_its_own_job(bench: Bench) -> None:
    """The node has devices to spare, and one folder for the job."""
    bench.add("z", count=1)
    agent = bench.add("a", count=4)
    job = bench.submit(a_spec(max_restarts=9))
    bench.tick()
    agent.run(FIRST)
    agent.deaf = True
    bench.tick()
    cut(bench, "a")
    bench.pass_time(LOSS_MS + 1, "z")
    back(bench, "a")
    bench.tick(2)
    assert bench.state(job) == "pending"
    assert said(bench, job) == (
        "waits for devices: asks for 2 at once, 3 free but not in shares that it can use, 0 held by running jobs, "
        "2 not yet let go of by ranks that were given up; position 1 in queue default"
    )
    other = bench.submit(a_spec("other", priority=60))
    bench.tick()
    assert [part.node for part in bench.attempt(other).placement.slices] == [A], "which is nothing to anybody else"
    agent.end(FIRST)
    bench.pass_time(1_000, "a", "z")
    assert [part.node for part in bench.attempt(job).placement.slices] == [A]
    assert bench.attempt(job).number == 2


def test_a_zombie_is_found_again_after_a_restart_of_the_control_plane(bench: Bench) -> None:
    job, agent, small = given_up(bench)
    bench.restart()
    small.hello()
    bench.tick()
    assert bench.job(job).state == Pending(1), "a node that has not said Hello is given nothing"
    agent.hello()
    bench.tick(3)
    assert bench.job(job).state == Pending(1)
    agent.deaf = False
    bench.tick(2)
    assert agent.starts == [FIRST, SECOND]


def test_a_plan_from_before_a_zombie_was_seen_does_not_give_its_devices_away(bench: Bench) -> None:
    """The scheduler decides in another process: what it was told may be old."""
    agent = bench.add("a")
    job = bench.submit()
    plan = schedule(bench.control.observe())
    agent.adopt(AttemptId("ghost-7.3"), 1)
    agent.deaf = True
    agent.hello()
    bench.tick(decide=lambda _: plan)
    assert bench.job(job).state == Pending(0)
    one = bench.submit(a_spec("one", gpus="1"))
    bench.control.cancel(job, "ada")
    bench.tick()
    assert bench.world.held() == {A: {0: f"{one}.1"}}, "the other device is free"


def test_a_start_that_was_sent_and_never_answered_keeps_its_devices_till_the_node_answers_or_says_hello(bench: Bench) -> None:
    """It was sent over a connection that stands, and may still be on its way when the node is heard again."""
    bench.add("z", count=1)
    agent = bench.add("a")
    agent.deaf = True
    job = bench.submit()
    bench.tick()
    assert [type(command) for command in agent.got] == [StartRanks]
    cut(bench, "a")
    bench.pass_time(LOSS_MS + 1, "z")
    assert bench.job(job).state == Pending(1)
    agent.cut = False
    agent.renew()
    bench.tick(3)
    assert bench.job(job).state == Pending(1)
    assert agent.got[-1] == StopRanks(FIRST, 1, 10_000)
    agent.deaf = False
    bench.tick(3)
    assert bench.state(job) == "starting"
    assert agent.starts == [SECOND]


def test_a_hello_without_the_start_frees_its_devices(bench: Bench) -> None:
    bench.add("z", count=1)
    agent = bench.add("a")
    agent.deaf = True
    bench.submit()
    bench.tick()
    cut(bench, "a")
    bench.pass_time(LOSS_MS + 1, "z")
    agent.deaf = False
    back(bench, "a")
    bench.tick()
    assert agent.starts == [SECOND]


def test_an_unknown_attempt_without_devices_fences_its_whole_node(bench: Bench) -> None:
    agent = bench.add("a", count=4, greet=False)
    agent.adopt(AttemptId("ghost-7.3"))
    agent.deaf = True
    agent.hello()
    other = bench.add("b", count=1)
    job = bench.submit(a_spec(gpus="1"))
    bench.tick()
    assert (agent.starts, other.starts) == ([], [FIRST])
    facts = {node.node: node for node in bench.control.observe().nodes}
    assert (facts[A].free, facts[A].fenced) == ((), (0, 1, 2, 3))
    agent.deaf = False
    bench.tick(3)
    facts = {node.node: node for node in bench.control.observe().nodes}
    assert (facts[A].free, facts[A].fenced) == ((0, 1, 2, 3), ())
    assert bench.state(job) == "starting"


def test_an_attempt_that_was_given_up_registers_no_model_even_before_another_follows(bench: Bench) -> None:
    job, agent, _ = given_up(bench)
    agent.hello()
    saved = ModelSaved(rank=0, step=9, path="/m", weights_digest="w", metrics={}, lineage={}, at_ms=9)
    bench.control.facts(A, FIRST, 0, 10, [saved])
    assert bench.world.models == {}
    assert bench.job(job).attempt == FIRST


def test_a_part_that_stopped_itself_when_its_lease_ended_uses_up_no_restart(bench: Bench) -> None:
    """`on_partition: stop`: the node is back before it was given up, and says what its shim did."""
    job, (_, two) = gang(bench, max_restarts=0)
    two.held[FIRST] = replace(two.held[FIRST], phase="ended", lost="its node's lease ended", interrupted=True, ended_ms=0)
    two.report(FIRST)
    bench.tick(2)
    assert bench.world.attempts[FIRST].detail == "stopped on node b: its node's lease ended"
    assert bench.job(job).interruptions == 1
    assert bench.state(job) == "starting"


def test_doubled_and_late_reports_of_a_given_up_attempt_end_it_once(bench: Bench) -> None:
    job, agent, _ = given_up(bench)
    late = Report(agent.held[FIRST])
    agent.deaf = False
    agent.hello()
    bench.tick(3)
    assert agent.starts == [FIRST, SECOND]
    for _ in range(3):
        bench.control.heard(A, late)
        bench.tick(3)
    assert len(bench.log(AttemptEnded)) == 1
    assert bench.state(job) == "starting"
    assert agent.starts == [FIRST, SECOND]
