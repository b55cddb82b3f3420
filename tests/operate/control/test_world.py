"""The fold's promises: pure, in order, and jobs change state in no other way than `advance` allows."""

import json
from copy import deepcopy
from dataclasses import replace

import pytest

from phalanx.core import wire
from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.errors import Bug, IllegalTransition
from phalanx.core.events import (
    AttemptEnded,
    AttemptPlaced,
    AttemptRunning,
    Event,
    EventBody,
    JobResumed,
    JobRetried,
    JobSubmitted,
    JobWaits,
    ModelRegistered,
    NodeAway,
    NodeDrained,
    NodeUndrained,
    NodeUp,
    PartLost,
    RankSaid,
    StopRequested,
)
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.messages import RankExit, RankProcess
from phalanx.core.reasons import NoNodes
from phalanx.core.records import CheckpointCommitted, ModelSaved, Resumed
from phalanx.core.states import Finished, JobState, Paused, Pending, Running, Starting
from phalanx.operate.control.fold import Draft, fold, fold_all, world_of
from phalanx.operate.control.world import ATTEMPTS_KEPT, CHECKPOINTS_KEPT, AttemptRecord, NodeRecord, World, slice_of
from tests.operate.control.control_bench import a_spec, shape

JOB, FIRST, SECOND = JobId("tiny-1"), AttemptId("tiny-1.1"), AttemptId("tiny-1.2")
PLACE = Placement((NodeSlice(NodeId("a"), (0, 1)), NodeSlice(NodeId("b"), (1,))))
MODEL = ModelSaved(rank=0, step=9, path="/m", weights_digest="w", metrics={}, lineage={}, at_ms=9)


def log(*bodies: EventBody) -> list[Event]:
    return [Event(number, number * 10, body) for number, body in enumerate(bodies, start=1)]


def checkpoint(step: int) -> CheckpointCommitted:
    return CheckpointCommitted(rank=0, step=step, path="/c", digest=str(step), size_bytes=1, at_ms=1)


LIFE: tuple[EventBody, ...] = (
    NodeUp(shape("a"), "x"),
    NodeUp(shape("b"), "x"),
    JobSubmitted(JOB, a_spec(), "", "c", "ada"),
    JobWaits(JOB, NoNodes(0)),
    AttemptPlaced(JOB, FIRST, PLACE, 29_500, 1),
    AttemptRunning(JOB, FIRST, (RankProcess(0, 7), RankProcess(1, 8), RankProcess(2, 9))),
    RankSaid(JOB, FIRST, checkpoint(5)),
    RankSaid(JOB, FIRST, checkpoint(5)),
    AttemptEnded(JOB, FIRST, False, True, "rank 1 was killed by SIGKILL", (RankExit(1, -9, 1, True),)),
    NodeAway(NodeId("b")),
    AttemptPlaced(JOB, SECOND, PLACE, 29_501, 1),
    RankSaid(JOB, SECOND, Resumed(rank=1, step=5, checkpoint="c", skipped=(), at_ms=3)),
    RankSaid(JOB, SECOND, Resumed(rank=0, step=5, checkpoint="c", skipped=(), at_ms=4)),
    RankSaid(JOB, SECOND, Resumed(rank=2, step=5, checkpoint="c", skipped=(), at_ms=5)),
    RankSaid(JOB, SECOND, MODEL),
    ModelRegistered("tiny", 1, JOB, SECOND, MODEL, {"job": JOB}),
    AttemptEnded(JOB, SECOND, True, False, "every rank exited with code 0", ()),
)


def counted(world: World) -> dict[str, dict[str, int]]:
    """All jobs, one by one; teams without a job are those that had one."""
    found: dict[str, dict[str, int]] = {job.spec.team: {} for job in world.jobs.values()}
    for job in world.jobs.values():
        of_team, name = found[job.spec.team], job.counted_as
        of_team[name] = of_team.get(name, 0) + 1
    return found


def test_jobs_are_counted_by_team_as_they_move_and_as_they_are_loaded() -> None:
    red = replace(a_spec(), team="red")
    names = [JobId(f"tiny-{number}") for number in (1, 2, 3, 4)]
    draft = Draft(World())
    for name in names:
        draft.add(JobSubmitted(name, red if name != JOB else a_spec(), "", "c", "ada"), 1)
    before = draft.world
    assert before.counts == {"": {"pending": 1}, "red": {"pending": 3}}
    draft = Draft(before)
    draft.add(StopRequested(names[1], "cancel", "by ada"), 2)
    draft.add(AttemptPlaced(names[2], AttemptId("tiny-3.1"), PLACE, 1, 1), 3)
    assert draft.world.counts == counted(draft.world) == {"": {"pending": 1}, "red": {"cancelled": 1, "pending": 1, "starting": 1}}
    assert before.counts == {"": {"pending": 1}, "red": {"pending": 3}}, "who holds the world from before sees nothing of it"
    again = world_of([*draft.world.jobs.values()], draft.world.seq, draft.world.sequence)
    assert again.counts == draft.world.counts


def test_a_life_step_by_step() -> None:
    states = []
    world = World()
    for event in log(*LIFE):
        world = fold(world, event)
        assert world.counts == counted(world)
        if JOB in world.jobs:
            states.append(type(world.jobs[JOB].state))
    assert states == [Pending] * 2 + [Starting] + [Running] * 3 + [Pending] * 2 + [Starting] * 6 + [Finished]
    job = world.jobs[JOB]
    assert (job.submitted_ms, job.started_ms, job.finished_ms) == (30, 50, 170)
    assert (job.attempts, job.model, job.reason) == ((FIRST, SECOND), "tiny:1", None)
    first, second = world.attempts[FIRST], world.attempts[SECOND]
    assert (first.number, first.placed_ms, first.running_ms, first.ended_ms, first.ok) == (1, 50, 60, 90, False)
    assert first.checkpoints == (checkpoint(5),)
    assert second.resumed is not None
    assert second.resumed.rank == 0
    assert (world.open_jobs, world.held(), world.seq, world.sequence) == ({}, {}, 17, 1)
    assert not world.nodes[NodeId("b")].up


def test_a_job_keeps_its_newest_attempts_and_an_attempt_its_newest_checkpoints() -> None:
    world = fold_all(World(), log(*LIFE[:3]))
    draft = Draft(world)
    for number in range(1, ATTEMPTS_KEPT + 21):
        attempt = AttemptId(f"{JOB}.{number}")
        draft.add(AttemptPlaced(JOB, attempt, PLACE, 1, 1), number)
        draft.add(AttemptEnded(JOB, attempt, False, True, "", (), not_before_ms=number + 1_000), number)
    job = draft.world.jobs[JOB]
    assert job.attempts == tuple(f"{JOB}.{number}" for number in range(21, ATTEMPTS_KEPT + 21))
    assert (job.quick_ends, job.state) == (120, Pending(120, 1_120))
    newest = AttemptId(f"{JOB}.121")
    draft.add(AttemptPlaced(JOB, newest, PLACE, 1, 1), 200)
    for step in range(CHECKPOINTS_KEPT + 20):
        draft.add(RankSaid(JOB, newest, checkpoint(step)), 200)
    record = draft.world.attempts[newest]
    assert [saved.step for saved in record.checkpoints] == list(range(20, CHECKPOINTS_KEPT + 20))
    assert record.facts == CHECKPOINTS_KEPT + 20
    draft.add(AttemptEnded(JOB, newest, False, True, "", ()), 201)
    assert (draft.world.jobs[JOB].quick_ends, draft.world.jobs[JOB].state) == (0, Pending(121))


def test_a_lost_part_is_noted_with_its_attempt_and_holds_its_devices_till_that_ends() -> None:
    lost = PartLost(JOB, FIRST, NodeId("b"), "its lease ended")
    world = fold_all(World(), log(*LIFE[:6], lost))
    assert world.attempts[FIRST].lost == {"b": "its lease ended"}
    assert world.jobs[JOB].state == Running(1, PLACE)
    assert world.held()[NodeId("b")] == {1: FIRST}
    both = fold_all(world, [Event(8, 80, PartLost(JOB, FIRST, NodeId("a"), "so did its"))])
    assert both.attempts[FIRST].lost == {"b": "its lease ended", "a": "so did its"}
    assert world.attempts[FIRST].lost == {"b": "its lease ended"}
    ended = AttemptEnded(JOB, FIRST, False, True, "", (), interrupted=True)
    over = fold_all(both, [Event(9, 90, ended)])
    assert (over.held(), over.jobs[JOB].interruptions, over.jobs[JOB].state) == ({}, 1, Pending(1))
    with pytest.raises(KeyError):
        fold_all(World(), log(*LIFE[:3], lost))


def test_a_paused_job_is_open_and_holds_nothing_and_a_resumed_one_waits() -> None:
    stop, ended = StopRequested(JOB, "pause", "ada"), AttemptEnded(JOB, FIRST, False, False, "paused", (), interrupted=True)
    paused = fold_all(World(), log(*LIFE[:6], stop, ended))
    job = paused.jobs[JOB]
    assert (job.state, job.stop, job.finished_ms, job.interruptions) == (Paused(1), "pause", None, 1)
    assert (list(paused.open_jobs), paused.held()) == ([JOB], {})
    resumed = fold_all(paused, [Event(9, 90, JobResumed(JOB, "ada"))]).jobs[JOB]
    assert (resumed.state, resumed.stop) == (Pending(1), None)


def test_a_retried_job_is_open_again_in_its_old_place_with_nothing_used_up() -> None:
    other = JobSubmitted(JobId("tiny-2"), a_spec(), "", "c", "ada")
    bad = AttemptEnded(JOB, FIRST, False, False, "rank 0 exited with code 1", ())
    over = fold_all(World(), log(*LIFE[:6], other, bad))
    assert list(over.open_jobs) == ["tiny-2"]
    again = fold_all(over, [Event(9, 90, JobRetried(JOB, "ada"))])
    assert list(again.open_jobs) == [JOB, "tiny-2"]
    job = again.jobs[JOB]
    assert (job.state, job.finished_ms, job.stop, job.quick_ends, job.interruptions) == (Pending(1), None, None, 0, 1)
    assert (job.attempts, job.started_ms) == ((FIRST,), 50)


def test_a_drain_outlasts_what_the_node_says_of_itself() -> None:
    world = fold_all(
        World(), log(*LIFE[:2], NodeDrained(NodeId("a"), "disk", "ada"), NodeAway(NodeId("a")), NodeUp(shape("a", 8), "y"))
    )
    assert (world.nodes[NodeId("a")].drained, world.nodes[NodeId("b")].drained) == ("disk", "")
    assert world.nodes[NodeId("a")].since_ms == 50
    assert fold_all(world, [Event(6, 60, NodeUndrained(NodeId("a"), "ada"))]).nodes[NodeId("a")].drained == ""


def test_records_written_before_leases_ended_still_read() -> None:
    """The tables of an older version hold attempts without losses and nodes without drains."""
    world = fold_all(World(), log(*LIFE))
    attempt = json.loads(wire.dumps(AttemptRecord, world.attempts[FIRST]))
    node = json.loads(wire.dumps(NodeRecord, world.nodes[NodeId("a")]))
    del attempt["lost"], node["drained"], node["shape"]["features"]
    assert wire.loads(AttemptRecord, json.dumps(attempt)) == world.attempts[FIRST]
    assert wire.loads(NodeRecord, json.dumps(node)) == world.nodes[NodeId("a")]


def test_a_log_written_before_restarts_were_put_off_still_reads() -> None:
    old = '{"job": "j-1", "attempt": "j-1.1", "ok": false, "again": true, "detail": "", "exits": [], "kind": "attempt_ended"}'
    assert wire.loads(EventBody, old) == AttemptEnded(JobId("j-1"), AttemptId("j-1.1"), False, True, "", ())
    assert wire.loads(JobState, '{"attempt": 3, "name": "pending"}') == Pending(3)


def test_fold_is_pure() -> None:
    worlds = [World()]
    for event in log(*LIFE):
        before = deepcopy(worlds)
        worlds.append(fold(worlds[-1], event))
        assert worlds[:-1] == before, "a later event changed an earlier world"
    assert fold_all(World(), log(*LIFE)) == worlds[-1]
    assert fold_all(worlds[4], log(*LIFE)[4:]) == worlds[-1]


def test_who_holds_what() -> None:
    world = fold_all(World(), log(*LIFE[:5]))
    assert world.held() == {"a": {0: FIRST, 1: FIRST}, "b": {1: FIRST}}
    assert world.current(FIRST, NodeId("a")) is not None
    assert world.current(FIRST, NodeId("c")) is None
    assert world.current(SECOND, NodeId("a")) is None
    assert slice_of(PLACE, NodeId("b")) == (1, 2, PLACE.slices[1])
    assert fold_all(World(), log(*LIFE)).current(SECOND, NodeId("a")) is None


def test_a_device_held_twice_is_a_bug() -> None:
    other = JobId("tiny-2")
    world = fold_all(
        World(),
        log(*LIFE[:5], JobSubmitted(other, a_spec(), "", "c", "ada"), AttemptPlaced(other, AttemptId("tiny-2.1"), PLACE, 1, 1)),
    )
    with pytest.raises(Bug, match=r"held by tiny-1\.1 and tiny-2\.1"):
        world.held()


@pytest.mark.parametrize(
    ("before", "body"),
    [
        (4, AttemptRunning(JOB, FIRST, ())),
        (5, AttemptPlaced(JOB, SECOND, PLACE, 1, 1)),
        (17, StopRequested(JOB, "cancel", "ada")),
        (17, AttemptEnded(JOB, SECOND, True, False, "", ())),
    ],
)
def test_what_cannot_happen_raises_and_changes_nothing(before: int, body: EventBody) -> None:
    world = fold_all(World(), log(*LIFE[:before]))
    if isinstance(body, AttemptRunning):
        world = replace(world, attempts={FIRST: fold_all(World(), log(*LIFE[:5])).attempts[FIRST]})
    draft = Draft(world)
    with pytest.raises(IllegalTransition):
        draft.add(body, 1)
    assert draft.world is world
    assert draft.events == []


def test_an_event_out_of_order_is_a_bug() -> None:
    with pytest.raises(Bug, match="cannot follow"):
        fold(World(), Event(2, 1, LIFE[0]))


def test_a_draft_leaves_its_base_alone_and_knows_what_changed() -> None:
    base = fold_all(World(), log(*LIFE[:4]))
    same = fold_all(World(), log(*LIFE[:4]))
    draft = Draft(base, lambda event, world: [{"seq": event.seq, "state": world.jobs[JOB].state.name}])
    draft.add(LIFE[4], 50)
    draft.add(LIFE[5], 60)
    assert base == same
    assert set(draft.changes.jobs) == {JOB}
    assert draft.changes.jobs[JOB].state == Running(1, PLACE)
    assert (set(draft.changes.attempts), draft.changes.nodes, draft.changes.models) == ({FIRST}, {}, ())
    assert draft.outbox == [{"seq": 5, "state": "starting"}, {"seq": 6, "state": "running"}]
