"""Gangs lie near together, in the smallest container that holds them, and fill what is partly filled first."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.policy import TIERS, Tier
from phalanx.decide.scheduler.snapshot import NodeFacts, Shape
from phalanx.decide.scheduler.where.eligible import eligible_types, largest_idle, largest_now
from phalanx.decide.scheduler.where.fleet import Fleet
from tests.decide.scheduler.fleets import gang, names, node, taken
from tests.drawn import examples


def racks(num_racks: int, nodes_each: int, count: int = 8, busy: dict[str, int] | None = None) -> Fleet:
    """Nodes `r0n00`, ...; two racks a block. busy: devices that are held, by node."""
    held = busy or {}
    return Fleet.of(
        node(name, count, count - held.get(name, 0), labels={"rack": f"r{rack}", "block": f"b{rack // 2}"})
        for rack in range(num_racks)
        for number in range(nodes_each)
        for name in [f"r{rack}n{number:02d}"]
    )


def test_S14_small_jobs_fill_the_fewest_racks() -> None:
    """33 racks of 18 nodes of 4 GPUs; jobs of one GPU, as many as two racks and a half hold."""
    fleet = racks(33, 18, 4)
    where = [taken(gang(1, 1), fleet) for _ in range(180)]
    used = Counter(name[0][:-3] for name in where if name is not None)
    assert sorted(used.values()) == [36, 72, 72]


def test_S14_after_some_have_ended_partly_filled_nodes_and_racks_come_first() -> None:
    busy = {"r1n03": 3, "r2n01": 2, "r2n02": 4, "r2n03": 4}
    fleet = racks(3, 4, 4, busy)
    assert [taken(gang(1, 1), fleet) for _ in range(4)] == [["r1n03"], ["r2n01"], ["r2n01"], ["r2n00"]]


def test_a_gang_takes_the_smallest_container_that_holds_it() -> None:
    fleet = racks(4, 4, busy={"r0n00": 8, "r2n00": 8, "r2n01": 8})
    assert names(gang(2), fleet) == ["r2n02", "r2n03"], "the rack with two left, not one with more"
    assert names(gang(3), fleet) == ["r0n01", "r0n02", "r0n03"]
    assert names(gang(4), fleet) == ["r1n00", "r1n01", "r1n02", "r1n03"]
    assert names(gang(6), fleet) == ["r2n02", "r2n03", "r3n00", "r3n01", "r3n02", "r3n03"], "one block, with no room besides"
    assert names(gang(14), fleet) is None


def test_what_spans_takes_the_fewest_containers_and_ranks_run_along_them() -> None:
    busy = {f"r{rack}n00": 8 for rack in (0, 1, 2)} | {"r0n01": 8}
    fleet = racks(6, 3, busy=busy)  # free in the racks: 1, 2, 2, 3, 3, 3
    assert names(gang(8), fleet) == ["r1n01", "r1n02", "r4n00", "r4n01", "r4n02", "r5n00", "r5n01", "r5n02"]
    where = names(gang(9), fleet)
    assert where is not None
    assert {name[:2] for name in where} == {"r3", "r4", "r5"}
    assert [name[:2] for name in where] == sorted(name[:2] for name in where)


def test_nodes_without_labels_are_filled_by_how_full_they_are() -> None:
    fleet = Fleet.of([node("a", free=8), node("b", free=3), node("c", free=2), node("d", free=3)])
    assert names(gang(1, 3), fleet) == ["b"]
    assert names(gang(2, 2), fleet) == ["b", "c"]
    assert names(gang(4, 2), fleet) == ["a", "b", "c", "d"]


def within(tier: Tier, num_nodes: int, **more: int) -> Shape:
    return replace(gang(num_nodes), within=tier, **more)  # type: ignore[arg-type]


def test_within_is_one_container_or_nothing() -> None:
    fleet = racks(4, 4, busy={"r0n00": 8, "r1n01": 8, "r1n00": 8})
    assert names(within("rack", 3), fleet) == ["r0n01", "r0n02", "r0n03"]
    assert names(within("rack", 4), fleet) == ["r2n00", "r2n01", "r2n02", "r2n03"]
    assert names(within("rack", 5), fleet) is None
    assert names(within("block", 5), fleet) == ["r0n01", "r0n02", "r0n03", "r1n02", "r1n03"]
    assert names(within("block", 8), fleet) == [f"r{rack}n0{number}" for rack in (2, 3) for number in range(4)]
    assert eligible_types(within("rack", 5), fleet) == ()
    assert largest_idle(within("rack", 5), "H100", fleet) == 4
    assert largest_now(within("block", 9), "H100", fleet) == 8
    assert eligible_types(within("block", 8), fleet) == ("H100",)


def test_within_an_elastic_gang_takes_what_one_container_has() -> None:
    fleet = racks(2, 4, busy={"r0n00": 8, "r1n00": 8, "r1n01": 8})
    assert names(within("rack", 4, min_nodes=2), fleet) == ["r0n01", "r0n02", "r0n03"]
    assert names(within("rack", 4, min_nodes=4), fleet) is None


def test_within_a_tier_that_no_node_has_a_label_of_is_one_node() -> None:
    fleet = racks(2, 4)
    assert names(within("domain", 2), fleet) is None
    assert names(within("domain", 1), fleet) == ["r0n00"]
    assert eligible_types(within("domain", 2), fleet) == ()


def grouped(num_nodes: int, group: int, tier: Tier = "domain", **more: object) -> Shape:
    return replace(gang(num_nodes), group=group, group_within=tier, **more)  # type: ignore[arg-type]


def domains(sizes: str) -> Fleet:
    """One domain a digit, with so many free nodes and one that is held; four domains a rack."""
    return Fleet.of(
        node(f"d{place}n{number}", 8, 8 if number else 0, labels={"domain": f"d{place}", "rack": f"r{place // 4}"})
        for place, size in enumerate(sizes)
        for number in range(int(size) + 1)
    )


def test_each_group_of_nodes_in_rank_order_lies_in_one_domain() -> None:
    fleet = domains("1343")
    assert names(grouped(4, 2), fleet) == ["d2n1", "d2n2", "d2n3", "d2n4"], "both groups in one domain"
    where = names(grouped(6, 2), fleet)
    assert where == ["d1n1", "d1n2", "d2n1", "d2n2", "d2n3", "d2n4"]
    assert names(grouped(8, 2), fleet) == ["d1n1", "d1n2", "d2n1", "d2n2", "d2n3", "d2n4", "d3n1", "d3n2"]
    assert names(grouped(10, 2), fleet) is None, "eleven nodes are free, but in four pairs"
    assert largest_now(grouped(10, 2), "H100", fleet) == 8
    assert names(grouped(6, 3), fleet) is not None
    assert names(grouped(9, 3), fleet) == [f"d{place}n{number}" for place in (1, 2, 3) for number in (1, 2, 3)]


def test_groups_that_may_lie_wider_than_the_whole_gang_do_not() -> None:
    """Two nodes in one rack, in a group that one block would do for: the first two of the block are in two racks."""
    fleet = racks(2, 2, busy={"r0n01": 8})
    shape = replace(gang(2), within="rack", group=2, group_within="block")
    assert names(shape, fleet) == ["r1n00", "r1n01"]
    assert shape.group_tier == "rack"


def test_groups_and_within_together() -> None:
    fleet = domains("22204444")
    where = names(grouped(8, 4, within="rack"), fleet)
    assert where == [f"d{place}n{number}" for place in (4, 5) for number in range(1, 5)]
    assert names(grouped(8, 2, within="rack"), fleet) == [f"d{place}n{number}" for place in (4, 5) for number in range(1, 5)]
    assert names(grouped(6, 2, within="rack"), fleet) == [f"d{place}n{number}" for place in (0, 1, 2) for number in (1, 2)]
    assert names(grouped(20, 4, within="rack"), fleet) is None
    assert names(grouped(20, 4, within="rack", min_nodes=8), fleet) == [f"d{p}n{n}" for p in (4, 5, 6, 7) for n in (1, 2, 3, 4)]


@st.composite
def terrains(draw: st.DrawFn) -> list[NodeFacts]:
    """Up to 24 nodes; two a domain, six a rack, twelve a block, some without labels of the nearer tiers, some held in part."""
    nodes = []
    for number in range(draw(st.integers(1, 24))):
        labels = {"domain": f"d{number // 2}", "rack": f"r{number // 6}", "block": f"b{number // 12}"}
        known = dict(list(labels.items())[draw(st.sampled_from([0, 0, 0, 0, 0, 1, 2, 3])) :])
        nodes.append(node(f"n{number:02d}", 8, draw(st.integers(0, 8)), labels=known))
    return nodes


def spread(nodes: list[NodeFacts], chosen: list[str], tier: Tier) -> int:
    labels = {one.node: one.labels.get(tier, f"alone {one.node}") for one in nodes}
    return len({labels[one] for one in labels if one in chosen})


@settings(max_examples=examples(150), deadline=None)
@given(terrains(), st.integers(1, 12), st.integers(1, 8))
def test_no_gang_spans_more_containers_of_the_smallest_tier_that_holds_it_than_it_must(
    nodes: list[NodeFacts], num_nodes: int, count: int
) -> None:
    fleet = Fleet.of(nodes)
    where = names(gang(num_nodes, count), fleet)
    roomy = [one for one in nodes if len(one.free) >= count]
    assert (where is None) == (len(roomy) < num_nodes)
    if where is None:
        return
    assert len(set(where)) == num_nodes
    assert set(where) <= {one.node for one in roomy}
    for tier in TIERS:
        held = Counter(one.labels.get(tier, f"alone {one.node}") for one in roomy)
        if max(held.values()) >= num_nodes:
            assert spread(nodes, where, tier) == 1
            return
    sizes = sorted(held.values(), reverse=True)
    fewest = next(num for num in range(1, len(sizes) + 1) if sum(sizes[:num]) >= num_nodes)
    assert spread(nodes, where, "block") == fewest


@settings(max_examples=examples(150), deadline=None)
@given(terrains(), st.integers(2, 12), st.sampled_from(TIERS))
def test_ranks_do_not_come_back_to_a_container_that_they_have_left(nodes: list[NodeFacts], num_nodes: int, tier: Tier) -> None:
    fleet = Fleet.of(nodes)
    where = names(gang(num_nodes), fleet)
    if where is not None and all(set(TIERS) <= set(one.labels) for one in nodes):
        number = fleet.ground.tier(tier)
        seen = [int(number[fleet.ground.row[name]]) for name in where]  # type: ignore[index]
        left = [before for before, after in pairwise(seen) if before != after]
        assert len(left) == len(set(left))
        assert seen[-1] not in left


@settings(max_examples=examples(150), deadline=None)
@given(
    terrains(),
    st.integers(1, 12),
    st.sampled_from([None, *TIERS]),
    st.sampled_from([0, 2, 3]),
    st.sampled_from(TIERS),
    st.integers(0, 3),
)
def test_what_fits_is_what_the_largest_says(
    nodes: list[NodeFacts], num_nodes: int, tier: Tier | None, group: int, group_within: Tier, fewest: int
) -> None:
    """So that `never fits` and the reasons agree with what starts."""
    num_nodes -= num_nodes % group if group and num_nodes > group else 0
    shape = replace(gang(num_nodes), within=tier, group=group, group_within=group_within, min_nodes=min(fewest, num_nodes))
    fleet = Fleet.of(nodes)
    where = names(shape, fleet)
    largest = largest_now(shape, "H100", fleet)
    assert (where is not None) == (largest >= shape.fewest_nodes)
    assert where is None or len(where) == largest
    assert largest <= largest_idle(shape, "H100", fleet)


def test_tiers_are_numbered_along_the_names() -> None:
    fleet = Fleet.of([node("c", labels={"rack": "x"}), node("a", labels={"rack": "y"}), node("b"), node("d", labels={"rack": "y"})])
    assert np.array_equal(fleet.ground.tier("rack"), [0, 2, 1, 0])
    assert fleet.ground.terrain.tiers == ("rack",)
