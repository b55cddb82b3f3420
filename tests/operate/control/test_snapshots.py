"""What the scheduler is told of nodes, gangs that run and jobs that wait; and that what did not change stays the same object."""

from dataclasses import replace

import pytest

from phalanx.core.devices import Device, NodeShape, NodeSlice, Placement
from phalanx.core.errors import SpecError
from phalanx.core.events import (
    AttemptEnded,
    AttemptPlaced,
    AttemptRunning,
    EventBody,
    JobResumed,
    JobRetried,
    JobSubmitted,
    NodeAway,
    NodeUp,
    PartLost,
    PolicySet,
    RankSaid,
    StopRequested,
)
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.messages import RankProcess
from phalanx.core.policy import NodeRule, Policy
from phalanx.core.records import CheckpointCommitted, Resumed
from phalanx.core.spec import Array, JobSpec, Resources
from phalanx.decide.scheduler.snapshot import NodeFacts, PendingJob, RunningJob, Share, Snapshot
from phalanx.operate.control.fences import Fence, Fences
from phalanx.operate.control.fold import Draft
from phalanx.operate.control.snapshots import GONE_MS, RESTART_MS, Snapshots, snapshot
from phalanx.operate.control.world import World
from tests.operate.control.control_bench import Bench, a_spec, shape

A, B = NodeId("a"), NodeId("b")
JOB, OTHER = JobId("tiny-1"), JobId("tiny-2")
FIRST = AttemptId("tiny-1.1")
PLACE = Placement((NodeSlice(A, (0,)),))


class Story:
    """A world in the making, an event at a time."""

    def __init__(self) -> None:
        self.world = World()
        self.at_ms = 1_000

    def then(self, *bodies: EventBody, ms: int = 0) -> "Story":
        self.at_ms += ms
        draft = Draft(self.world)
        for body in bodies:
            draft.add(body, self.at_ms)
        self.world = draft.world
        return self

    def submit(self, job: JobId = JOB, spec: JobSpec | None = None, **more: object) -> "Story":
        return self.then(JobSubmitted(job, spec or a_spec(gpus="1"), "", "c", "ada", **more))  # type: ignore[arg-type] # a shorthand

    def place(self, job: JobId = JOB, placement: Placement = PLACE, number: int = 1) -> "Story":
        return self.then(AttemptPlaced(job, AttemptId(f"{job}.{number}"), placement, 29_500 + number, 1))

    def end(self, job: JobId = JOB, ok: bool = False, again: bool = True, number: int = 1, ms: int = 0, **more: object) -> "Story":
        ended = AttemptEnded(job, AttemptId(f"{job}.{number}"), ok, again, "", (), **more)  # type: ignore[arg-type] # a shorthand
        return self.then(ended, ms=ms)

    def look(self, fences: Fences | None = None, now_ms: int | None = None) -> Snapshot:
        ready = frozenset(node for node, record in self.world.nodes.items() if record.up)
        return snapshot(self.world, ready, self.at_ms if now_ms is None else now_ms, fences or {})

    def node(self, node: NodeId = A, fences: Fences | None = None, now_ms: int | None = None) -> NodeFacts:
        return next(one for one in self.look(fences, now_ms).nodes if one.node == node)

    def pending(self, job: JobId = JOB) -> PendingJob:
        return next(one for one in self.look().pending if one.facts.job == job)

    def running(self, job: JobId = JOB) -> RunningJob:
        return next(one for one in self.look().running if one.facts.job == job)


@pytest.fixture
def story() -> Story:
    return Story().then(NodeUp(shape("a"), "x"), NodeUp(shape("b"), "x"))


def gpus(node: str, count: int = 2) -> NodeShape:
    devices = tuple(Device(index, "H100", "H100", 80 * 2**30) for index in range(count))
    return replace(shape(node), devices=devices)


def a_share(gpus: str = "0.25", gpu_memory: str = "0") -> JobSpec:
    return replace(a_spec(), resources=Resources(gpus=gpus, gpu_memory=gpu_memory))


def test_a_node_that_is_away_for_long_is_gone(story: Story) -> None:
    story.then(NodeAway(A), ms=1_000)
    assert not story.node(now_ms=story.at_ms + GONE_MS).gone
    assert story.node(now_ms=story.at_ms + GONE_MS + 1).gone
    assert not story.node(B, now_ms=story.at_ms + 10 * GONE_MS).gone
    story.then(NodeUp(shape("a"), "x"), ms=2 * GONE_MS)
    assert not story.node().gone


def test_a_job_that_only_nodes_could_hold_that_are_gone_is_refused(bench: Bench) -> None:
    big, small = bench.add("big", count=4), bench.add("small", count=1)
    bench.tick()
    spec = a_spec(gpus="3")
    for _ in range(20):
        bench.clock.sleep(1_000)
        small.renew()
        bench.tick()
    assert not bench.world.nodes[big.node].up
    bench.control.submit(spec, "", "", "ada")
    bench.clock.sleep(GONE_MS)
    with pytest.raises(SpecError, match="never fits"):
        bench.control.submit(spec, "", "", "ada")


def test_where_all_nodes_are_gone_they_have_yet_to_come(bench: Bench) -> None:
    bench.add("a")
    bench.tick()
    bench.clock.sleep(20_000)
    bench.tick()
    for _ in range(20):
        bench.clock.sleep(1_000)
        bench.tick()
    bench.clock.sleep(2 * GONE_MS)
    assert bench.control.submit(a_spec(gpus="2"), "", "", "ada")


def test_the_policy_says_what_is_known_of_nodes(story: Story) -> None:
    plain = story.node()
    assert (dict(plain.labels), plain.spot, plain.price) == ({}, False, 0.05)
    rules = (
        NodeRule(match="*", labels={"cluster": "north", "rack": "1"}, price=2.0),
        NodeRule(match="a", labels={"rack": "2"}, spot=True),
        NodeRule(match="[b]", price=0.0),
    )
    story.then(PolicySet(Policy(nodes=rules), "ada"))
    one, two = story.node(A), story.node(B)
    assert (one.labels, one.spot, one.price) == ({"cluster": "north", "rack": "2"}, True, 2.0)
    assert (two.labels, two.spot, two.price) == ({"cluster": "north", "rack": "1"}, False, 0.0)
    assert story.look().policy.nodes == rules


def test_shares_of_devices_are_told_apart_from_whole_ones(story: Story) -> None:
    story.then(NodeUp(gpus("a", 3), "x"))
    story.submit(JOB, a_share("0.25")).submit(OTHER, a_share("0.5", "50GiB"))
    gib = 2**30
    assert story.node().free == (0, 1, 2)
    story.place(JOB, Placement((NodeSlice(A, (0,), 250),)))
    assert (story.node().free, story.node().shares) == ((1, 2), (Share(0, 750, 60 * gib),))
    story.place(OTHER, Placement((NodeSlice(A, (0,), 500, 50 * gib),)))
    assert story.node().shares == (Share(0, 250, 10 * gib),)
    assert story.node().device_memory_bytes == 80 * gib
    fenced = {A: Fence(devices=frozenset({0, 2}))}
    assert (story.node(fences=fenced).free, story.node(fences=fenced).fenced, story.node(fences=fenced).shares) == ((1,), (2,), ())
    third = JobId("tiny-3")
    story.submit(third, a_share("0.25")).place(third, Placement((NodeSlice(A, (0,), 250),)))
    assert (story.node().free, story.node().shares) == ((1, 2), ())
    story.end(OTHER)
    assert story.node().shares == (Share(0, 500, 40 * gib),)


def test_what_a_gang_that_runs_has_saved_and_what_a_restart_costs_it(story: Story) -> None:
    story.submit().place()
    assert (story.running().saved_ms, story.running().restart_ms) == (0, RESTART_MS)
    story.then(AttemptRunning(JOB, FIRST, (RankProcess(0, 1),)), ms=3_000)
    assert story.running().restart_ms == 3_000
    resumed = Resumed(rank=0, step=3, checkpoint="c", skipped=(), at_ms=story.at_ms + 4_000)
    story.then(RankSaid(JOB, FIRST, resumed), ms=4_000)
    assert story.running().restart_ms == 7_000
    saved = CheckpointCommitted(rank=0, step=4, path="/c", digest="d", size_bytes=1, at_ms=story.at_ms + 500)
    story.then(RankSaid(JOB, FIRST, saved), ms=1_000)
    assert story.running().saved_ms == saved.at_ms
    ahead = replace(saved, digest="e", at_ms=story.at_ms + 10**9)
    story.then(RankSaid(JOB, FIRST, ahead))
    assert story.running().saved_ms == story.at_ms, "a node's clock may be ahead"


def test_since_when_a_job_waits_and_what_it_has_had(story: Story) -> None:
    story.submit()
    assert (story.pending().since_ms, story.pending().served_ms, story.pending().repair) == (1_000, 0, False)
    story.place().end(ms=5_000)
    assert (story.pending().since_ms, story.pending().served_ms) == (6_000, 5_000)
    story.then(StopRequested(JOB, "pause", "ada"), ms=1_000).then(JobResumed(JOB, "ada"), ms=1_000)
    assert story.pending().since_ms == 8_000
    story.place(number=2)
    assert story.running().served_ms == 5_000
    story.end(number=2, again=False, ms=1_000).then(JobRetried(JOB, "ada"), ms=1_000)
    assert (story.pending().since_ms, story.pending().served_ms) == (10_000, 6_000)


def test_a_gang_that_lost_a_node_is_repaired_first(story: Story) -> None:
    story.submit().place().then(PartLost(JOB, FIRST, A, "silent")).end(interrupted=True)
    assert story.pending().repair
    story.place(number=2).end(number=2)
    assert not story.pending().repair


def test_dependencies_are_unmet_until_they_succeed_and_failed_ones_may_be_retried(story: Story) -> None:
    story.submit().submit(OTHER, replace(a_spec(), after=(JOB,)))
    assert (story.pending(OTHER).unmet, story.pending(OTHER).failed) == ((JOB,), ())
    story.place().end(again=False)
    assert (story.pending(OTHER).unmet, story.pending(OTHER).failed) == ((), (JOB,))
    story.then(JobRetried(JOB, "ada"))
    assert (story.pending(OTHER).unmet, story.pending(OTHER).failed) == ((JOB,), ())
    story.place(number=2).end(number=2, ok=True, again=False)
    assert (story.pending(OTHER).unmet, story.pending(OTHER).failed) == ((), ())


def test_an_array_is_told_by_its_first_job(story: Story) -> None:
    spec = replace(a_spec(), array=Array(count=2, parallel=1))
    story.submit(JOB, spec, array=JOB).submit(OTHER, spec, array=JOB, array_index=1)
    assert [(one.facts.array, one.facts.array_parallel, one.facts.user) for one in story.look().pending] == [(JOB, 1, "ada")] * 2


def test_what_did_not_change_is_the_same_object_and_all_of_it_is_as_if_taken_anew(story: Story) -> None:
    """A scheduler with a memory looks at other objects only."""
    kept = Snapshots()
    ready = frozenset({A, B})

    def look(fences: Fences | None = None) -> Snapshot:
        found = kept.take(story.world, ready, story.at_ms, fences or {})
        assert found == snapshot(story.world, ready, story.at_ms, fences or {})
        return found

    story.submit().submit(OTHER).place()
    one = look()
    again = look()
    assert all(
        before is now
        for name in ("nodes", "running", "pending")
        for before, now in zip(getattr(one, name), getattr(again, name), strict=True)
    )
    story.place(OTHER, Placement((NodeSlice(B, (1,)),)))
    two = look()
    assert [before is now for before, now in zip(one.nodes, two.nodes, strict=True)] == [True, False]
    assert two.running[0] is one.running[0]
    assert two.running[1].facts is one.pending[0].facts, "also when a job moves on"
    three = look({A: Fence(devices=frozenset({1}))})
    assert [before is now for before, now in zip(two.nodes, three.nodes, strict=True)] == [False, True]
    story.then(PolicySet(Policy(order="fifo"), "ada"))
    look()
    story.then(NodeAway(B)).end().end(OTHER, again=False)
    last = look()
    assert [job.facts.job for job in last.pending] == [JOB]
    assert last.pending[0].facts is one.running[0].facts
