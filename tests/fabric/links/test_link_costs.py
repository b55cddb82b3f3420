"""Bus bandwidth, costs, tiers and the makers' rates."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.fabric_test import COLLECTIVES, PointView
from phalanx.fabric.catalogue import CATALOGUE
from phalanx.fabric.links.bounds import Bound, bounds, least
from phalanx.fabric.links.bus import bus_bytes_per_s
from phalanx.fabric.links.cost import cost_of, costs, fitted
from phalanx.fabric.links.rates import LINKS, port_bytes_per_s, with_links
from phalanx.fabric.links.tiers import Member, class_of, tiers

SIZES = (8192, 131_072, 2**20, 2**23, 2**26, 2**29)


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    found = {one: bus_bytes_per_s(one, 8, 8_000, 1.0) for one in COLLECTIVES}
    assert found == {"all_reduce": 14_000, "all_gather": 7_000, "reduce_scatter": 7_000, "all_to_all": 7_000}
    for num_ranks, seconds in ((1, 1.0), (2, 0.0)):
        with pytest.raises(ValueError, match="have no bus bandwidth"):
            bus_bytes_per_s("all_reduce", num_ranks, 1, seconds)


@given(st.floats(1e-6, 1e-2), st.floats(1e-12, 1e-7), st.integers(0, 2**32))
def test_a_fit_finds_what_was_planted(alpha_s: float, beta_s: float, seed: int) -> None:
    exact = fitted([(size, alpha_s + size * beta_s) for size in SIZES])
    assert exact is not None
    assert math.isclose(exact.alpha_s, alpha_s, rel_tol=1e-4) and math.isclose(exact.beta_s, beta_s, rel_tol=1e-4)
    chance = Random(seed)
    noisy = fitted([(size, (alpha_s + size * beta_s) * chance.uniform(0.9, 1.1)) for size in SIZES])
    assert noisy is not None
    assert all(abs(noisy.seconds(size) / (alpha_s + size * beta_s) - 1) < 0.25 for size in SIZES)


@given(st.lists(st.tuples(st.sampled_from(SIZES), st.floats(1e-6, 1.0)), min_size=2, max_size=12))
def test_a_fit_has_no_negative_part(points: list[tuple[int, float]]) -> None:
    found = fitted(points)
    assert (found is None) == (len({size for size, _ in points}) < 2)
    if found is not None:
        assert 0 <= min(found.alpha_s, found.beta_s) < max(found.alpha_s, found.beta_s)
        assert all(abs(found.seconds(size) / seconds - 1) <= found.error + 1e-9 for size, seconds in points)


def test_each_tier_and_collective_has_its_cost_for_whoever_plans() -> None:
    points = [
        PointView(tier=tier, collective="all_reduce", num_ranks=8, size_bytes=size, seconds=scale * (1e-5 + size * 1e-10),
                  bus_bytes_per_s=1.0)
        for tier, scale in (("node", 1), ("rail", 10)) for size in SIZES
    ]  # fmt: skip
    alone = PointView(tier="all", collective="all_reduce", num_ranks=8, size_bytes=8, seconds=1.0, bus_bytes_per_s=1.0)
    found = costs([*points, alone])
    assert [(one.tier, one.num_ranks) for one in found] == [("node", 8), ("rail", 8)]
    rail = cost_of(found, "rail", "all_reduce")
    assert rail is not None and math.isclose(rail.seconds(10**8), 0.1001, rel_tol=1e-6)
    assert cost_of(found, "all", "all_reduce") is None and cost_of((), "rail", "all_reduce") is None
    assert all(one.error < 1e-6 for one in found)


def gang(nodes: int, gpus: int, per_block: int = 0, per_domain: int = 0, per_rack: int = 0) -> list[Member]:
    return [
        Member(
            rank=node * gpus + gpu, node=node, local_rank=gpu, block=f"b{node // per_block}" if per_block else "",
            domain=f"d{node // per_domain}" if per_domain else "", rack=f"r{node // per_rack}" if per_rack else "",
        )
        for node in range(nodes) for gpu in range(gpus)
    ]  # fmt: skip


def test_tiers_of_one_node_of_several_and_of_blocks() -> None:
    assert [(one.name, one.groups) for one in tiers(gang(1, 4))] == [("node", ((0, 1, 2, 3),))]
    assert [(one.name, one.groups) for one in tiers(gang(2, 1))] == [("rail", ((0, 1),))]
    two = {one.name: one.groups for one in tiers(gang(2, 2))}
    assert two == {"node": ((0, 1), (2, 3)), "rail": ((0, 2), (1, 3)), "all": ((0, 1, 2, 3),)}
    blocks = {one.name: one.groups for one in tiers(gang(4, 2, per_block=2))}
    assert blocks["rail"] == ((0, 2), (1, 3), (4, 6), (5, 7)) and blocks["block"] == ((0, 4), (1, 5), (2, 6), (3, 7))
    domains = {one.name: one.groups for one in tiers(gang(4, 2, per_domain=2))}
    assert domains["domain"] == ((0, 1, 2, 3), (4, 5, 6, 7)) and "block" not in domains


def test_a_rail_is_the_leaf_of_a_rack_and_racks_of_a_block_are_a_tier_of_their_own() -> None:
    found = {one.name: one.groups for one in tiers(gang(8, 1, per_block=4, per_rack=2))}
    assert found == {
        "rail": ((0, 1), (2, 3), (4, 5), (6, 7)),
        "rack": ((0, 2), (1, 3), (4, 6), (5, 7)),
        "block": ((0, 4), (1, 5), (2, 6), (3, 7)),
        "all": (tuple(range(8)),),
    }
    alone = {one.name: one.groups for one in tiers(gang(4, 1, per_rack=2))}
    assert alone == {"rail": ((0, 1), (2, 3)), "rack": ((0, 2), (1, 3)), "all": ((0, 1, 2, 3),)}, "without blocks all are one"


LEVELS = st.integers(0, 3)


@given(st.integers(1, 6), st.integers(1, 4), LEVELS, LEVELS, LEVELS)
def test_groups_of_a_tier_are_apart_and_no_tier_comes_twice(
    nodes: int, gpus: int, per_block: int, per_domain: int, per_rack: int
) -> None:
    found = tiers(gang(nodes, gpus, per_block, per_domain, per_rack))
    assert (not found) == (nodes * gpus < 2)
    for tier in found:
        ranks = [rank for group in tier.groups for rank in group]
        assert len(set(ranks)) == len(ranks) and all(len(group) > 1 for group in tier.groups)
        assert tier.num_ranks == max(map(len, tier.groups))
    assert len({frozenset(tier.groups) for tier in found}) == len(found)


def test_the_links_between_two_ranks() -> None:
    members = gang(6, 2, per_block=4, per_domain=2)
    assert [class_of(members[0], members[other]) for other in (1, 2, 4, 8)] == ["node", "domain", "rail", "block"]
    racks = gang(6, 1, per_block=4, per_rack=2)
    assert [class_of(racks[0], racks[other]) for other in (1, 2, 4)] == ["rail", "rack", "block"]


@pytest.mark.parametrize(
    ("text", "rate"),
    [("400 Gb/sec (4X NDR)\n", 50e9), ("100 Gb/sec (4X EDR)", 12.5e9), ("25000\n", 3.125e9), ("-1", None), ("0", None), ("", None),
     ("fast", None), ("8 Tb/sec", None)],
)  # fmt: skip
def test_the_rate_of_a_port_as_linux_writes_it(text: str, rate: float | None) -> None:
    assert port_bytes_per_s(text) == rate


def most(members: list[Member], collective: str, gpu: float | None, nics: float | None) -> dict[str, Bound | None]:
    return {tier.name: least(bounds(tier, members, collective, gpu, nics)) for tier in tiers(members)}


def test_what_a_tier_can_have_at_most() -> None:
    gpu, nics = Bound(450e9, of_gpus=True), Bound(400e9, of_gpus=False)
    share = Bound(50e9, of_gpus=False)
    blocks = gang(4, 8, per_block=2)
    assert most(blocks, "all_reduce", 450e9, 400e9) == {"node": gpu, "rail": share, "block": share, "all": nics}
    assert most(blocks, "all_reduce", 300e9, 400e9)["all"] == Bound(300e9, of_gpus=True), "the lesser of both"
    assert most(blocks, "all_to_all", 450e9, 400e9) == {"node": gpu, "rail": share, "block": share, "all": None}
    assert most(blocks, "all_reduce", 450e9, None) == {"node": gpu, "rail": None, "block": None, "all": None}
    assert most(blocks, "all_reduce", None, 400e9) == {"node": None, "rail": share, "block": share, "all": nics}
    assert most(gang(2, 1), "all_reduce", 300e9, 400e9) == {"rail": nics}, "a rank alone on its node has no use for its GPU's links"


def test_what_groups_can_have_where_a_domain_spans_nodes() -> None:
    gpu = Bound(900e9, of_gpus=True)
    one_domain = gang(4, 4, per_domain=4)
    assert most(one_domain, "all_reduce", 900e9, 200e9) == {"node": gpu, "domain": gpu, "rail": gpu}
    assert most(one_domain, "all_to_all", 900e9, 200e9)["domain"] == gpu
    two = most(gang(4, 4, per_domain=2), "all_reduce", 900e9, 200e9)
    assert two == {"node": gpu, "domain": gpu, "rail": Bound(100e9, of_gpus=False), "all": Bound(400e9, of_gpus=False)}
    assert most(gang(4, 4, per_domain=2), "all_to_all", 900e9, 200e9)["rail"] is None, "two of its ranks meet by NVLink"
    mixed = [*gang(2, 4, per_domain=2), *(Member(rank=8 + n, node=2 + n // 4, local_rank=n % 4, rack="r") for n in range(8))]
    (rail,) = [tier for tier in tiers(mixed) if tier.name == "rail"]
    found = bounds(rail, mixed, "all_reduce", 900e9, 200e9)
    assert found[0, 4] == gpu and found[8, 12] == Bound(50e9, of_gpus=False) == least(found)
    assert least({(0, 1): gpu, (2, 3): None}) is None and least({}) is None


def test_every_gpu_of_the_catalogue_has_its_links() -> None:
    assert set(LINKS) == {name for name, model in CATALOGUE.items() if model.memory_bytes}
    assert with_links(LINKS["H200"], 18) == LINKS["H200"] == with_links(LINKS["H200"], None)
    fewer = with_links(LINKS["H200"], 9)
    assert fewer is not None and fewer.bytes_per_s == 225e9 and fewer.source == "9 of 18 NVLinks"
    assert with_links(LINKS["H100"], 0) is None, "a PCIe card, whose rate is another"
    assert with_links(LINKS["L4"], 0) == LINKS["L4"]
