"""Several jobs on one device: never over its thousandths nor its memory, and whole devices stay whole."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.devices import WHOLE, DeviceRequest, NodeSlice, Placement
from phalanx.core.ids import JobId, NodeId
from phalanx.core.reasons import NeverFits
from phalanx.decide.scheduler import JobFacts, PendingJob, Snapshot, Start, Wait, schedule
from phalanx.decide.scheduler.snapshot import NodeFacts, Shape, Share
from phalanx.decide.scheduler.where.fit import fit
from phalanx.decide.scheduler.where.fleet import Fleet
from tests.decide.scheduler.fleets import MIB, gang, names, node, taken
from tests.drawn import examples


def share(milli: int, memory_mib: int = 0, num_nodes: int = 1, count: int = 1) -> Shape:
    return Shape(DeviceRequest((), count, milli, memory_mib * MIB), num_nodes)


def in_part(of: NodeFacts, *shares: tuple[int, int, int]) -> NodeFacts:
    """(index, thousandths left, MiB left) of devices that are not free as a whole."""
    held = {index for index, _, _ in shares}
    left = tuple(Share(index, milli, memory * MIB) for index, milli, memory in shares)
    return replace(of, free=tuple(index for index in of.free if index not in held), shares=left)


def put(shape: Shape, fleet: Fleet) -> Placement | None:
    rows = fit(shape, "H100", fleet, fleet.free["H100"])
    return None if rows is None else fleet.take(shape, "H100", [int(row) for row in rows])


def test_S12_24_shares_of_2000_mib_on_a_gpu_of_46068_mib() -> None:
    """23 run, one waits: its memory is a bound like its thousandths, of which there would be enough."""
    line = tuple(
        PendingJob(JobFacts(JobId(f"j-{number:02d}"), share(41, 2000), submitted_ms=number, sequence=number))
        for number in range(24)
    )
    plan = schedule(Snapshot(100, (node("a", 1, memory_mib=46_068),), (), line))
    started = [one.placement for one in plan.decisions if isinstance(one, Start)]
    assert len(started) == 23
    assert set(started) == {Placement((NodeSlice(NodeId("a"), (0,), 41, 2000 * MIB),))}
    (waits,) = [one for one in plan.decisions if isinstance(one, Wait)]
    assert waits.job == "j-23"
    assert waits.position == 1


def test_thousandths_are_a_bound_too() -> None:
    fleet = Fleet.of([node("a", 1, memory_mib=1000)])
    assert [put(share(300, 10), fleet) is not None for _ in range(4)] == [True, True, True, False]
    assert put(share(100, 10), fleet) is not None
    assert put(share(1, 10), fleet) is None


def test_a_share_without_a_bound_may_use_its_part_of_the_memory() -> None:
    fleet = Fleet.of([node("a", 1, memory_mib=1000)])
    placement = put(share(250), fleet)
    assert placement is not None
    assert placement.slices == (NodeSlice(NodeId("a"), (0,), 250, 250 * MIB),)
    assert put(share(100, 800), fleet) is None
    assert put(share(100, 750), fleet) is not None


def test_more_memory_than_the_device_has_never_fits() -> None:
    alone = PendingJob(JobFacts(JobId("j-1"), share(500, 2000)))
    (wait,) = schedule(Snapshot(0, (node("a", 8, memory_mib=1000),), (), (alone,))).decisions
    assert isinstance(wait, Wait)
    assert isinstance(wait.reason, NeverFits)


def test_the_tightest_shared_device_that_holds_it_comes_first_and_a_whole_one_last() -> None:
    nodes = [
        node("a", 4, memory_mib=1000),
        in_part(node("b", 4, free=1, memory_mib=1000), (0, 900, 900), (1, 400, 400), (2, 400, 300)),
        in_part(node("c", 4, memory_mib=1000), (3, 350, 350)),
    ]
    fleet = Fleet.of(nodes)
    assert [put(share(300), fleet) for _ in range(3)] == [
        Placement((NodeSlice(NodeId(name), (index,), 300, 300 * MIB),)) for name, index in (("c", 3), ("b", 2), ("b", 1))
    ]
    assert put(share(950), fleet) == Placement((NodeSlice(NodeId("b"), (3,), 950, 950 * MIB),)), "of the fullest node"
    assert fleet.free["H100"].tolist() == [4, 0, 3]


def test_shares_leave_whole_devices_to_whole_jobs() -> None:
    fleet = Fleet.of([node("a", 2, memory_mib=1000), node("b", 2, memory_mib=1000)])
    for _ in range(4):
        assert put(share(250), fleet) is not None
    assert names(gang(1, 2), fleet) == ["b"]
    assert taken(gang(1, 1), fleet) == ["a"]
    assert names(gang(1, 1), fleet) == ["b"]


def test_a_gang_of_shares_lies_on_as_many_nodes() -> None:
    fleet = Fleet.of(
        [node("a", 1, memory_mib=1000), in_part(node("b", 1, memory_mib=1000), (0, 500, 500)), node("c", 1, memory_mib=1000)]
    )
    assert names(share(500, num_nodes=3), fleet) == ["a", "b", "c"]
    assert names(share(600, num_nodes=3), fleet) is None
    assert names(share(600, num_nodes=2), fleet) == ["a", "c"]


def test_shares_of_several_devices_of_a_node() -> None:
    fleet = Fleet.of([in_part(node("a", 3, memory_mib=1000), (1, 600, 600)), node("b", 2, memory_mib=1000)])
    assert put(share(600, count=2), fleet) == Placement((NodeSlice(NodeId("a"), (0, 1), 600, 600 * MIB),))
    assert put(share(600, count=2), fleet) == Placement((NodeSlice(NodeId("b"), (0, 1), 600, 600 * MIB),))
    assert put(share(600, count=2), fleet) is None


def test_a_mig_slice_is_a_device_of_its_own_type() -> None:
    fleet = Fleet.of([node("a", 7, kind="H100-1g.10gb"), node("b", 1)])
    asked = Shape(DeviceRequest(("H100-1g.10gb",), 2))
    assert names(asked, fleet, "H100-1g.10gb") == ["a"]


def test_a_device_is_whole_again_once_all_its_shares_are_given_back() -> None:
    fleet = Fleet.of([node("a", 1, memory_mib=1000)])
    small, large = put(share(250), fleet), put(share(700), fleet)
    assert small is not None and large is not None
    assert fleet.free["H100"].tolist() == [0]
    fleet.give_back(share(250), small)
    assert fleet.shares.left(0, 0) == (300, 300 * MIB)
    assert not fleet.is_free(Placement((NodeSlice(NodeId("a"), (0,)),)))
    assert fleet.is_free(small)
    fleet.give_back(share(700), large)
    assert fleet.free["H100"].tolist() == [1]
    assert fleet.shares.left(0, 0) is None
    assert fleet.is_free(Placement((NodeSlice(NodeId("a"), (0,)),)))


def test_what_is_held_of_a_claim_is_what_was_free_of_it() -> None:
    fleet = Fleet.of([in_part(node("a", 3, free=2, memory_mib=1000), (1, 300, 300))])
    both = Placement((NodeSlice(NodeId("a"), (1, 2), 500, 500 * MIB),))
    assert fleet.hold(share(500), both) == Placement((NodeSlice(NodeId("a"), (2,), 500, 500 * MIB),))
    assert fleet.shares.left(0, 1) == (0, 0), "what is left of the device is promised with the rest of it"
    assert fleet.shares.left(0, 2) == (500, 500 * MIB)


def test_a_trial_leaves_the_shares_alone() -> None:
    fleet = Fleet.of([in_part(node("a", 2, memory_mib=1000), (1, 300, 300))])
    trial = fleet.copy()
    assert put(share(300), trial) is not None
    assert put(share(300), trial) is not None
    assert fleet.shares.left(0, 1) == (300, 300 * MIB)
    assert fleet.free["H100"].tolist() == [1]
    assert fleet.node(0) == fleet.ground.nodes[0]


def test_nothing_is_shared_on_a_node_that_may_be_given_no_work() -> None:
    fleet = Fleet.of([replace(in_part(node("a", 1, memory_mib=1000), (0, 300, 300)), schedulable=False)])
    assert put(share(300), fleet) is None


REQUESTS = st.builds(
    share,
    st.sampled_from([1, 50, 100, 250, 333, 500, 999]),
    st.sampled_from([0, 0, 1, 100, 500, 1000]),
    st.integers(1, 2),
    st.just(1),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(REQUESTS | st.builds(gang, st.integers(1, 2), st.integers(1, 2)), st.booleans()), max_size=40), st.data())
def test_whatever_comes_and_goes_no_device_is_over_its_bounds_and_all_comes_back(
    moves: list[tuple[Shape, bool]], data: st.DataObject
) -> None:
    idle = [node(name, 3, memory_mib=1000) for name in "abc"]
    fleet, held = Fleet.of(idle), list[tuple[Shape, Placement]]()
    for shape, goes in moves:
        if goes and held:
            fleet.give_back(*held.pop(data.draw(st.integers(0, len(held) - 1))))
        elif (placement := put(shape, fleet)) is not None:
            held.append((shape, placement))
        used: dict[tuple[str, int], tuple[int, int]] = {}
        for _, placement in held:
            for part in placement.slices:
                for index in part.devices:
                    milli, memory = used.get((part.node, index), (0, 0))
                    used[part.node, index] = (milli + part.milli, memory + part.memory_bytes)
        assert all(milli <= WHOLE and memory <= 1000 * MIB for milli, memory in used.values())
        assert Fleet.of([fleet.node(row) for row in range(3)]).free["H100"].tolist() == fleet.free["H100"].tolist()
        assert int(fleet.free["H100"].sum()) == 9 - len(used)
    for shape, placement in held:
        fleet.give_back(shape, placement)
    assert [fleet.node(row) for row in range(3)] == idle
