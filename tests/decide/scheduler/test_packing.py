"""Policy `packing: expected_idle`: the live scheduler puts jobs of one node where the packer would, and keeps to its own rules."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.devices import CPU_SLOT, DeviceRequest, NodeSlice, Placement
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.policy import Policy
from phalanx.decide.scheduler import JobFacts, PendingJob, RunningJob, Snapshot, Start, schedule
from phalanx.decide.scheduler.memory import Memory
from phalanx.decide.scheduler.snapshot import NodeFacts, Shape, Share
from phalanx.decide.scheduler.where.columns import Columns, Node, Pod, Popular, popular
from phalanx.decide.scheduler.where.expected_idle import ExpectedIdle
from phalanx.decide.scheduler.where.fleet import Fleet
from phalanx.decide.scheduler.where.mix import KINDS_MAX, SEEN_MAX, Seen, mix_of, pod_of
from phalanx.decide.scheduler.why.history import History
from phalanx.decide.scheduler.why.lessons import Lessons
from tests.decide.scheduler.fleets import GIB, node
from tests.decide.scheduler.snapshots import snapshots
from tests.drawn import examples

PACKS = Policy(packing="expected_idle")
KINDS = (
    Shape(DeviceRequest((), 1, 810), cpus=3.0, memory_bytes=4 * GIB),
    Shape(DeviceRequest((), 1, 190), cpus=1.0, memory_bytes=2 * GIB),
    Shape(DeviceRequest((), 1), cpus=4.0, memory_bytes=8 * GIB),
    Shape(DeviceRequest((), 4), cpus=16.0, memory_bytes=32 * GIB),
    Shape(DeviceRequest(("T4",), 1, 500), cpus=1.0, memory_bytes=1 * GIB),
)
FLEET = (node("c", 8), node("a", 4), node("d", 2, kind="T4"), node("b", 2, kind="T4"))


def world(nodes: Sequence[NodeFacts], *waiting: Shape, mix: Sequence[Popular] = (), policy: Policy = PACKS) -> Snapshot:
    pending = tuple(PendingJob(JobFacts(JobId(f"j-{number}"), shape, sequence=number)) for number, shape in enumerate(waiting))
    return Snapshot(0, tuple(nodes), (), pending, policy, history=History(mix=tuple(mix)))


def lies(snapshot: Snapshot, memory: Memory | None = None) -> list[NodeSlice | None]:
    """Of each job, in order of their ids."""
    decisions = sorted(schedule(snapshot, memory).decisions, key=lambda one: one.job)
    return [one.placement.slices[0] if isinstance(one, Start) else None for one in decisions]


@pytest.mark.parametrize("seed", range(4))
def test_jobs_one_by_one_go_where_the_packer_puts_them(seed: int) -> None:
    chance = np.random.default_rng(seed)
    coming = [KINDS[index] for index in chance.choice(len(KINDS), size=40, p=[0.3, 0.3, 0.2, 0.05, 0.15])]
    mix = popular(pod_of(shape) for shape in coming)
    peers = [Node(one.node, 64_000, 512 * 1024, len(one.devices), one.devices[0][1]) for one in FLEET]
    packer, memory, fleet = ExpectedIdle(Columns(peers), mix), Memory(), Fleet.of(FLEET)
    nodes, num_refused = {one.node: one for one in FLEET}, 0
    for shape in coming:
        found = lies(world(tuple(nodes.values()), shape, mix=mix), memory)
        assert found == lies(world(tuple(nodes.values()), shape, mix=mix)), "a memory changes no decision"
        spot = packer.choose(pod_of(shape))
        if spot is None:
            assert found == [None]
            num_refused += 1
            continue
        packer.take(spot, pod_of(shape))
        name = NodeId(packer.columns.names[spot.node])
        assert found == [NodeSlice(name, spot.gpus, shape.request.milli)]
        fleet.hold(shape, Placement((NodeSlice(name, spot.gpus, shape.request.milli),)))
        nodes[name] = fleet.node(fleet.ground.row[name])
    assert 0 < num_refused < len(coming), "the fleet fills up"


def test_all_at_once_lie_as_one_by_one() -> None:
    """What a decision gives away is seen by the next job in it. Kinds of jobs are known from those that wait."""
    coming = (KINDS[0], KINDS[1], KINDS[1], KINDS[0], KINDS[4], KINDS[2], KINDS[0])
    together = lies(world(FLEET, *coming))
    memory, fleet, mix = Memory(), Fleet.of(FLEET), mix_of(world(FLEET, *coming))
    nodes: tuple[NodeFacts, ...] = FLEET
    for shape, expected in zip(coming, together, strict=True):
        (found,) = lies(world(nodes, shape, mix=mix), memory)
        assert found is not None
        assert found == expected
        fleet.hold(shape, Placement((found,)))
        nodes = tuple(fleet.node(row) for row in range(len(FLEET)))


def test_it_fills_the_gap_that_the_tight_rule_leaves() -> None:
    """810 and 190 milli make a whole. The fullest device has 400 left, which only halves want; nobody wants the other 190."""
    fleet = (replace(node("a", 2, 0), shares=(Share(0, 400, 0), Share(1, 190, 0))), node("b", 2))
    mix = [Popular(Pod(0, 0, 1, 400), 50), Popular(Pod(0, 0, 1, 810), 40), Popular(Pod(0, 0, 1, 190), 40)]
    small = Shape(DeviceRequest((), 1, 190))
    assert lies(world(fleet, small, mix=mix)) == [NodeSlice(NodeId("a"), (1,), 190)]


def test_nodes_that_may_not_be_used_are_no_choice() -> None:
    """Drained, avoided, without the label, reserved for somebody, or without the memory that a share holds."""
    fleet = [node(name, 2, labels={"rack": name}) for name in "abcd"]
    fleet[0] = replace(fleet[0], schedulable=False)
    share = Shape(DeviceRequest((), 1, 500))
    assert lies(world(fleet, share)) == [NodeSlice(NodeId("b"), (0,), 500)]
    avoided = world(fleet, share)
    avoided = replace(avoided, pending=(replace(avoided.pending[0], avoids=frozenset({NodeId("b")})),))
    assert lies(avoided) == [NodeSlice(NodeId("c"), (0,), 500)]
    assert lies(world(fleet, replace(share, where=(("rack", "d"),)))) == [NodeSlice(NodeId("d"), (0,), 500)]
    spared = world(fleet, share, policy=replace(PACKS, spares={"H100": 2}))
    placed = lies(spared)
    assert placed == lies(replace(spared, policy=Policy(spares={"H100": 2}))), "two of three are kept"
    full = [replace(node("a", 2, 1, memory_mib=1024), shares=(Share(0, 500, 2**20),)), node("b", 0)]
    assert lies(world(full, share)) == [NodeSlice(NodeId("a"), (1,), 500, 2**29)]


def test_mixed_nodes_cpu_slots_and_gangs_lie_as_ever() -> None:
    mixed = replace(node("a", 2), devices=((0, "H100"), (1, "T4")))
    slots = node("b", 4, kind=CPU_SLOT)
    gang = Shape(DeviceRequest(("A100",), 8), 2)
    fleet = (mixed, slots, node("c", kind="A100"), node("d", kind="A100"))
    asked = (Shape(DeviceRequest(("H100",), 1, 500)), Shape(DeviceRequest((CPU_SLOT,), 2)), gang)
    assert lies(world(fleet, *asked)) == lies(world(fleet, *asked, policy=Policy())) != [None] * 3


def test_types_are_tried_in_the_order_of_the_job_and_together_without_one() -> None:
    """Others must have T4s, so that a job without a wish keeps off them."""
    mix = [Popular(Pod(1000, 0, 1, 1000), 1), Popular(Pod(1000, 0, 1, 1000, frozenset({"A10"})), 9)]
    fleet = (node("a", 4, kind="A10"), node("b", 4, kind="T4"))
    assert [one.node for one in lies(world(fleet, Shape(DeviceRequest((), 1), cpus=1.0), mix=mix)) if one] == ["b"]
    wishes = Shape(DeviceRequest(("A10", "T4"), 1), cpus=1.0)
    assert [one.node for one in lies(world(fleet, wishes, mix=mix)) if one] == ["a"]


def test_a_start_that_came_to_nothing_and_another_mix_are_not_remembered() -> None:
    """The same nodes again, as when what was decided could not be committed."""
    memory, whole = Memory(), Shape(DeviceRequest((), 2))
    fleet = (node("a", 2), node("b", 2), node("c", 8))
    for _ in range(2):
        assert lies(world(fleet, whole, whole), memory) == lies(world(fleet, whole, whole)) != [None, None]
    apart = (node("a", 2, kind="A10"), node("b", 2, kind="T4"))
    found = list[str]()
    for kind in ("A10", "T4"):
        mix = [Popular(Pod(0, 0, 1, 1000), 1), Popular(Pod(0, 0, 1, 1000, frozenset({kind})), 9)]
        (part,) = lies(world(apart, Shape(DeviceRequest((), 1)), mix=mix), memory)
        found.append(part.node if part else "")
    assert found == ["b", "a"]


@settings(max_examples=examples(40))
@given(snapshots(), st.data())
def test_a_memory_and_the_order_of_the_snapshot_change_nothing(snapshot: Snapshot, data: st.DataObject) -> None:
    packs = replace(snapshot, policy=replace(snapshot.policy, packing="expected_idle"))
    memory = Memory()
    plan = schedule(packs, memory)
    changed = replace(packs, nodes=tuple(data.draw(st.permutations(packs.nodes))), pending=packs.pending[1:])
    for again in (changed, packs, replace(packs, running=tuple(data.draw(st.permutations(packs.running))))):
        assert schedule(again, memory) == schedule(again)
    assert schedule(packs) == plan


@settings(max_examples=examples(60))
@given(snapshots())
def test_what_starts_was_free(snapshot: Snapshot) -> None:
    """No device twice, with the cores and memory that go with it, on a node that may be used."""
    packs = replace(snapshot, policy=replace(snapshot.policy, packing="expected_idle"))
    jobs = {job.facts.job: job for job in packs.pending}
    fleet = Fleet.of(packs.nodes)
    for start in schedule(packs).decisions:
        if isinstance(start, Start):
            job = jobs[start.job]
            assert fleet.is_free(start.placement)
            assert job.avoids.isdisjoint(part.node for part in start.placement.slices)
            assert fleet.hold(job.facts.shape, start.placement) == start.placement
            assert fleet.has_cores(job.facts.shape, start.placement)


# What is known of jobs to come


def test_kinds_are_told_anew_when_there_are_a_quarter_more() -> None:
    lessons, told = Lessons(), list[tuple[Popular, ...]]()
    for number in range(40):
        lessons.submitted(JobFacts(JobId(f"j-{number}"), KINDS[number % 2], sequence=number))
        if not told or told[-1] != lessons.history.mix:
            told.append(lessons.history.mix)
    assert len(told) < 15
    assert told[0] == (Popular(pod_of(KINDS[0]), 1),)
    assert {kind.pod for kind in told[-1]} == {pod_of(KINDS[0]), pod_of(KINDS[1])}
    assert sum(kind.seen for kind in told[-1]) > 40 / 1.3


def test_a_gang_counts_on_each_of_its_nodes_and_kinds_are_bounded() -> None:
    seen = Seen()
    assert seen.submitted(Shape(DeviceRequest((), 8), 16)) == (Popular(Pod(0, 0, 8, 1000), 16),)
    for number in range(3 * KINDS_MAX):
        mix = seen.submitted(Shape(DeviceRequest(), cpus=float(number))) or ()
        assert len(mix) <= KINDS_MAX
    assert seen.submitted(Shape(DeviceRequest(), SEEN_MAX)) is not None, "a rush is news"


def test_absurd_amounts_are_cut_to_what_columns_hold() -> None:
    """Such a job never fits, and does not keep others from being placed."""
    absurd = Shape(DeviceRequest((), 1), cpus=1e12, memory_bytes=2**70)
    huge = replace(node("a", 2), cpus=1e9, free_cpus=1e9, memory_bytes=2**60, free_memory_bytes=2**60)
    assert lies(world((huge,), absurd, Shape(DeviceRequest((), 1)))) == [None, NodeSlice(NodeId("a"), (0,))]
    assert lies(world((node("b", 4, kind=CPU_SLOT),), absurd, Shape(DeviceRequest((), 1)))) == [None, NodeSlice(NodeId("b"), (0,))]


def test_running_jobs_are_known_too() -> None:
    (waiting,) = world((), KINDS[0]).pending
    running = RunningJob(replace(waiting.facts, job=JobId("r-1")), AttemptId("r-1.1"), Placement(()), 0)
    assert mix_of(replace(world((), KINDS[0]), running=(running,))) == (Popular(pod_of(KINDS[0]), 2),)
