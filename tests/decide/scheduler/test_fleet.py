"""The fleet as columns: what is taken, given back, tried and read again."""

import random
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.devices import CPU_SLOT, DeviceRequest, NodeSlice, Placement
from phalanx.core.ids import NodeId
from phalanx.decide.scheduler.memory import Memory
from phalanx.decide.scheduler.snapshot import NodeFacts, Shape, Snapshot
from phalanx.decide.scheduler.where.fleet import Fleet
from tests.decide.scheduler.fleets import GIB, gang, node
from tests.decide.scheduler.snapshots import snapshots
from tests.drawn import examples


def on(name: str, *devices: int) -> Placement:
    return Placement((NodeSlice(NodeId(name), devices),))


def test_rows_are_in_order_of_names_and_types_put_cpu_slots_last() -> None:
    fleet = Fleet.of([node("b", 4, kind=CPU_SLOT), node("a", 2, 1, kind="T4"), node("c", 8, 3)])
    assert fleet.ground.kinds == ("H100", "T4", CPU_SLOT)
    assert [one.node for one in fleet.ground.nodes] == ["a", "b", "c"]
    assert {kind: free.tolist() for kind, free in fleet.free.items()} == {"H100": [0, 0, 3], "T4": [1, 0, 0], CPU_SLOT: [0, 4, 0]}
    assert {kind: total.tolist() for kind, total in fleet.ground.total.items()} == {
        "H100": [0, 0, 8], "T4": [2, 0, 0], CPU_SLOT: [0, 4, 0],
    }  # fmt: skip


def test_a_node_of_several_types_counts_each() -> None:
    mixed = replace(node("a", 4), devices=((0, "T4"), (1, "H100"), (2, "T4"), (3, "H100")), free=(1, 2, 3))
    fleet = Fleet.of([mixed])
    assert (fleet.free["H100"].tolist(), fleet.free["T4"].tolist()) == ([2], [1])
    assert fleet.devices(0, "H100") == [1, 3]
    assert fleet.take(gang(1, 2), "H100", [0]) == on("a", 1, 3)
    assert (fleet.free["H100"].tolist(), fleet.free["T4"].tolist()) == ([0], [1])


def test_what_is_taken_has_its_cores_and_memory_with_it_and_comes_back_with_them() -> None:
    fleet = Fleet.of([node("a", 8)])
    shape = replace(gang(1, 3), cpus=10.0, memory_bytes=GIB)
    placement = fleet.take(shape, "H100", [0])
    assert placement == on("a", 0, 1, 2)
    assert fleet.node(0) == replace(node("a"), free=(3, 4, 5, 6, 7), free_cpus=54.0, free_memory_bytes=511 * GIB)
    assert not fleet.is_free(placement)
    assert fleet.is_free(on("a", 7))
    fleet.give_back(shape, placement)
    assert fleet.node(0) == node("a")


def test_of_a_claim_that_is_in_part_held_only_what_is_free_is_taken() -> None:
    fleet = Fleet.of([node("a", 4, 2)])
    assert fleet.hold(gang(1, 3), on("a", 1, 2, 3)) == on("a", 2, 3)
    assert fleet.free["H100"].tolist() == [0]
    fleet.give_back(gang(1, 3), on("a", 2, 3))
    assert fleet.free["H100"].tolist() == [2]
    assert fleet.hold(gang(1), on("unknown", 1)) == Placement(())


def test_an_overdrawn_node_says_so() -> None:
    fleet = Fleet.of([node("a", 4)])
    shape = replace(gang(1, 1), cpus=40.0)
    first = fleet.hold(shape, on("a", 0))
    assert fleet.has_cores(shape, first)
    assert not fleet.has_cores(shape, fleet.hold(shape, on("a", 1)))


def test_nothing_is_free_on_a_node_that_may_be_given_no_work() -> None:
    fleet = Fleet.of([replace(node("a"), schedulable=False)])
    assert fleet.free["H100"].tolist() == [0]
    assert not fleet.is_free(on("a", 0))
    fleet.give_back(gang(1), on("a", 0))
    assert fleet.free["H100"].tolist() == [0]


def test_a_trial_changes_nothing() -> None:
    fleet = Fleet.of([node("a")])
    trial = fleet.copy()
    trial.take(gang(1, 8), "H100", [0])
    assert trial.free["H100"].tolist() == [0]
    assert fleet.node(0) == node("a")


def test_changes_are_counted_and_totals_kept_up() -> None:
    fleet = Fleet.of([node("a"), replace(node("b"), schedulable=False), replace(node("c", 8, 4), fenced=(0, 1))])
    totals = fleet.totals(gang(1), "H100")
    assert (totals.free, totals.total, totals.fenced, totals.closed) == (12, 16, 2, 8)
    before = fleet.version
    placement = fleet.take(gang(1, 8), "H100", [0])
    assert fleet.totals(gang(1), "H100").free == 4
    assert (fleet.version > before, fleet.grown) == (True, 0)
    fleet.give_back(gang(1, 8), placement)
    assert fleet.totals(gang(1), "H100").free == 12
    assert fleet.grown == 1


def test_labels_features_and_spot_say_where_a_job_may_run() -> None:
    nodes = [
        replace(node("a", labels={"zone": "x"}), features=frozenset({"image"})),
        replace(node("b", labels={"zone": "y"}), features=frozenset({"image", "lock"})),
        replace(node("c", labels={"zone": "x"}), spot=True),
    ]
    fleet = Fleet.of(nodes)
    asks = {
        Shape(DeviceRequest()): [True, True, False],
        Shape(DeviceRequest(), spot="allow"): [True, True, True],
        Shape(DeviceRequest(), needs=frozenset({"image"})): [True, True, False],
        Shape(DeviceRequest(), needs=frozenset({"lock"})): [False, True, False],
        Shape(DeviceRequest(), where=(("zone", "x"),), spot="prefer"): [True, False, True],
        Shape(DeviceRequest(), where=(("zone", "z"),)): [False, False, False],
        Shape(DeviceRequest(), where=(("row", "1"),)): [False, False, False],
    }
    for shape, able in asks.items():
        assert fleet.able(shape).tolist() == able


def test_nobody_counts_on_a_node_that_is_gone() -> None:
    fleet = Fleet.of([replace(node("a"), schedulable=False, gone=True), replace(node("b"), schedulable=False)])
    assert fleet.could_hold(gang(1), "H100").tolist() == [False, True]


@settings(max_examples=examples(100), deadline=None)
@given(snapshots(), st.randoms(use_true_random=False))
def test_room_in_tiers_is_kept_up_while_a_fleet_and_its_copies_change(snapshot: Snapshot, choosing: random.Random) -> None:
    fleet = Fleet.of(snapshot.nodes)
    fleets, gangs = [fleet, fleet.copy()], list(snapshot.running)
    choosing.shuffle(gangs)
    for one in gangs:
        trial = choosing.choice(fleets)
        for kind in fleet.ground.kinds:
            in_all = [np.bincount(number, trial.free[kind]).tolist() for number in fleet.ground.terrain.numbers]
            assert [room.tolist() for room in trial.room(kind)] == in_all
        trial.give_back(one.facts.shape, one.placement)
        if choosing.random() < 0.3:
            fleets.append(trial.copy())


def test_what_a_node_would_give_counts_what_is_let_go_of_for_it() -> None:
    fleet = Fleet.of([node("a", 8, 3)])
    free = fleet.devices(0, "H100")
    let_go = [index for index in range(8) if index not in free][:2]
    assert fleet.devices(0, "H100", let_go) == sorted([*free, *let_go])
    assert fleet.slice_of(DeviceRequest(("H100",), 5), "H100", 0, let_go).devices == tuple(sorted([*free, *let_go]))
    assert fleet.devices(0, "H100") == free


def columns(fleet: Fleet) -> tuple[object, ...]:
    ground = fleet.ground
    free = {kind: one.tolist() for kind, one in fleet.free.items()}
    shares = [(fleet.shares.left(row, index)) for row, types in enumerate(ground.types) for index in types]
    return ground.nodes, ground.schedulable.tolist(), ground.fenced, ground.closing, free, fleet.free_cpus.tolist(), shares


@settings(max_examples=examples(60), deadline=None)
@given(snapshots(), snapshots(), st.data())
def test_a_remembered_fleet_is_what_reading_it_anew_gives(first: Snapshot, second: Snapshot, data: st.DataObject) -> None:
    memory = Memory()
    for _ in range(3):
        changed = tuple(_changed(one, data) if data.draw(st.integers(0, 4)) == 0 else one for one in first.nodes)
        for nodes in (first.nodes, changed, second.nodes, changed):
            assert columns(memory.fleet(replace(first, nodes=nodes))) == columns(Fleet.of(nodes))


def _changed(one: NodeFacts, data: st.DataObject) -> NodeFacts:
    free = tuple(index for index in one.free if data.draw(st.booleans()))
    shares = one.shares if data.draw(st.booleans()) else ()
    labels = one.labels if data.draw(st.booleans()) else {"rack": "other"}
    schedulable, closing_ms = data.draw(st.booleans()), data.draw(st.sampled_from((None, 1)))
    fenced = tuple(index for index, _ in one.devices if index not in one.free)[: data.draw(st.integers(0, 1))]
    more = replace(one, schedulable=schedulable, closing_ms=closing_ms, fenced=fenced)
    return replace(more, free=free, shares=shares, labels=labels, free_cpus=1.0)
