"""A whole gang or nothing, on the fullest nodes that hold it, on the first type that does."""

from dataclasses import replace

from hypothesis import given, settings

from phalanx.core.devices import DeviceRequest
from phalanx.core.ids import JobId, NodeId
from phalanx.core.reasons import Geometry
from phalanx.decide.scheduler import JobFacts, PendingJob, Snapshot, Start, Wait, schedule
from phalanx.decide.scheduler.snapshot import NodeFacts, Shape
from phalanx.decide.scheduler.where.fit import fit, fits
from phalanx.decide.scheduler.where.fleet import Fleet
from tests.decide.scheduler.fleets import GIB, gang, names, node
from tests.decide.scheduler.snapshots import snapshots
from tests.drawn import examples


def decided(nodes: list[NodeFacts], shape: Shape) -> Start | Wait:
    (decision,) = schedule(Snapshot(0, tuple(nodes), (), (PendingJob(JobFacts(JobId("j-1"), shape)),))).decisions
    return decision


def lies(nodes: list[NodeFacts], shape: Shape) -> list[str]:
    decision = decided(nodes, shape)
    assert isinstance(decision, Start), decision
    return [part.node for part in decision.placement.slices]


def test_the_first_type_that_holds_the_whole_gang_is_taken() -> None:
    fleet = [node("a", 8, 4, kind="A100"), node("b", 8, 8, kind="H100"), node("c", 8, 8, kind="A100")]
    assert lies(fleet, Shape(DeviceRequest(("A100", "H100"), 8))) == ["c"]
    assert lies(fleet, Shape(DeviceRequest(("H100", "A100"), 8))) == ["b"]
    assert lies(fleet, Shape(DeviceRequest(("H100", "A100"), 4), 2)) == ["a", "c"], "one H100 node is not the whole gang"
    waits = decided(fleet, Shape(DeviceRequest(("H100", "A100"), 8), 2))
    assert isinstance(waits, Wait), "a gang mixes no types"


def test_S13_a_gang_that_does_not_fit_whole_takes_nothing() -> None:
    fleet = Fleet.of([node("a"), node("b", 8, 7)])
    assert names(gang(2), fleet) is None
    assert fleet.free["H100"].tolist() == [8, 7]


def test_enough_devices_that_lie_wrong_are_told_as_such() -> None:
    waits = decided([node("a", 8, 4), node("b", 8, 4)], gang(1))
    assert isinstance(waits, Wait)
    assert isinstance(waits.reason, Geometry)
    assert (waits.reason.asked, waits.reason.free, waits.reason.largest) == (8, 8, 0)


def test_an_elastic_gang_takes_as_many_nodes_as_there_are_down_to_its_fewest() -> None:
    fleet = Fleet.of([node("a"), node("b"), node("c", 8, 7)])
    assert names(replace(gang(4), min_nodes=2), fleet) == ["a", "b"]
    assert names(replace(gang(4), min_nodes=3), fleet) is None
    assert names(replace(gang(2), min_nodes=1), fleet) == ["a", "b"]


def test_avoided_nodes_and_what_is_kept_are_left_out() -> None:
    fleet = Fleet.of([node("a"), node("b"), node("c")])
    free = fleet.free["H100"].copy()
    free[1] = 0
    rows = fit(gang(1), "H100", fleet, free, {NodeId("a"), NodeId("never-seen")})
    assert rows is not None
    assert rows.tolist() == [2]
    assert fit(gang(2), "H100", fleet, free, {NodeId("a")}) is None


def test_cores_and_memory_are_a_bound_on_each_node() -> None:
    fleet = Fleet.of([replace(node("a"), free_cpus=10.0), replace(node("b"), free_memory_bytes=GIB), node("c")])
    assert names(replace(gang(1), cpus=11.0), fleet) == ["b"]
    assert names(replace(gang(1), memory_bytes=2 * GIB), fleet) == ["a"]
    assert names(replace(gang(1), cpus=11.0, memory_bytes=2 * GIB), fleet) == ["c"]
    assert names(replace(gang(2), cpus=11.0, memory_bytes=2 * GIB), fleet) is None


@settings(max_examples=examples(300), deadline=None)
@given(snapshots())
def test_whether_a_gang_fits_is_whether_rows_are_found_for_it(snapshot: Snapshot) -> None:
    fleet = Fleet.of(snapshot.nodes)
    for job in snapshot.pending:
        for kind in fleet.ground.kinds:
            for avoids in (job.avoids, frozenset(one.node for one in snapshot.nodes[:1])):
                asked = job.facts.shape, kind, fleet, fleet.free[kind], avoids
                assert fits(*asked) == (fit(*asked) is not None)
