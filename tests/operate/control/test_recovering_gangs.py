"""Gangs of several nodes that recover inside: a node's loss is for the coordinator to judge, as long as the first node lives."""

from dataclasses import replace

import pytest

from phalanx.core import features
from phalanx.core.events import AttemptEnded, PartLost, PartReleased
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.interruptions import WITH_BOOT, WITH_LEASE, WITH_PLATFORM
from phalanx.core.messages import GangStarted, GiveUpNode, StopRanks
from phalanx.core.records import CheckpointCommitted, ModelSaved, Recovered
from phalanx.core.spec import Recovery
from phalanx.decide.restarts import FRUITLESS_MAX
from phalanx.operate.control.fences import fences
from phalanx.operate.control.leases import LOSS_MARGIN_MS
from phalanx.operate.control.observed import ready
from phalanx.operate.control.snapshots import Snapshots
from phalanx.operate.control.usage import usage
from phalanx.operate.control.views import why_view
from tests.operate.control.control_bench import LEASE_MS, Agent, Bench, ManualClock, a_spec

FIRST, SECOND = AttemptId("tiny-1.1"), AttemptId("tiny-1.2")
LOSS_MS = LEASE_MS + 10_000 + LOSS_MARGIN_MS
A, B = NodeId("a"), NodeId("b")
ABLE = (features.RECOVERY, features.RECOVERY_NODES, features.SHRINK)

RECOVERED = Recovered(
    rank=1, step=1, generation=2, why="", replaced=(), pids=(), steps_lost=0, recovery_ms=1, at_ms=1,
)  # fmt: skip


def gang(bench: Bench, shrinks: bool, **wishes: object) -> tuple[JobId, Agent, Agent]:
    """A gang over nodes a and b that runs."""
    one, two = (bench.add(node, features=ABLE) for node in "ab")
    one.shrinks = shrinks
    recovery = Recovery(in_gang=True, min_ranks=2 if shrinks else 0)
    spec = a_spec(**{"num_nodes": 2, "kind": "train", **wishes})  # type: ignore[arg-type] # the caller names a_spec's own arguments
    job = bench.submit(replace(spec, recovery=recovery))
    bench.tick()
    assert one.launches[FIRST].node_rank == 0
    for agent in (one, two):
        agent.run(FIRST)
    bench.tick()
    assert bench.state(job) == "running"
    return job, one, two


def told(agent: Agent, kind: type) -> list[object]:
    return [command for command in agent.got if isinstance(command, kind)]


def test_a_lost_node_is_told_to_the_coordinator_and_the_gang_goes_on(bench: Bench) -> None:
    job, one, two = gang(bench, shrinks=True, max_restarts=0)
    two.cut = True
    bench.pass_time(LOSS_MS + 1, "a")
    assert [body.node for body in bench.log(PartLost) if isinstance(body, PartLost)] == [B]
    assert told(one, GiveUpNode) == [GiveUpNode(FIRST, bench.control.epoch, 1)]
    bench.pass_time(30_000, "a")
    assert (bench.state(job), told(one, StopRanks), len(told(one, GiveUpNode))) == ("running", [], 1)
    assert "its gang goes on with fewer ranks on a" in why_view(bench.world, bench.job(job), {}).sentence
    assert bench.log(PartReleased) == [PartReleased(job, FIRST, B)]
    assert set(bench.world.held()) == {A}
    other = bench.submit(a_spec(name="other"))
    bench.pass_time(5_000, "a")
    assert bench.state(other) == "pending", "nothing is placed on a node that is away"

    two.cut = False
    two.hello()  # its agent was only cut off: what lives there is out of the gang, and keeps the devices until it has ended
    bench.control.observe()
    assert fences(bench.world, bench.control._seen)[B].devices == frozenset({0, 1})
    bench.tick(4)
    assert FIRST not in two.held
    assert AttemptId("other-2.1") in two.held, "and then they are anybody's"
    assert bench.state(job) == "running"

    one.end(FIRST)
    bench.tick(2)
    (ended,) = bench.log(AttemptEnded)
    assert isinstance(ended, AttemptEnded)
    assert (ended.ok, bench.state(job)) == (True, "finished")


def test_a_part_that_ended_with_its_shim_is_told_likewise(bench: Bench) -> None:
    job, one, two = gang(bench, shrinks=True, max_restarts=0)
    two._now(FIRST, phase="stopping", lost="the shim died without exit records; its ranks were killed")
    bench.tick()
    assert told(one, GiveUpNode) == [GiveUpNode(FIRST, bench.control.epoch, 1)]
    two._now(FIRST, phase="ended")
    bench.tick(2)
    assert bench.state(job) == "running"
    assert bench.log(PartReleased) == [PartReleased(job, FIRST, B)]
    assert FIRST not in two.held, "it may forget it"
    before = bench.job(job).served_ms
    bench.clock.sleep(1_000)
    one.end(FIRST)
    bench.tick(2)
    assert bench.job(job).served_ms - before >= 2_000, "of two devices a second more"
    bench.restart()
    assert bench.world.attempts[FIRST].released == (B,)


def test_ranks_of_a_node_that_left_are_no_failure_of_the_gang(bench: Bench) -> None:
    """It ends them before the first node's word is here, and the control plane hears of that first."""
    job, one, two = gang(bench, shrinks=True, max_restarts=0)
    two.leave(FIRST, "its gang's coordinator was not heard of for 8.0 s")
    bench.tick(3)
    assert (bench.state(job), told(one, StopRanks)) == ("running", [])


def test_where_the_gang_cannot_go_on_it_starts_again_and_no_restart_is_used_up(bench: Bench) -> None:
    job, one, two = gang(bench, shrinks=False, max_restarts=0)
    two.cut = True
    bench.pass_time(LOSS_MS + 1, "a")
    bench.tick(2)
    (ended,) = bench.log(AttemptEnded)
    assert isinstance(ended, AttemptEnded)
    assert (ended.ok, ended.again, ended.interrupted) == (False, True, True)
    assert bench.state(job) == "pending"
    assert "lost" in ended.detail or "given up" in ended.detail
    assert told(one, GiveUpNode)


def test_a_rank_that_fails_by_itself_on_any_node_ends_the_gang(bench: Bench) -> None:
    job, one, two = gang(bench, shrinks=True, max_restarts=0)
    two.exit(FIRST, {2: 3})
    bench.tick(3)
    assert told(one, StopRanks)
    assert bench.state(job) == "finished"


def test_the_first_nodes_loss_ends_the_gang(bench: Bench) -> None:
    job, one, two = gang(bench, shrinks=True, max_restarts=0)
    one.cut = True
    bench.pass_time(LOSS_MS + 1, "b")
    bench.tick(2)
    assert told(two, StopRanks)
    assert bench.state(job) == "pending"


def test_both_nodes_at_once_end_it_too(bench: Bench) -> None:
    job, one, two = gang(bench, shrinks=True, max_restarts=0)
    bench.add("c")
    one.cut = two.cut = True
    bench.pass_time(LOSS_MS + 2_000, "c")
    assert bench.state(job) == "pending"


def test_a_new_control_plane_knows_that_the_gang_goes_on(bench: Bench) -> None:
    job, one, two = gang(bench, shrinks=True, max_restarts=0)
    two.cut = True
    bench.pass_time(LOSS_MS + 1, "a")
    bench.restart()
    one.hello()
    bench.pass_time(LOSS_MS + 5_000, "a")
    assert (bench.state(job), told(one, StopRanks)) == ("running", [])


def test_max_duration_holds_for_a_gang_that_goes_on(bench: Bench) -> None:
    job, _, two = gang(bench, shrinks=True, max_duration="1m")
    two.cut = True
    bench.pass_time(61_000, "a")
    assert bench.job(job).stop == "max_duration"


@pytest.mark.parametrize(("lost", "versions"), [("b", 1), ("a", 0)])
def test_the_model_of_a_gang_that_goes_on_counts_and_that_of_one_that_was_given_up_does_not(
    bench: Bench, lost: str, versions: int
) -> None:
    gang(bench, shrinks=True)
    bench.agents[lost].cut = True
    bench.pass_time(LOSS_MS + 1, "b" if lost == "a" else "a")
    saved = ModelSaved(rank=0, step=1, path="/m", weights_digest="d", metrics={}, lineage={}, at_ms=1)
    bench.control.facts(A, FIRST, 0, 10, [saved])
    assert len(bench.world.models.get("tiny", ())) == versions


def test_a_cancelled_gang_ends_without_the_lost_node(bench: Bench) -> None:
    job, _, two = gang(bench, shrinks=True)
    two.cut = True
    bench.pass_time(LOSS_MS + 1, "a")
    bench.control.cancel(job, "ada")
    bench.tick(2)
    assert bench.state(job) == "finished"


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_rank_that_lives_says_the_model(bench: Bench, rank: int) -> None:
    gang(bench, shrinks=True)
    bench.control.facts(A, FIRST, 1, 10, [replace(RECOVERED, absent=(0,))])
    saved = ModelSaved(rank=rank, step=1, path="/m", weights_digest="d", metrics={}, lineage={}, at_ms=1)
    bench.control.facts(A, FIRST, rank, 20, [saved])
    assert len(bench.world.models.get("tiny", ())) == rank
    bench.check()


def test_what_was_let_go_of_is_counted_once(bench: Bench) -> None:
    """Its devices and node time when it is let go of, the gang's recoveries at its end."""
    job, one, two = gang(bench, shrinks=True, max_restarts=0)
    began_ms = bench.attempt(job).placed_ms
    bench.control.facts(A, FIRST, 1, 10, [RECOVERED, replace(RECOVERED, generation=3)])
    seen, fleet = bench.control._seen, Snapshots()
    fleet.take(bench.world, ready(bench.world, seen, False), bench.clock.now_ms(), {})
    two.cut = True
    bench.pass_time(LOSS_MS + 5_000, "a")
    let_go_ms = bench.clock.now_ms()
    assert bench.log(PartReleased)
    assert [(part.node_ms <= let_go_ms - began_ms, part.failures) for part in bench.world.usage.values()] == [(True, 0)]
    bench.pass_time(60_000, "a")
    now_ms = bench.clock.now_ms()
    again = fleet.take(bench.world, ready(bench.world, seen, False), now_ms, {}).usage
    assert again == usage(bench.world, now_ms), "also by what was known of it before"

    one.end(FIRST, 9)
    bench.tick(2)
    (used,) = bench.world.usage.values()
    assert used.node_ms <= (let_go_ms - began_ms) + (bench.clock.now_ms() - began_ms)
    assert used.failures == 2, "that it ended by itself is none of the machines'"


@pytest.mark.parametrize("shrinks", [True, False])
def test_a_gang_that_fails_long_after_a_loss_it_went_on_from_is_no_repair(bench: Bench, shrinks: bool) -> None:
    job, one, two = gang(bench, shrinks=shrinks, max_restarts=5)
    two.cut = True
    bench.pass_time(LOSS_MS + 5_000, "a")
    if shrinks:
        one.end(FIRST, 9)
    bench.tick(2)
    assert bench.log(AttemptEnded)
    assert bench.job(job).repair is not shrinks


@pytest.mark.parametrize("what", ["fewer processes", "clock set back", "faults"])
def test_the_first_nodes_word_counts_though_it_has_fewer_processes_or_its_clock_was_set_back(bench: Bench, what: str) -> None:
    job, one, two = gang(bench, shrinks=True, max_restarts=0)
    if what == "clock set back":
        one._clock = ManualClock()
        one._clock.jump(-3_600_000)
    else:
        one._now(FIRST, ranks=one.held[FIRST].ranks[:1])  # slot 1 is empty, as its shim says of who lives
    if what == "faults":
        one._now(FIRST, faults=1)
        bench.tick()
        assert bench.control._seen.reports[A, FIRST].faults == 1
    two.cut = True
    bench.pass_time(LOSS_MS + 10_000, "a")
    assert (len(told(one, GiveUpNode)), bench.log(PartReleased)) == (1, [PartReleased(job, FIRST, B)])


def test_a_gang_that_goes_on_without_a_node_that_never_came_up_runs(bench: Bench) -> None:
    one, two = (bench.add(node, features=ABLE) for node in "ab")
    one.shrinks = True
    job = bench.submit(replace(a_spec(num_nodes=2, kind="train"), recovery=Recovery(in_gang=True, min_ranks=2)))
    bench.tick()
    one.run(FIRST)
    two.cut = True
    bench.pass_time(LOSS_MS + 5_000, "a")
    assert (bench.state(job), bench.world.attempts[FIRST].released) == ("running", (B,))


def test_a_gang_whose_shim_dies_each_time_uses_up_no_restart_but_waits_longer_and_longer(bench: Bench) -> None:
    job, one, two = gang(bench, shrinks=False, max_restarts=0)
    waits = []
    for _ in range(3):
        attempt = bench.attempt(job).id
        two._now(attempt, phase="stopping", lost="the shim died without exit records; its ranks were killed")
        bench.tick()
        two._now(attempt, phase="ended")
        bench.tick(3)
        ended = bench.log(AttemptEnded)[-1]
        assert isinstance(ended, AttemptEnded)
        assert (ended.again, ended.interrupted, bench.state(job)) == (True, True, "pending")
        waits.append(ended.not_before_ms - bench.clock.now_ms())
        bench.restarted(60)
        for agent in (one, two):
            agent.hello()
            agent.run(bench.attempt(job).id)
        bench.tick()
    assert waits == [1_000, 2_000, 4_000]


@pytest.mark.parametrize("lives_ms", [500, 20_000])
@pytest.mark.parametrize("restarts", [0, 2])
@pytest.mark.parametrize("how", ["shim", "cut off"])
def test_a_gang_that_falls_apart_for_ever_comes_to_an_end(bench: Bench, how: str, restarts: int, lives_ms: int) -> None:
    """However long each attempt lives, and though the control plane is another one each time."""
    job, _, _ = gang(bench, shrinks=False, max_restarts=restarts)
    for _ in range(FRUITLESS_MAX):
        ended = fall_apart(bench, job, how, lives_ms)
        assert (ended.again, ended.interrupted, ended.fruitless) == (True, True, True)
        start_again(bench, job)
    for _ in range(restarts):
        ended = fall_apart(bench, job, how, lives_ms)
        assert (ended.again, ended.interrupted) == (True, False)
        start_again(bench, job)
    ended = fall_apart(bench, job, how, lives_ms)
    assert (ended.again, bench.state(job)) == (False, "finished")
    assert f"{FRUITLESS_MAX + restarts} interruptions before it" in ended.detail
    bench.control.retry(job, "ada")
    assert bench.job(job).fruitless == 0


def test_progress_between_two_interruptions_makes_the_earlier_ones_count_no_more(bench: Bench) -> None:
    job, _, _ = gang(bench, shrinks=False, max_restarts=0)
    for attempt in range(2 * FRUITLESS_MAX):
        bench.control.facts(A, bench.attempt(job).id, 0, 10, [saved(step=attempt)])
        assert fall_apart(bench, job, "shim").again
        start_again(bench, job)
    assert bench.job(job).fruitless == 0
    for _ in range(FRUITLESS_MAX):
        bench.control.facts(A, bench.attempt(job).id, 0, 10, [saved(step=3)])  # a step that was reached long ago
        assert fall_apart(bench, job, "shim").again
        start_again(bench, job)
    assert not fall_apart(bench, job, "shim").again


def test_lost_nodes_are_no_interruptions_of_that_kind(bench: Bench) -> None:
    job, _, two = gang(bench, shrinks=False, max_restarts=0)
    two.cut = True
    bench.pass_time(LOSS_MS + 1, "a")
    bench.tick(2)
    (ended,) = bench.log(AttemptEnded)
    assert isinstance(ended, AttemptEnded)
    assert (ended.fruitless, bench.job(job).fruitless) == (False, 0)


def test_a_node_that_takes_its_part_along_however_often_uses_up_no_restart(bench: Bench) -> None:
    """What the first node's shim says then is the consequence, and the attempt's end names the cause."""
    job, _, _ = gang(bench, shrinks=False, max_restarts=0)
    causes = {
        WITH_PLATFORM: "node b ended with its platform",
        WITH_LEASE: "stopped on node b: its node's lease ended",
        WITH_BOOT: "node b lost its ranks: its node was started again",
    }
    for why, detail in causes.items():
        for _ in range(FRUITLESS_MAX + 1):
            ended = taken_along(bench, job, why)
            assert (ended.again, ended.interrupted, ended.fruitless, ended.detail) == (True, True, False, detail)
            start_again(bench, job)
    assert bench.job(job).fruitless == 0


def test_a_gang_whose_nodes_all_end_with_the_platform_says_so(bench: Bench) -> None:
    _, one, two = gang(bench, shrinks=False, max_restarts=0)
    for agent in (one, two):
        agent.leave(FIRST, WITH_PLATFORM)
    bench.tick(3)
    (ended,) = bench.log(AttemptEnded)
    assert isinstance(ended, AttemptEnded)
    assert (ended.again, ended.fruitless, ended.detail) == (True, False, "stopped with the platform")


def taken_along(bench: Bench, job: JobId, why: str) -> AttemptEnded:
    """Node b's part ends with something of that node, and the first node's since it did."""
    attempt, one, two = bench.attempt(job).id, bench.agents["a"], bench.agents["b"]
    one.leave(attempt, "node 1 has ended its ranks")
    bench.clock.sleep(500)
    if why == WITH_BOOT:
        two._now(attempt, phase="stopping", lost=why)
        two._now(attempt, phase="ended")
    else:
        two.leave(attempt, why)
    bench.tick(3)
    ended = bench.log(AttemptEnded)[-1]
    assert isinstance(ended, AttemptEnded)
    assert ended.attempt == attempt
    return ended


def saved(step: int) -> CheckpointCommitted:
    return CheckpointCommitted(rank=0, step=step, path="/c", digest=str(step), size_bytes=1, at_ms=5)


def fall_apart(bench: Bench, job: JobId, how: str, lives_ms: int = 500) -> AttemptEnded:
    """The attempt ends with the shim of node b, or since the two nodes do not hear of each other."""
    attempt, one, two = bench.attempt(job).id, bench.agents["a"], bench.agents["b"]
    bench.pass_time(lives_ms, "a", "b")
    if how == "shim":
        two._now(attempt, phase="stopping", lost="the shim died without exit records; its ranks were killed")
        bench.tick()
        two._now(attempt, phase="ended")
    else:
        two.leave(attempt, "its gang's coordinator was not heard of for 8.0 s")
        one.leave(attempt, "node 1 was not heard of for 8.0 s")
    bench.tick(3)
    ended = bench.log(AttemptEnded)[-1]
    assert isinstance(ended, AttemptEnded)
    assert ended.attempt == attempt
    return ended


def start_again(bench: Bench, job: JobId) -> None:
    """Another control plane waits as long as it was decided, and starts the next attempt."""
    both = bench.agents["a"], bench.agents["b"]
    bench.restart()
    for agent in both:
        agent.hello()
    bench.restarted(90)
    for agent in both:
        agent.hello()
        agent.run(bench.attempt(job).id)
    bench.tick()
    assert bench.state(job) == "running"


def test_only_once_every_node_runs_the_coordinator_is_told_that_none_may_be_long_in_coming(bench: Bench) -> None:
    one, two = (bench.add(node, features=ABLE) for node in "ab")
    job = bench.submit(replace(a_spec(num_nodes=2, kind="train", max_restarts=0), recovery=Recovery(in_gang=True)))
    bench.tick()
    one.run(FIRST)
    one._now(FIRST, awaits=(1,))
    bench.pass_time(3_600_000, "a", "b")
    assert (bench.state(job), told(one, GangStarted), told(one, StopRanks)) == ("starting", [], []), "b builds its environment"
    two.run(FIRST)
    bench.restart()
    for agent in (one, two):
        agent.hello()
    bench.tick()
    assert set(told(one, GangStarted)) == {GangStarted(FIRST, bench.control.epoch)}
    assert told(two, GangStarted) == []
    one.leave(FIRST, "node 1 never reached the gang's first node at 10.0.0.1:20003 in 30 s; open TCP port 20003")
    bench.tick(2)
    (ended,) = bench.log(AttemptEnded)
    assert isinstance(ended, AttemptEnded)
    assert ended.detail.startswith("node b did not come to the gang: node 1 never reached the gang's first node at 10.0.0.1:20003")
    assert (ended.interrupted, ended.again, ended.fruitless, bench.state(job)) == (True, True, True, "starting")


def test_nobody_is_told_once_all_have_come(bench: Bench) -> None:
    _, one, _ = gang(bench, shrinks=False)
    one._now(FIRST, awaits=(1,))
    bench.tick()
    count = len(told(one, GangStarted))
    one._now(FIRST, awaits=())
    bench.pass_time(60_000, "a", "b")
    assert count == len(told(one, GangStarted)) == 1
