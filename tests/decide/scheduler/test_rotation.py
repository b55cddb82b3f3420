"""Time-sharing by order: whole gangs, no device twice, and nobody makes room for nothing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.ids import JobId, NodeId
from phalanx.decide.scheduler.line.rotation import Gang, Rotation, rotate

NODES = tuple(NodeId(f"n{number}") for number in range(4))
PER_NODE = 8
IDLE = dict.fromkeys(NODES, PER_NODE)


def gang(name: str, devices: int, *held: int, settled: bool = True) -> Gang:
    per_node = min(devices, PER_NODE)
    return Gang(JobId(name), devices // per_node, per_node, tuple(NODES[number] for number in held), settled)


def left(gangs: Sequence[Gang], total: Mapping[NodeId, int] = IDLE) -> dict[NodeId, int]:
    held = Counter[NodeId]()
    for one in gangs:
        for node in one.held:
            held[node] += one.per_node
    return {node: devices - held[node] for node, devices in total.items()}


def nodes_after(gangs: Sequence[Gang], rotation: Rotation) -> dict[JobId, tuple[NodeId, ...]]:
    found = {one.job: one.held for one in gangs if one.job in rotation.keeps}
    return {**found, **dict(rotation.starts)}


def applied(gangs: Sequence[Gang], rotation: Rotation) -> list[Gang]:
    found = nodes_after(gangs, rotation)
    return [replace(one, held=found.get(one.job, ())) for one in gangs]


@st.composite
def lines(draw: st.DrawFn, sizes: Sequence[int] = (1, 2, 3, 4, 5, 8, 16, 32)) -> list[Gang]:
    """Gangs in some order, of which those run that fit, each where it was drawn to."""
    gangs, free = list[Gang](), dict(IDLE)
    for number, devices in enumerate(draw(st.lists(st.sampled_from(sizes), max_size=12))):
        one = gang(f"job-{number}", devices)
        roomy = [node for node in draw(st.permutations(NODES)) if free[node] >= one.per_node]
        if draw(st.booleans()) and len(roomy) >= one.num_nodes:
            one = replace(one, held=tuple(sorted(roomy[: one.num_nodes])), settled=draw(st.integers(0, 4)) > 0)
            for node in one.held:
                free[node] -= one.per_node
        gangs.append(one)
    return draw(st.permutations(gangs))


@given(lines(), st.booleans(), st.sets(st.sampled_from(NODES), max_size=2))
def test_gangs_are_whole_and_no_device_is_given_twice(gangs: list[Gang], may_move: bool, closed: set[NodeId]) -> None:
    free = {node: devices for node, devices in left(gangs).items() if node not in closed}
    rotation = rotate(gangs, free, may_move)
    after = nodes_after(gangs, rotation)
    assert min(left(applied(gangs, rotation)).values()) >= 0
    for one in gangs:
        nodes = after.get(one.job, ())
        assert len(nodes) in (0, one.num_nodes)
        assert len(set(nodes)) == len(nodes)
        assert nodes == one.held or not closed & set(nodes)
        assert (one.job in rotation.keeps) == (bool(one.held) and nodes == one.held)
        assert (one.job in rotation.evicts) == (bool(one.held) and nodes != one.held)
    assert len(rotation.keeps) == len(set(rotation.keeps))
    assert not set(rotation.keeps) & {job for job, _ in rotation.starts}


@given(lines(), st.booleans())
def test_nobody_makes_room_but_for_one_before_it_that_gets_it(gangs: list[Gang], may_move: bool) -> None:
    rotation = rotate(gangs, left(gangs), may_move)
    place = {one.job: number for number, one in enumerate(gangs)}
    waited = {one.job for one in gangs if not one.held}
    for one in gangs:
        if one.job in rotation.evicts:
            assert one.settled
            if one.job not in dict(rotation.starts):
                assert any(place[job] < place[one.job] and set(nodes) & set(one.held) for job, nodes in rotation.starts)
    assert not rotation.evicts or any(job in waited for job, _ in rotation.starts)


@given(lines(), st.booleans())
def test_of_equal_gangs_the_later_one_is_never_served_while_the_earlier_one_waits(gangs: list[Gang], may_move: bool) -> None:
    after = nodes_after(gangs, rotate(gangs, left(gangs), may_move))
    for number, first in enumerate(gangs):
        for later in gangs[number + 1 :]:
            if (first.num_nodes, first.per_node) == (later.num_nodes, later.per_node) and later.settled:
                assert first.job in after or later.job not in after


@given(lines(sizes=(1, 2, 4, 8, 16, 32)))
def test_nothing_stands_idle_that_somebody_could_use_and_a_second_look_moves_nobody(gangs: list[Gang]) -> None:
    gangs = [replace(one, settled=True) for one in gangs]
    rotation = rotate(gangs, left(gangs))
    then = applied(gangs, rotation)
    idle = sum(left(then).values())
    assert all(one.held or one.num_nodes * one.per_node > idle for one in then)
    assert rotate(then, left(then)) == Rotation(tuple(one.job for one in then if one.held), (), ())


def test_a_gang_displaces_whoever_comes_latest() -> None:
    gangs = [gang("new", 8), *(gang(f"old-{number}", 8, number) for number in (2, 0, 1, 3))]
    assert rotate(gangs, left(gangs)) == Rotation(
        (JobId("old-2"), JobId("old-0"), JobId("old-1")), (JobId("old-3"),), ((JobId("new"), (NODES[3],)),)
    )


def test_free_devices_are_taken_before_anybody_is_displaced_the_fullest_node_first() -> None:
    gangs = [gang("new", 2), gang("a", 4, 0), gang("b", 1, 1)]
    assert rotate(gangs, left(gangs)).starts == ((JobId("new"), (NODES[0],)),)


def test_small_gangs_move_together_for_a_large_one_and_only_if_they_may() -> None:
    gangs = [*(gang(f"small-{number}", 2, number) for number in range(4)), gang("large", 16)]
    moved = rotate(gangs, left(gangs))
    assert JobId("large") in dict(moved.starts)
    assert len(moved.keeps) == 2
    assert set(moved.evicts) < set(dict(moved.starts))
    assert rotate(gangs, left(gangs), may_move=False) == Rotation(tuple(one.job for one in gangs[:4]), (), ())


def test_who_has_just_started_stays_whoever_comes() -> None:
    gangs = [gang("new", 32), *(gang(f"old-{number}", 8, number, settled=number > 0) for number in range(4))]
    assert rotate(gangs, left(gangs)) == Rotation(tuple(one.job for one in gangs[1:]), (), ())


def test_smaller_gangs_use_what_a_larger_one_cannot() -> None:
    gangs = [gang("a", 8, 0, settled=False), gang("large", 32), gang("small", 8)]
    assert rotate(gangs, left(gangs)).starts == ((JobId("small"), (NODES[1],)),)


def test_on_a_closed_node_gangs_stay_and_nobody_starts() -> None:
    gangs = [gang("first", 32), gang("old", 4, 0), gang("small", 4)]
    free = {node: devices for node, devices in left(gangs).items() if node != NODES[0]}
    assert rotate(gangs, free) == Rotation((JobId("old"),), (), ((JobId("small"), (NODES[1],)),))


def test_a_gang_is_placed_whole_in_one_of_its_cells_where_it_displaces_whoever_comes_latest() -> None:
    cells = (frozenset(NODES[:2]), frozenset(NODES[2:]))
    gangs = [replace(gang("new", 16), cells=cells), *(gang(f"old-{number}", 8, number) for number in (3, 0, 2, 1))]
    rotation = rotate(gangs, left(gangs))
    assert dict(rotation.starts)[JobId("new")] == NODES[:2]
    assert JobId("old-1") in rotation.evicts and JobId("old-3") in rotation.keeps
    gangs[0] = replace(gangs[0], cells=(frozenset(NODES[:1]), frozenset(NODES[2:3])))
    assert not rotate(gangs, left(gangs)).starts


@given(lines(), st.booleans(), st.permutations(NODES))
def test_who_starts_lies_in_its_cells(gangs: list[Gang], may_move: bool, nodes: list[NodeId]) -> None:
    cells = (frozenset(nodes[:1]), frozenset(nodes[1:]))
    gangs = [one if one.held else replace(one, cells=cells) for one in gangs]
    rotation = rotate(gangs, left(gangs), may_move)
    waited = {one.job for one in gangs if not one.held}
    assert all(any(set(where) <= cell for cell in cells) for job, where in rotation.starts if job in waited)
    assert all(devices >= 0 for devices in left(applied(gangs, rotation)).values())
