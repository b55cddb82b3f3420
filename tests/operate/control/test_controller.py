"""The controller's promises, on the real store with a clock set by hand: a job's whole life, its ends, and who is refused."""

from dataclasses import replace
from itertools import pairwise

import pytest

from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.errors import Bug, Conflict, NotFound, SpecError, StoreUnavailable
from phalanx.core.events import (
    AttemptEnded,
    AttemptPlaced,
    AttemptRunning,
    JobSubmitted,
    JobWaits,
    ModelRegistered,
    NodeAway,
    NodeUp,
    RankSaid,
    StopRequested,
)
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.messages import Forget, Hello, Report, StartRanks, StopRanks
from phalanx.core.reasons import NoNodes, NoRoom
from phalanx.core.records import CheckpointCommitted, ModelSaved, Resumed
from phalanx.core.states import Finished, Pending, Stopping
from phalanx.decide.scheduler import Plan, Snapshot, Start
from phalanx.operate.control.controller import Controller
from tests.operate.control.control_bench import LEASE_MS, Agent, Bench, DatabaseLock, a_spec

pytestmark = pytest.mark.both_databases

FIRST = AttemptId("tiny-1.1")
SECOND = AttemptId("tiny-1.2")


def running(bench: Bench, **wishes: object) -> tuple[JobId, Agent]:
    """A job whose ranks all run on a node of two devices."""
    agent = bench.add("a")
    job = bench.submit(a_spec(**wishes))  # type: ignore[arg-type] # the caller names a_spec's own arguments
    bench.tick()
    agent.run(FIRST)
    bench.tick()
    assert bench.state(job) == "running"
    return job, agent


def saved(step: int = 9, rank: int = 0, loss: float = 1.5) -> ModelSaved:
    return ModelSaved(
        rank=rank, step=step, path="/m", weights_digest="d" * 64, metrics={"val_loss": loss}, lineage={"torch": "2"}, at_ms=5
    )


def checkpoint(step: int) -> CheckpointCommitted:
    return CheckpointCommitted(rank=0, step=step, path=f"/c/{step}", digest=f"{step:064d}", size_bytes=1, at_ms=5)


def test_a_jobs_whole_life(bench: Bench) -> None:
    agent = bench.add("a")
    job = bench.submit()
    assert bench.state(job) == "pending"
    bench.tick()
    assert bench.state(job) == "starting"
    assert agent.starts == [FIRST]
    agent.run(FIRST)
    bench.tick()
    assert bench.state(job) == "running"
    assert [rank.pid for rank in bench.attempt(job).ranks] == [1000, 1001]
    agent.end(FIRST)
    bench.tick()
    assert bench.job(job).state == Finished(1, "succeeded", "every rank exited with code 0")
    assert bench.world.held() == {}
    assert agent.held == {}, "its end is committed, so the agent may forget it"
    kinds = [type(body) for body in bench.log()]
    assert kinds == [JobSubmitted, NodeUp, AttemptPlaced, AttemptRunning, AttemptEnded]


def test_an_idle_tick_writes_and_sends_nothing(bench: Bench) -> None:
    _, agent = running(bench)
    events, got = bench.log(), list(agent.got)
    bench.tick(5)
    assert (bench.log(), agent.got) == (events, got)


def test_a_rank_that_dies_restarts_the_gang_up_to_max_restarts(bench: Bench) -> None:
    job, agent = running(bench, max_restarts=1)
    agent.exit(FIRST, {1: -9})
    bench.restarted()
    assert [command.attempt for command in agent.got if isinstance(command, StopRanks)] == [FIRST]
    assert bench.world.attempts[FIRST].detail == "rank 1 was killed by SIGKILL"
    assert [(item.rank, item.code) for item in bench.world.attempts[FIRST].exits] == [(0, -15), (1, -9)]
    assert bench.state(job) == "starting"
    assert agent.launches[SECOND].restarts == 1
    agent.run(SECOND)
    agent.exit(SECOND, {0: 3})
    bench.tick(3)
    assert bench.job(job).state == Finished(2, "failed", "rank 0 exited with code 3")
    assert agent.starts == [FIRST, SECOND]


def test_each_attempt_gets_another_port_than_the_one_before(bench: Bench) -> None:
    job, agent = running(bench, max_restarts=3)
    for number in range(1, 4):
        agent.end(AttemptId(f"{job}.{number}"), code=1)
        bench.restarted(2 ** (number - 1))
    ports = [launch.master_port for launch in agent.launches.values()]
    assert len(ports) == 4
    assert all(first != second for first, second in pairwise(ports))
    assert all(29_500 <= port < 29_600 for port in ports)


def test_a_gang_over_two_nodes_is_whole_or_absent(bench: Bench) -> None:
    """One node's rank falls: the other node's ranks are stopped, the attempt ends once both say so, and both start again."""
    one, two = bench.add("a"), bench.add("b")
    job = bench.submit(a_spec(gpus="2", num_nodes=2))
    bench.tick()
    one.run(FIRST)
    bench.tick()
    assert bench.state(job) == "starting", "half a gang does not run"
    two.run(FIRST)
    bench.tick()
    assert [rank.rank for rank in bench.attempt(job).ranks] == [0, 1, 2, 3]
    two.deaf = True
    one.end(FIRST, code=7)
    bench.tick(3)
    assert bench.state(job) == "running", "b has not said that its ranks are gone: their devices stay held"
    assert one.starts == [FIRST]
    two.deaf = False
    bench.restarted()
    assert bench.world.attempts[FIRST].detail == "rank 0 exited with code 7"
    assert (one.starts, two.starts) == ([FIRST, SECOND], [FIRST, SECOND])


def test_a_fast_job_ends_without_ever_being_seen_running(bench: Bench) -> None:
    agent = bench.add("a")
    job = bench.submit()
    bench.tick()
    agent.deaf = True
    agent.held[FIRST] = replace(agent.held[FIRST], phase="ended")
    agent.end(FIRST)
    bench.tick()
    assert bench.job(job).state == Finished(1, "succeeded", "every rank exited with code 0")


def test_cancel_in_each_state(bench: Bench) -> None:
    pending = bench.submit(a_spec("waits"))
    bench.control.cancel(pending, "ada")
    assert bench.job(pending).state == Finished(0, "cancelled", "cancelled while waiting")
    agent = bench.add("a")
    agent.deaf = True
    starting = bench.submit(a_spec("starts"))
    bench.tick()
    bench.control.cancel(starting, "ada")
    bench.control.cancel(starting, "ada")
    assert bench.state(starting) == "stopping"
    agent.deaf = False
    bench.tick(2)
    assert bench.job(starting).state == Finished(1, "cancelled", "cancelled")
    going = bench.submit(a_spec("runs"))
    bench.tick()
    agent.run(AttemptId(f"{going}.1"))
    bench.tick()
    bench.control.cancel(going, "ada")
    bench.tick(2)
    assert bench.job(going).state == Finished(1, "cancelled", "cancelled")
    assert [body.by for body in bench.log(StopRequested) if isinstance(body, StopRequested)] == ["ada"] * 3
    assert not any(body.again for body in bench.log() if isinstance(body, AttemptEnded))
    for over in (pending, starting, going):
        with pytest.raises(Conflict, match="already finished"):
            bench.control.cancel(over, "ada")
    with pytest.raises(NotFound):
        bench.control.cancel(JobId("nobody-9"), "ada")


def test_max_duration_ends_an_attempt_and_the_job(bench: Bench) -> None:
    job, _ = running(bench, max_duration="1m", max_restarts=5)
    bench.clock.sleep(59_999)
    bench.control.heard(NodeId("a"), Hello(bench.agents["a"].shape, "boot-1", 1, "0", 1, tuple(bench.agents["a"].held.values())))
    bench.tick()
    assert bench.state(job) == "running"
    bench.clock.sleep(1)
    bench.tick()
    assert bench.job(job).stop == "max_duration"
    bench.tick()
    assert bench.job(job).state == Finished(1, "failed", "stopped: it ran for max_duration (1m)")


def test_cancelling_a_job_over_time_makes_it_cancelled(bench: Bench) -> None:
    job, agent = running(bench, max_duration="1m")
    agent.deaf = True
    bench.clock.sleep(60_000)
    bench.tick()
    assert isinstance(bench.job(job).state, Stopping)
    bench.control.cancel(job, "ada")
    agent.deaf = False
    agent.hello()
    bench.tick(2)
    assert bench.job(job).state == Finished(1, "cancelled", "cancelled")


def test_a_service_is_restarted_whenever_it_ends_and_an_interactive_job_never(bench: Bench) -> None:
    agent = bench.add("a", count=4)
    service = bench.submit(a_spec("svc", kind="service", max_restarts=0))
    shell = bench.submit(a_spec("shell", kind="interactive", max_restarts=9))
    bench.tick()
    agent.run(AttemptId(f"{service}.1"))
    agent.run(AttemptId(f"{shell}.1"))
    agent.end(AttemptId(f"{service}.1"), code=0)
    agent.end(AttemptId(f"{shell}.1"), code=1)
    bench.restarted()
    assert bench.job(service).attempts == ("svc-1.1", "svc-1.2")
    assert bench.state(shell) == "finished"


def test_a_job_that_waits_says_why_and_logs_only_changes_in_kind(bench: Bench) -> None:
    first, second = bench.submit(a_spec("x")), bench.submit(a_spec("y"))
    bench.tick(3)
    assert bench.control.waiting[second].reason == NoNodes(0)
    assert bench.control.waiting[second].position == 2
    bench.add("a")
    bench.tick(3)
    assert bench.state(first) == "starting"
    assert bench.control.waiting[second].reason == NoRoom(asked=2, free=0, held=2)
    assert set(bench.control.waiting) == {second}
    waits = [(body.job, body.reason.kind) for body in bench.log(JobWaits) if isinstance(body, JobWaits)]
    assert waits == [(first, "no_nodes"), (second, "no_nodes"), (second, "no_room")]


def test_S16_never_fits_is_refused_at_submit_naming_the_resource(bench: Bench) -> None:
    accepted = bench.submit(a_spec("early", gpus="64"))
    assert bench.state(accepted) == "pending", "no node is known yet, so nothing is known to be impossible"
    bench.add("a")
    bench.tick()
    with pytest.raises(SpecError, match=r"64 CPU slots on a node, the largest possible is 2 \(a\); set resources.gpus: 2"):
        bench.submit(a_spec("big", gpus="64"))
    with pytest.raises(SpecError, match="1 H100 device on a node"):
        bench.submit(a_spec("gpu", gpus="H100:1"))
    assert len(bench.world.jobs) == 1


def test_submit_with_a_key_is_idempotent_even_after_a_restart(bench: Bench) -> None:
    job = bench.submit(key="k1")
    bench.restart()
    assert bench.submit(key="k1") == job
    assert bench.submit(key="k2") != job
    assert bench.submit() != bench.submit()
    with pytest.raises(Conflict, match="another job"):
        bench.submit(a_spec("other"), key="k1")
    assert [body.job for body in bench.log(JobSubmitted) if isinstance(body, JobSubmitted)] == [
        "tiny-1",
        "tiny-2",
        "tiny-3",
        "tiny-4",
    ]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_the_log_could_not_give_back_never_gets_in(bench: Bench, bad: float) -> None:
    with pytest.raises(SpecError, match="finite"):
        bench.submit(replace(a_spec(), hyperparameters={"lr": bad}))
    with pytest.raises(SpecError, match="Unicode"):
        bench.submit(replace(a_spec(), env={"X": "\ud800"}))
    with pytest.raises(SpecError, match="key"):
        bench.submit(key="k" * 300)
    job, _ = running(bench)
    bench.control.facts(NodeId("a"), FIRST, 0, 10, [saved(loss=bad)])
    bench.restart()
    assert bench.world.models["tiny"][0].saved.metrics == {}
    assert bench.job(job).model == "tiny:1"


def test_a_silent_node_goes_away_keeps_its_attempts_and_comes_back(bench: Bench) -> None:
    job, agent = running(bench)
    bench.pass_time(LEASE_MS)
    assert bench.world.nodes[agent.node].up
    bench.clock.sleep(1)
    bench.tick(2)
    assert not bench.world.nodes[agent.node].up
    assert bench.state(job) == "running"
    other = bench.submit(a_spec("next", gpus="1"))
    bench.tick()
    assert bench.control.waiting[other].reason == NoNodes(1)
    agent.hello()
    bench.tick()
    assert bench.world.nodes[agent.node].up
    assert [type(body) for body in bench.log() if isinstance(body, NodeUp | NodeAway)] == [NodeUp, NodeAway, NodeUp]


def test_renewals_keep_a_node_up_and_bring_a_connected_one_back(bench: Bench) -> None:
    """Where an agent was slow, the next renewal is enough."""
    agent = bench.add("a")
    for _ in range(5):
        bench.pass_time(LEASE_MS - 1)
        agent.renew()
        bench.tick()
    assert len(bench.log(NodeAway)) == 0
    bench.pass_time(LEASE_MS + 1)
    assert not bench.world.nodes[agent.node].up
    agent.renew()
    bench.tick()
    assert bench.world.nodes[agent.node].up


def test_a_renewal_or_report_without_hello_counts_for_nothing(bench: Bench) -> None:
    job, agent = running(bench)
    bench.restart()
    agent.renew()
    agent.exit(FIRST, {0: 1, 1: 1})
    bench.tick(2)
    assert bench.state(job) == "running"


def test_a_node_that_comes_back_without_its_ranks_lost_them(bench: Bench) -> None:
    job, agent = running(bench)
    agent.held.clear()
    agent.boot = "boot-2"
    agent.hello()
    bench.restarted()
    assert bench.world.attempts[FIRST].detail == "node a lost its ranks: it came back without them"
    assert bench.state(job) == "starting"
    assert agent.starts == [FIRST, SECOND]


def test_a_lost_part_stops_the_rest_of_the_gang(bench: Bench) -> None:
    one, two = bench.add("a"), bench.add("b")
    job = bench.submit(a_spec(num_nodes=2))
    bench.tick()
    one.run(FIRST)
    two.run(FIRST)
    bench.tick()
    two.held[FIRST] = replace(two.held[FIRST], phase="ended", ranks=(), lost="the shim was killed", at_ms=bench.clock.now_ms())
    two.report(FIRST)
    bench.clock.sleep(5)
    bench.restarted()
    assert StopRanks(FIRST, 1, 10_000) in one.got
    assert bench.world.attempts[FIRST].detail == "node b lost its ranks: the shim was killed"
    assert bench.job(job).attempts == (FIRST, SECOND)


def test_a_start_that_never_arrived_is_sent_again(bench: Bench) -> None:
    agent = bench.add("a")
    agent.down = True
    job = bench.submit()
    bench.tick(2)
    assert bench.state(job) == "starting"
    agent.down = False
    agent.hello()
    bench.tick(2)
    assert agent.starts == [FIRST]
    agent.run(FIRST)
    bench.tick()
    assert bench.state(job) == "running"


def test_reports_said_twice_late_or_out_of_order_change_nothing(bench: Bench) -> None:
    job, agent = running(bench)
    seen_running = Report(agent.held[FIRST])
    agent.end(FIRST, code=1)
    ended = Report(agent.held[FIRST])
    for message in (ended, seen_running, ended):
        bench.control.heard(agent.node, message)
    bench.restarted()
    assert bench.job(job).attempts == (FIRST, SECOND)
    for message in (seen_running, ended, seen_running):
        bench.control.heard(agent.node, message)
        bench.tick()
    assert bench.state(job) == "starting"
    assert len(bench.log(AttemptEnded)) == 1
    assert agent.starts == [FIRST, SECOND]


def test_a_late_report_does_not_bring_an_ended_part_of_a_gang_back(bench: Bench) -> None:
    one, two = bench.add("a"), bench.add("b")
    job = bench.submit(a_spec(num_nodes=2))
    bench.tick()
    one.run(FIRST)
    two.run(FIRST)
    bench.tick()
    late = Report(one.held[FIRST])
    bench.clock.sleep(5)
    one.end(FIRST)
    bench.control.heard(one.node, late)
    bench.tick()
    two.end(FIRST)
    bench.tick()
    assert bench.state(job) == "finished"


def test_zombie_attempts_are_stopped_then_forgotten(bench: Bench) -> None:
    """An attempt that nobody wants: of another job, of a home that was lost, or given up while the node was away."""
    agent = bench.add("a", greet=False)
    zombie = AttemptId("ghost-7.3")
    agent.adopt(zombie)
    agent.hello()
    bench.tick()
    assert agent.got == [StopRanks(zombie, 1, 10_000)]
    bench.tick()
    assert agent.got[-1] == Forget(zombie, 1)
    assert agent.held == {}


def test_an_attempt_reported_by_a_node_it_was_not_placed_on_is_a_zombie_there(bench: Bench) -> None:
    job, agent = running(bench)
    other = bench.add("b", greet=False)
    other.launches[FIRST], other.held[FIRST] = agent.launches[FIRST], agent.held[FIRST]
    other.hello()
    bench.tick(2)
    assert other.held == {}
    assert bench.state(job) == "running"


def test_facts_become_events_once(bench: Bench) -> None:
    job, agent = running(bench)
    node = agent.node
    resumed = Resumed(rank=0, step=100, checkpoint="c100", skipped=(), at_ms=1)
    bench.control.facts(node, FIRST, 0, 50, [resumed, checkpoint(200)])
    bench.control.facts(node, FIRST, 0, 50, [resumed, checkpoint(200)])
    bench.restart()
    assert bench.control.records_offset(FIRST, 0) == 50
    bench.control.facts(node, FIRST, 0, 40, [checkpoint(150)])
    bench.control.facts(node, FIRST, 0, 60, [checkpoint(300)])
    bench.control.facts(node, FIRST, 0, 70, [])
    assert bench.control.records_offset(FIRST, 0) == 70
    assert bench.control.records_offset(FIRST, 1) == 0
    assert bench.attempt(job).resumed == resumed
    assert [item.step for item in bench.attempt(job).checkpoints] == [200, 300]
    assert len(bench.log(RankSaid)) == 3


def test_facts_from_elsewhere_are_not_believed(bench: Bench) -> None:
    running(bench)
    bench.add("b")
    bench.tick()
    for node, attempt, rank in (("b", FIRST, 0), ("a", FIRST, 2), ("a", AttemptId("no-1.1"), 0), ("a", FIRST, -1)):
        bench.control.facts(NodeId(node), attempt, rank, 10, [checkpoint(1)])
        assert bench.control.records_offset(attempt, rank) == 0
    assert bench.log(RankSaid) == []


def test_a_model_is_registered_once_an_attempt_with_lineage_by_rank_0(bench: Bench) -> None:
    job, agent = running(bench)
    bench.control.facts(agent.node, FIRST, 1, 10, [saved(rank=1)])
    assert bench.world.models == {}
    bench.control.facts(agent.node, FIRST, 0, 10, [saved()])
    bench.control.facts(agent.node, FIRST, 0, 20, [saved(step=10)])
    (model,) = bench.world.models["tiny"]
    assert (model.version, model.job, model.attempt) == (1, job, FIRST)
    assert model.lineage["torch"] == "2"
    assert model.lineage["attempt"] == FIRST
    assert model.lineage["config"] == bench.job(job).config
    agent.end(FIRST)
    again = bench.submit()
    bench.tick(2)
    bench.control.facts(agent.node, AttemptId(f"{again}.1"), 0, 5, [saved()])
    assert [version.version for version in bench.world.models["tiny"]] == [1, 2]
    assert len(bench.log(ModelRegistered)) == 2
    assert bench.job(again).model == "tiny:2"


def test_an_attempt_that_was_given_up_registers_no_model(bench: Bench) -> None:
    _, agent = running(bench)
    agent.end(FIRST, code=1)
    bench.restarted()
    bench.control.facts(agent.node, FIRST, 0, 10, [saved()])
    assert bench.world.models == {}


def test_the_outbox_is_committed_with_its_event_and_emptied_one_by_one(bench: Bench) -> None:
    bench.settings = replace(
        bench.settings, outbox_for=lambda event, world: [{"kind": event.body.kind, "seq": event.seq, "jobs": len(world.jobs)}]
    )
    bench.restart()
    bench.submit()
    bench.add("a")
    bench.tick()
    rows = bench.control.pending_outbox(10)
    assert [row.entry["kind"] for row in rows] == ["job_submitted", "node_up", "attempt_placed"]
    assert rows[0].entry["jobs"] == 1, "the world has the event in it"
    bench.control.outbox_done(rows[0].seq)
    bench.control.outbox_done(rows[0].seq)
    assert bench.control.pending_outbox(1) == rows[1:2]
    for row in rows:
        bench.control.outbox_done(row.seq)
    bench.submit()
    assert bench.control.pending_outbox(1)[0].seq > rows[-1].seq, "a number is never used again"


def test_a_plan_made_on_an_older_snapshot_is_carried_out_as_far_as_it_holds(bench: Bench) -> None:
    agent = bench.add("a")
    cancelled, first, second = bench.submit(), bench.submit(), bench.submit()
    bench.control.observe()
    bench.control.cancel(cancelled, "ada")
    everything = Placement((NodeSlice(agent.node, (0, 1)),))
    missing = Placement((NodeSlice(agent.node, (2, 3)),))
    unknown = Placement((NodeSlice(NodeId("nowhere"), (0, 1)),))
    jobs = ((cancelled, everything), (first, missing), (first, unknown), (first, everything), (second, everything))
    bench.control.carry_out(Plan((*(Start(job, place) for job, place in jobs), Start(JobId("no-9"), everything))))
    assert [bench.state(job) for job in (cancelled, first, second)] == ["finished", "starting", "pending"]


def test_a_plan_that_decides_nothing_leaves_everything_as_it_is(bench: Bench) -> None:
    """What the server does when the scheduler process is away."""
    bench.add("a")
    job = bench.submit()
    bench.tick(decide=lambda snapshot: Plan(()))
    assert bench.job(job).state == Pending(0)
    bench.tick()
    assert bench.state(job) == "starting"


def test_commands_are_not_repeated_before_they_are_due(bench: Bench) -> None:
    bench.settings = replace(bench.settings, resend_ms=2_000)
    bench.restart()
    agent = bench.add("a")
    agent.deaf = True
    bench.submit()
    bench.tick(5)
    assert [type(command) for command in agent.got] == [StartRanks]
    bench.clock.sleep(2_000)
    bench.tick(5)
    assert [type(command) for command in agent.got] == [StartRanks] * 2
    agent.hello()
    bench.tick(5)
    assert [type(command) for command in agent.got] == [StartRanks] * 3, "a new connection gets it at once"


def test_a_stale_leaders_write_is_refused_and_its_world_unchanged(bench: Bench) -> None:
    stale = bench.control
    stale.heard(NodeId("a"), Hello(Agent("a", bench.clock, lambda *_: None).shape, "b", 1, "0", 0, ()))
    newer = Controller(bench.store, bench.clock, bench.links, bench.settings)
    assert newer.epoch == stale.epoch + 1
    world = stale.world
    for write in (
        lambda: stale.submit(a_spec(), "", "", "ada"),
        lambda: stale.tick(lambda _: Plan(())),
        lambda: stale.outbox_done(1),
    ):
        with pytest.raises(Bug, match="superseded"):
            write()
    assert stale.world is world
    assert bench.log() == []


def test_a_database_that_fails_changes_nothing_and_the_next_tick_goes_on(bench: Bench, locked: DatabaseLock) -> None:
    job, agent = running(bench)
    agent.end(FIRST, code=1)
    world = bench.world
    with locked:
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="lock"):
                bench.tick()
        with pytest.raises(StoreUnavailable):
            bench.control.cancel(job, "ada")
        with pytest.raises(StoreUnavailable):
            bench.control.facts(agent.node, FIRST, 0, 10, [checkpoint(1)])
    assert bench.world is world
    assert bench.control.records_offset(FIRST, 0) == 0
    bench.restarted()
    assert bench.job(job).attempts == (FIRST, SECOND)


def test_the_clock_may_jump_without_a_node_going_away(bench: Bench) -> None:
    agent = bench.add("a")
    bench.tick()
    bench.clock.unix_ms += 3_600_000
    bench.tick()
    assert bench.world.nodes[agent.node].up


def test_a_snapshot_shows_what_is_free(bench: Bench) -> None:
    running(bench, gpus="1")
    bench.add("b")
    snapshot: Snapshot = bench.control.observe()
    free = {node.node: (node.free, node.schedulable) for node in snapshot.nodes}
    assert free == {"a": ((1,), True), "b": ((0, 1), True)}
    assert [item.facts.job for item in snapshot.running] == ["tiny-1"]
