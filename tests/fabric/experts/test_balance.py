"""The expert load balancer: what holds of every placement, and what it reaches on loads with known answers."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.parts import eplb
from phalanx.core.errors import UserError
from phalanx.fabric.experts import ExpertLayout, ExpertPlacement, balance
from phalanx.fabric.experts.groups import nodes_of_groups, swapped_groups
from phalanx.fabric.experts.level import settle
from phalanx.fabric.experts.placing import splits
from phalanx.fabric.experts.present import rows_of
from phalanx.fabric.experts.rows import Rows
from phalanx.fabric.experts.start import apportioned
from tests.drawn import examples

README = np.array(
    [[90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27]], np.float64
)
"""The example of DeepSeek's repository."""


@dataclass(frozen=True)
class Case:
    loads: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    layout: ExpertLayout


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Small layouts that hold their experts, with and without groups, and loads from nothing to very uneven."""
    nodes, gpus = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    groups, size = draw(st.sampled_from([0, nodes, nodes + 1, 2 * nodes])), draw(st.integers(1, 4))
    experts = (groups or nodes) * size
    held = -(-groups // nodes) * size if groups else -(-experts // nodes)
    most = groups // nodes * size if groups else experts
    slots = draw(st.integers(-(-held // gpus), max(most, -(-held // gpus))))
    if slots > most:
        slots, gpus = most, -(-held // most)
    layers, kind = draw(st.integers(1, 3)), draw(st.sampled_from(["whole", "heavy"]))
    seed = draw(st.integers(0, 2**32 - 1))
    chance = np.random.default_rng(seed)
    loads = chance.integers(0, 6, (layers, experts)) if kind == "whole" else chance.lognormal(0, 2, (layers, experts))
    return Case(loads.astype(np.float64), ExpertLayout(nodes, gpus, slots, groups))


def sound(placement: ExpertPlacement, loads: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    layout, experts = placement.layout, placement.experts_LGS
    assert experts.shape == (len(loads), layout.num_gpus, layout.slots_per_gpu)
    assert placement.replicas(loads.shape[1]).min() >= 1
    total = np.zeros(loads.shape)
    np.add.at(total, (np.arange(len(loads))[:, None, None], experts), placement.shares_LGS)
    assert np.allclose(total, 1) and placement.shares_LGS.min() >= 0
    if layout.num_groups:
        size = loads.shape[1] // layout.num_groups
        for layer in experts // size:
            nodes = [set(node.ravel().tolist()) for node in layer.reshape(layout.num_nodes, -1)]
            assert sum(map(len, nodes)) == layout.num_groups  # no group on two


@settings(max_examples=examples(60), deadline=None)
@given(cases())
def test_every_expert_has_a_place_each_gpu_its_slots_and_each_group_its_node(case: Case) -> None:
    placement = balance(case.loads, case.layout)
    sound(placement, case.loads)
    order = np.sort(placement.experts_LGS, axis=2)
    assert (order[:, :, 1:] != order[:, :, :-1]).all()  # no expert twice on a GPU
    assert (placement.imbalance(case.loads) >= 1 - 1e-9).all()


TIES = Case(np.array([[0.0, 5, 1, 2, 2, 2, 3, 1, 4, 5, 0, 1, 2, 2, 5, 4, 0, 5, 3, 5, 0, 4, 2, 0]]), ExpertLayout(3, 4, 4, 6))
"""Of experts with equal loads a replica, the one gets another that is first in the order in which groups came to the node."""


@settings(max_examples=examples(60), deadline=None)
@given(cases(), st.booleans())
@example(TIES, True)
def test_no_layer_is_above_the_published_balancer(case: Case, even: bool) -> None:
    layout = case.layout
    if layout.num_groups % layout.num_nodes:
        return  # the published one gives up the groups there
    slots, nodes = layout.num_gpus * layout.slots_per_gpu, layout.num_nodes if layout.num_groups else 1
    peer = eplb.placed(case.loads, slots, layout.num_groups or 1, nodes, layout.num_gpus)
    ours = balance(case.loads, layout, even_shares=even)
    sound(ours, case.loads)
    mean = case.loads.sum(1) / layout.num_gpus
    largest = np.where(mean > 0, eplb.imbalance(np.where(mean[:, None] > 0, case.loads, 1), peer), 1.0)
    assert (ours.imbalance(case.loads) <= largest * (1 + 1e-9)).all()


@settings(max_examples=examples(20), deadline=None)
@given(cases())
def test_equal_arguments_give_equal_placements_and_scale_does_not_count(case: Case) -> None:
    first = balance(case.loads, case.layout)
    for other in (balance(case.loads.copy(), case.layout), balance(case.loads * 2.0**70, case.layout)):
        assert (first.experts_LGS == other.experts_LGS).all() and (first.shares_LGS == other.shares_LGS).all()


def test_what_a_layer_gets_does_not_depend_on_the_others() -> None:
    loads = np.random.default_rng(3).lognormal(0, 1, (6, 24))
    layout = ExpertLayout(2, 4, 4)
    together, alone = balance(loads, layout).imbalance(loads), [balance(layer, layout).imbalance(layer)[0] for layer in loads]
    assert np.allclose(together, alone, rtol=2e-3)


def test_the_example_of_the_published_balancer() -> None:
    with_groups = balance(README, ExpertLayout(2, 4, 2, 4))
    assert with_groups.imbalance(README) == pytest.approx([1.1384, 1.1938], abs=1e-4)  # the optimum, by trying all placements
    assert balance(README, ExpertLayout(2, 4, 2)).imbalance(README).max() < 1.16


def test_the_peer_comes_out_as_published() -> None:
    with_groups, anywhere = (eplb.imbalance(README, eplb.placed(README, 16, groups, 2, 8)) for groups in (4, 3))
    assert with_groups == pytest.approx([1.208, 1.242], abs=5e-4) and anywhere == pytest.approx([1.073, 1.190], abs=5e-4)
    assert eplb.placed(README, 16, 4, 2, 8)[0].ravel().tolist() == [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1]
    chance = np.random.default_rng(0)
    zipf = np.stack([chance.permutation(1 / np.arange(1, 257)) for _ in range(8)])  # ties fall by the order
    assert eplb.imbalance(zipf, eplb.placed(zipf, 288, 1, 1, 144)).max() == pytest.approx(2.059, abs=5e-4)
    few = 1 / np.arange(1, 129)[None, :]
    assert eplb.imbalance(few, eplb.placed(few, 144, 1, 1, 16)) == pytest.approx([1.015], abs=5e-4)


def test_a_heavy_expert_gets_so_many_replicas_that_every_gpu_is_level() -> None:
    loads = np.array([[16.0, 1, 1, 1, 1, 1, 1, 1, 1]])
    placement = balance(loads, ExpertLayout(1, 4, 3))
    assert placement.replicas(9)[0, 0] == 4 and placement.imbalance(loads)[0] == pytest.approx(1.0, abs=1e-3)


def test_replicas_of_an_expert_lie_on_different_nodes_where_experts_lie_anywhere() -> None:
    loads = np.array([[8.0, 8, 8, 8, 1, 1, 1, 1, 1, 1, 1, 1]])
    placement = balance(loads, ExpertLayout(2, 4, 2))
    for expert in range(4):
        gpus = np.flatnonzero((placement.experts_LGS[0] == expert).any(1))
        assert {int(gpu) // 4 for gpu in gpus} == {0, 1}
    assert placement.between_nodes(loads)[0] == pytest.approx(0.1, abs=1e-9)  # half of the lone experts' 8 of 40 tokens


def test_traffic_between_nodes_of_experts_with_one_replica_and_of_one_everywhere() -> None:
    layout, ones = ExpertLayout(2, 1, 2), np.ones((1, 2, 2))
    lone = ExpertPlacement(layout, np.array([[[0, 1], [2, 3]]]), ones)
    assert lone.between_nodes(np.ones((1, 4)))[0] == 0.5
    both = ExpertPlacement(layout, np.array([[[0, 1], [0, 2]]]), ones * [[0.5, 1], [0.5, 1]])
    assert both.between_nodes([[2.0, 0, 0]])[0] == 0.0 and both.imbalance([[2.0, 0, 0]])[0] == 1.0


def test_groups_that_no_number_of_nodes_divides_come_one_more_to_some() -> None:
    loads = np.ones((1, 15))
    placement = balance(loads, ExpertLayout(2, 3, 3, 5))
    sound(placement, loads)
    assert sorted(np.bincount(nodes_of_groups(np.ones((1, 5)), 2)[0]).tolist()) == [2, 3]


def test_groups_are_swapped_where_the_heaviest_first_leaves_a_node_above_another() -> None:
    """5, 3, 3, 2, 2, 1 on two nodes come out even by the heaviest first; 8, 7, 6, 5, 4, 1 as 17 and 14, where 16 and 15 can be."""
    loads = np.array([[5.0, 3, 3, 2, 2, 1], [8.0, 7, 6, 5, 4, 1]])
    first = nodes_of_groups(loads, 2)
    node = swapped_groups(loads, first, 2)
    largest = [max(loads[layer][of[layer] == one].sum() for one in range(2)) for of in (first, node) for layer in range(2)]
    assert largest == [8.0, 17.0, 8.0, 16.0]
    assert (np.sort(node, axis=1) == [0, 0, 0, 1, 1, 1]).all()
    of_experts = loads.repeat(2, axis=1) / 2
    assert balance(of_experts, ExpertLayout(2, 2, 4, 6)).imbalance(of_experts) == pytest.approx([1.0, 16 / 15.5], rel=1e-3)


def test_groups_are_not_swapped_where_replicas_then_fit_worse() -> None:
    loads = np.array([[13.0, 2, 29, 15, 4, 18, 13, 12, 8, 17, 3, 6, 4, 19, 8, 5, 3, 6]])
    layout = ExpertLayout(2, 3, 3, 6)
    first, swapped = splits(loads, layout)
    assert (first != swapped).any()
    assert balance(loads, layout).imbalance(loads)[0] == pytest.approx(1.1027, abs=1e-4)  # 1.1351 after the swap


def test_replicas_are_apportioned_so_that_the_largest_part_is_least() -> None:
    loads = np.array([[100.0, 60, 10, 0]])
    assert apportioned(loads, np.ones((1, 4), np.bool_), 8, 8).tolist() == [[4, 2, 1, 1]]
    assert apportioned(loads, np.ones((1, 4), np.bool_), 8, 3).tolist() == [[3, 3, 1, 1]]


def test_water_finds_its_level_over_all_gpus_that_are_linked() -> None:
    experts = np.array([[[0, 1], [1, 2], [2, 3]]])
    tokens = np.array([[[9.0, 1.5], [1.5, 1.5], [1.5, 0]]])
    rows = Rows(np.array([[9.0, 3, 3, 0]]), np.array([[1, 2, 2, 1]]), experts, tokens, tokens.sum(-1), np.zeros(1))
    settle(rows)
    assert rows.gpus[0] == pytest.approx([9.0, 3.0, 3.0], rel=1e-3) and rows.tokens[0, 0, 1] == 0


@settings(max_examples=examples(30), deadline=None)
@given(cases())
def test_settled_shares_are_the_best_of_their_placement(case: Case) -> None:
    """No expert has tokens on a GPU that is fuller than another one that has it: then no shares have a smaller largest load."""
    placement = balance(case.loads, case.layout)
    even = 1 / np.take_along_axis(
        placement.replicas(case.loads.shape[1]), placement.experts_LGS.reshape(len(case.loads), -1), 1
    ).reshape(placement.experts_LGS.shape)
    rows, _ = rows_of(replace(placement, shares_LGS=even), case.loads)
    settle(rows)
    for row, (experts, tokens) in enumerate(zip(rows.experts, rows.tokens, strict=True)):
        for expert in np.unique(experts):
            gpu, slot = np.nonzero(experts == expert)
            loads = rows.gpus[row, gpu]
            rounding = 1e-4 * rows.gpus[row].max()
            assert (loads[tokens[gpu, slot] > rounding] <= loads.min() + rounding).all()
            assert tokens[gpu, slot].sum() == pytest.approx(rows.loads[row, expert])
    assert np.allclose(rows.tokens.sum(-1), rows.gpus)


@pytest.mark.parametrize(
    ("layout", "field", "says"),
    [
        (ExpertLayout(0, 4, 2), "num_nodes", "1 or more"),
        (ExpertLayout(2, 4, 1), "slots_per_gpu", "write 2 or more"),
        (ExpertLayout(1, 2, 13), "slots_per_gpu", "write 12 or less"),
        (ExpertLayout(2, 4, 2, 5), "num_groups", "[1, 2, 3, 4, 6, 12]"),
        (ExpertLayout(3, 4, 2, 2), "num_groups", "at most 2 nodes"),
        (ExpertLayout(2, 4, 1, 4), "slots_per_gpu", "write 2 or more"),
        (ExpertLayout(2, 1, 7, 2), "slots_per_gpu", "write 6 or less"),
        (ExpertLayout(2, 4, 2, -1), "num_groups", "write 0"),
        (ExpertLayout(10**7, 8, 1), "num_nodes", "80,000,000 slots over all GPUs, and 1,048,576 are the most"),
        (ExpertLayout(1, 2**18, 5, 1), "gpus_per_node", "1,048,576 are the most"),
    ],
)
def test_a_layout_that_cannot_be_says_what_to_change(layout: ExpertLayout, field: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        balance(README, layout)
    assert caught.value.field == field and says in caught.value.fix


@pytest.mark.parametrize("loads", [[[1.0, np.nan]], [[1.0, -1.0]], [["a", "b"]], [[[1.0]]], [], [[1.0, np.inf]]])
def test_loads_that_are_none_are_refused(loads: object) -> None:
    with pytest.raises(UserError, match="loads"):
        balance(loads, ExpertLayout(1, 1, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("loads", [np.ones((2, 4)), np.ones((1, 3)), np.ones((1, 5))])
def test_loads_of_another_model_are_refused(loads: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    placement = balance(np.ones((1, 4)), ExpertLayout(1, 2, 2))
    for asked in (placement.gpu_loads, placement.imbalance, placement.between_nodes):
        with pytest.raises(UserError, match="1 layers x 4 experts"):
            asked(loads)
