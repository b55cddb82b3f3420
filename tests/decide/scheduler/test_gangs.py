"""Running gangs as columns: what is kept from one decision to the next is what reading them anew gives."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.devices import WHOLE, DeviceRequest, NodeSlice, Placement
from phalanx.core.ids import JobId, NodeId, attempt_id
from phalanx.decide.scheduler import JobFacts, RunningJob, Shape, Snapshot
from phalanx.decide.scheduler.room.ends import NEVER, all_end_ms, end_ms
from phalanx.decide.scheduler.room.gangs import UNLIMITED, Gangs
from phalanx.decide.scheduler.where.ground import Ground, survey
from tests.decide.scheduler.fleets import GIB, node
from tests.decide.scheduler.snapshots import snapshots
from tests.drawn import examples

GROUND = survey([node("a"), node("b"), node("c", kind="T4")])


def gang(name: str, *parts: NodeSlice, queue: str = "default", shape: Shape | None = None) -> RunningJob:
    job = JobId(name)
    return RunningJob(JobFacts(job, shape or Shape(DeviceRequest()), queue), attempt_id(job, 1), Placement(parts), 0)


def part(name: str, *devices: int, milli: int = WHOLE) -> NodeSlice:
    return NodeSlice(NodeId(name), devices, milli)


def columns(gangs: Gangs) -> tuple[object, ...]:
    slices = gangs.slices
    return gangs.all, gangs.jobs, gangs.place, gangs.queues, gangs.table.tolist(), slices.table.tolist(), slices.cpus.tolist()


def test_gangs_stand_in_order_of_names_and_their_slices_in_order_of_ranks() -> None:
    shape = Shape(DeviceRequest((), 2), 3, 2, cpus=4.0, memory_bytes=GIB)
    limited = gang("j-1", part("b", 0, 1), part("away", 0, 1), part("a", 6, 7), shape=shape)
    limited = replace(limited, facts=replace(limited.facts, limit_ms=60_000, priority=75))
    shared = gang("j-2", part("c", 3, milli=250), queue="a", shape=Shape(DeviceRequest((), 1, 250)))
    found = Gangs.of((shared, limited), GROUND)
    assert [one.facts.job for one in found.all] == ["j-1", "j-2"]
    assert [found.queues[at] for at in found.queue] == ["default", "a"]
    assert found.limit_ms.tolist() == [60_000, UNLIMITED]
    assert [GROUND.kinds[at] for at in found.kind] == ["H100", "T4"]
    assert (found.devices.tolist(), found.held.tolist(), found.amount.tolist()) == ([6, 1], [6000, 250], [6000, 250])
    assert (found.more_nodes.tolist(), found.shares.tolist()) == ([1, 0], [False, True])
    assert [GROUND.nodes[row].node for row in found.slices.row] == ["b", "a", "c"], "who is away is left out"
    assert (found.slices.gang.tolist(), found.slices.part.tolist()) == ([0, 0, 1], [0, 2, 0])
    assert (found.slices.cpus.tolist(), found.slices.memory.tolist()) == ([4.0, 4.0, 0.0], [GIB, GIB, 0])


def test_a_gang_on_nodes_that_nobody_knows_has_no_type() -> None:
    found = Gangs.of((gang("j-1", part("away", 0)), gang("j-2")), GROUND)
    assert found.kind.tolist() == [-1, -1]
    assert (found.devices.tolist(), len(found.slices.row)) == ([1, 0], 0)


def test_nobody_runs() -> None:
    assert Gangs.of((), GROUND).renewed((), GROUND).all == ()


@settings(max_examples=examples(100), deadline=None)
@given(snapshots(), st.data())
def test_what_came_and_went_gives_the_same_as_all_anew(snapshot: Snapshot, data: st.DataObject) -> None:
    """Some gangs stay, some go, some come again as other objects, in any order."""
    ground = survey(snapshot.nodes)
    kept = Gangs.of(snapshot.running, ground)
    for _ in range(4):
        numbers = data.draw(st.lists(st.integers(0, max(0, len(snapshot.running) - 1)), unique=True))
        chosen = [snapshot.running[number] for number in numbers[: len(snapshot.running)]]
        running = tuple(_other(one) if data.draw(st.booleans()) else one for one in chosen)
        kept = kept.renewed(running, ground)
        assert columns(kept) == columns(Gangs.of(running, ground))
        assert kept.renewed(running[::-1], ground) is kept


def _other(one: RunningJob) -> RunningJob:
    return replace(one, facts=replace(one.facts, queue="another"), stopping=True)


@settings(max_examples=examples(100), deadline=None)
@given(snapshots(), st.integers(-(10**9), 10**9))
def test_ends_of_all_are_those_of_each(snapshot: Snapshot, passed_ms: int) -> None:
    ground, now_ms = survey(snapshot.nodes), snapshot.now_ms + passed_ms
    gangs = Gangs.of(snapshot.running, ground)
    assert all_end_ms(gangs, now_ms).tolist() == [end_ms(one, now_ms) for one in gangs.all]


def test_a_gang_without_a_limit_ends_when_it_is_asked_to() -> None:
    endless = gang("j-1", part("a", 0))
    assert ends_ms((endless,), GROUND) == [NEVER]
    assert ends_ms((replace(endless, stopping=True),), GROUND) == [60_000]


def ends_ms(running: Sequence[RunningJob], ground: Ground) -> list[int]:
    found: list[int] = all_end_ms(Gangs.of(running, ground), 0).tolist()
    return found
