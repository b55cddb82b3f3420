"""Who is named for slow pairs: the one at fault, whoever that is, and nobody for noise."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.fabric_test import SlowView
from phalanx.fabric.links.faults import Edge, slow, slow_values, suspects
from phalanx.fabric.links.naming import Own, named
from phalanx.fabric.links.rates import LINKS
from phalanx.fabric.links.rounds import packed, rounds
from phalanx.fabric.links.tiers import Member
from tests.drawn import examples

NOISE = 0.08
COUNTS = st.integers(3, 24)
SEEDS = st.integers(0, 2**32)
PARTS = st.floats(0.05, 0.5)


def met(count: int, chance: Random, most: int = 64) -> dict[Edge, float]:
    """All that rounds of a tournament measure on even links of 45 GB/s, with noise."""
    pairs = [pair for one in rounds(count, most) for pair in one]
    return {pair: 45e9 * chance.uniform(1 - NOISE, 1 + NOISE) for pair in pairs}


@given(COUNTS, SEEDS, st.integers(3, 64))
def test_even_noise_names_nobody(count: int, seed: int, most: int) -> None:
    rates = met(count, Random(seed), most)
    assert slow(rates) == () and suspects(rates) == []


@given(COUNTS, SEEDS, PARTS, st.data())
def test_a_slow_rank_is_named_and_nobody_else(count: int, seed: int, part: float, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, count - 1))
    rates = {pair: rate * part if bad in pair else rate for pair, rate in met(count, Random(seed)).items()}
    (found,) = slow(rates)
    assert found.ranks == (bad,) and found.pairs == count - 1
    assert abs(found.part - part) < 0.25
    assert set(suspects(rates)) == {pair for pair in rates if bad in pair}


@given(COUNTS, SEEDS, PARTS, st.data())
def test_a_slow_link_is_named_and_neither_of_its_ends(count: int, seed: int, part: float, data: st.DataObject) -> None:
    rates = met(count, Random(seed))
    bad = data.draw(st.sampled_from(sorted(rates)))
    rates[bad] *= part
    (found,) = slow(rates)
    assert found.ranks == bad and suspects(rates) == [bad]


@given(st.integers(6, 24), SEEDS, st.floats(0.05, 0.5), st.data())
def test_a_slow_rank_and_a_slow_link_are_both_named(count: int, seed: int, part: float, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, count - 1))
    rates = {pair: rate * part if bad in pair else rate for pair, rate in met(count, Random(seed)).items()}
    link = data.draw(st.sampled_from(sorted(pair for pair in rates if bad not in pair)))
    rates[link] *= part
    assert [one.ranks for one in slow(rates)] == [(bad,), link]


def test_two_ranks_have_nobody_to_be_compared_with() -> None:
    assert slow({(0, 1): 1e9}) == () and slow({}) == () and slow_values({0: 1.0, 1: 9.0}) == ()


@given(COUNTS, SEEDS, PARTS, st.data())
def test_a_slow_gpu_is_named_by_its_own_arithmetic(count: int, seed: int, part: float, data: st.DataObject) -> None:
    chance, bad = Random(seed), data.draw(st.integers(0, count - 1))
    values = {rank: 700e12 * chance.uniform(1 - NOISE, 1 + NOISE) for rank in range(count)}
    assert slow_values(values) == ()
    (found,) = slow_values(values | {bad: values[bad] * part})
    assert found.ranks == (bad,)


@given(st.integers(0, 40), st.integers(1, 40))
def test_rounds_bring_all_together_once_and_nobody_twice_in_one(count: int, most: int) -> None:
    found = rounds(count, most)
    pairs = [pair for one in found for pair in one]
    assert len(found) <= most and len(set(pairs)) == len(pairs) and all(0 <= a < b < count for a, b in pairs)
    assert all(len({rank for pair in one for rank in pair}) == 2 * len(one) for one in found)
    if most >= count:
        assert len(pairs) == count * (count - 1) // 2
    elif count > 1:
        assert len(found) == most and all(len(one) == count // 2 for one in found)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(10, 19)), max_size=30))
def test_packed_rounds_have_each_pair_once_and_nobody_twice(pairs: list[Edge]) -> None:
    found = packed(pairs)
    assert sorted(pair for one in found for pair in one) == sorted(set(pairs))
    assert all(len({rank for pair in one for rank in pair}) == 2 * len(one) for one in found)


def gang(nodes: int, gpus: int, per_rack: int = 0) -> list[Member]:
    return [
        Member(
            rank=node * gpus + gpu, node=node, local_rank=gpu, name=f"n{node}", rack=f"r{node // per_rack}" if per_rack else "",
            block="b" if per_rack else "",
        )
        for node in range(nodes) for gpu in range(gpus)
    ]  # fmt: skip


def between(members: list[Member], chance: Random) -> dict[Edge, float]:
    """Ranks of equal number of each two nodes."""
    ranks = {(one.node, one.local_rank): one.rank for one in members}
    nodes, gpus = max(one.node for one in members) + 1, max(one.local_rank for one in members) + 1
    pairs = [(ranks[a, gpu], ranks[b, gpu]) for one in rounds(nodes, 16) for a, b in one for gpu in range(gpus)]
    return {pair: 40e9 * chance.uniform(1 - NOISE, 1 + NOISE) for pair in pairs}


def names(found: tuple[SlowView, ...]) -> list[tuple[str, str]]:
    return [(one.kind, one.name) for one in found]


@settings(max_examples=examples(30))
@given(SEEDS, st.integers(0, 5), st.integers(0, 3))
def test_a_node_or_rail_all_of_whose_ranks_are_slow_is_named(seed: int, node: int, gpu: int) -> None:
    members, chance = gang(6, 4), Random(seed)
    rates, of = between(members, chance), {one.rank: one for one in members}
    assert named(members, rates, Own(), None) == ()

    def slowed(at_fault: set[int]) -> dict[Edge, float]:
        return {pair: rate / 3 if at_fault.intersection(pair) else rate for pair, rate in rates.items()}

    whole_node = slowed({rank for rank, one in of.items() if one.node == node})
    assert names(named(members, whole_node, Own(), None)) == [("node", f"n{node}")]
    whole_rail = slowed({rank for rank, one in of.items() if one.local_rank == gpu})
    assert names(named(members, whole_rail, Own(), None)) == [("rail", str(gpu))]
    one_gpu = slowed({rank for rank, one in of.items() if (one.node, one.local_rank) == (node, gpu)})
    (found,) = named(members, one_gpu, Own(), None)
    assert (found.kind, found.name) == ("gpu", f"n{node}:{gpu}") and "its 5 pairs: at most" in found.evidence


def test_between_two_nodes_the_link_is_named_since_either_end_may_be_it() -> None:
    members = gang(2, 8)
    rates = between(members, Random(1))
    rates[3, 11] /= 4
    assert names(named(members, rates, Own(), None)) == [("link", "n0:3 - n1:3")]


def test_pairs_across_racks_are_not_held_against_those_inside_one() -> None:
    members = gang(8, 1, per_rack=4)
    rates = {(a, b): 50e9 if a // 4 == b // 4 else 25e9 for a in range(8) for b in range(a + 1, 8)}
    assert named(members, rates, Own(), None) == ()
    assert names(named(members, rates | {(1, 6): 8e9}, Own(), None)) == [("link", "n1:0 - n6:0")]


def test_a_rail_that_is_slow_in_one_rack_is_named_with_it() -> None:
    members = gang(8, 4, per_rack=4)
    rates = between(members, Random(3))
    of = {one.rank: one for one in members}
    leaf = {rank for rank, one in of.items() if (one.rack, one.local_rank) == ("r1", 2)}
    slowed = {pair: rate / 3 if leaf.issuperset(pair) else rate for pair, rate in rates.items()}
    assert names(named(members, slowed, Own(), None)) == [("rail", "b/r1:2")]


def test_a_leaf_that_is_slow_to_other_racks_alone_is_named_and_none_of_its_gpus() -> None:
    members = gang(9, 4, per_rack=3)
    of = {one.rank: one for one in members}
    leaf = {rank for rank, one in of.items() if (one.rack, one.local_rank) == ("r1", 2)}
    slowed = {
        pair: rate / 3 if leaf.intersection(pair) and not leaf.issuperset(pair) else rate
        for pair, rate in between(members, Random(4)).items()
    }
    (found,) = named(members, slowed, Own(), None)
    assert (found.kind, found.name) == ("rail", "b/r1:2") and "between racks" in found.evidence


def test_nvlink_domains_have_no_rails() -> None:
    members = [replace(one, domain="d") for one in gang(6, 4)]
    slowed = {pair: rate / 3 if pair[0] % 4 == 1 else rate for pair, rate in between(members, Random(5)).items()}
    assert {one.kind for one in named(members, slowed, Own(), None)} == {"gpu"}


def test_pairs_inside_nodes_and_between_them_are_not_compared() -> None:
    members = gang(3, 2)
    rates = between(members, Random(2)) | {(0, 1): 400e9, (2, 3): 410e9, (4, 5): 390e9}
    assert named(members, rates, Own(), None) == ()


def test_a_gpu_with_fewer_links_than_the_others_is_named() -> None:
    members = gang(1, 4)
    own = Own(nvlinks={0: 18, 1: 18, 2: 17, 3: 18})
    assert [(one.name, one.evidence) for one in named(members, {}, own, LINKS["H200"])] == [("n0:2", "17 of 18 NVLinks are active")]
    pcie = Own(nvlinks=dict.fromkeys(range(4), 0))
    assert named(members, {}, pcie, LINKS["H100"]) == () and named(members, {}, own, LINKS["L4"]) == ()
