"""Live re-placement: moves bring exactly the new placement, no expert is ever nowhere, and nothing moves that is not worth it."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.errors import DataError
from phalanx.fabric.experts import ExpertLayout, ExpertPlacement, MoveCost, balance, rebalance, replacing
from phalanx.fabric.experts.likeness import alike, matched
from phalanx.fabric.experts.moves import Move, moves_between
from tests.drawn import examples
from tests.fabric.experts.test_balance import Case, cases, sound

FREE = MoveCost(expert_bytes=1, token_s=1.0, num_steps=1000, node_bytes_per_s=1e12, fabric_bytes_per_s=1e12)


def carried_out(
    placement: ExpertPlacement, moves: tuple[Move, ...], buffers: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Round by round as a runtime would; checks what must hold after each."""
    slots = placement.experts_LGS.copy()
    experts = int(slots.max()) + 1
    rounds = defaultdict[tuple[int, int], list[Move]](list)
    for move in moves:
        rounds[move.layer, move.round].append(move)
    for (layer, _), of_round in sorted(rounds.items()):
        before = slots[layer].copy()
        assert max(Counter(move.target for move in of_round).values()) <= buffers
        for move in of_round:
            assert move.expert in before[move.source] and before[move.target, move.slot] == move.replaces
            slots[layer, move.target, move.slot] = move.expert
        assert np.bincount(slots[layer].ravel(), minlength=experts).min() >= 1
    return slots


@settings(max_examples=examples(60), deadline=None)
@given(cases(), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_moves_bring_the_new_placement_and_drop_no_last_replica(case: Case, buffers: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    present = balance(case.loads, case.layout)
    loads = chance.permuted(case.loads, axis=1)
    found = rebalance(present, loads, replace(FREE, buffers=buffers))
    sound(found.placement, loads)
    assert (carried_out(present, found.moves, buffers) == found.placement.experts_LGS).all()
    assert len(found.moves) == (present.experts_LGS != found.placement.experts_LGS).sum()
    assert found.node_bytes + found.fabric_bytes == len(found.moves)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 2))
def test_between_any_two_placements_there_are_moves(seed: int, buffers: int) -> None:
    chance, layout = np.random.default_rng(seed), ExpertLayout(2, 2, 3)
    any_loads = [chance.lognormal(0, 3, (1, 7)) for _ in range(2)]
    present, wanted = (balance(loads, layout) for loads in any_loads)
    present = replace(present, experts_LGS=present.experts_LGS[:, chance.permutation(4)])
    moves = moves_between(layout, present.experts_LGS, wanted.experts_LGS, buffers)
    reached = carried_out(present, moves, buffers)
    assert (np.sort(reached, axis=2) == np.sort(wanted.experts_LGS, axis=2)).all()


@settings(max_examples=examples(30), deadline=None)
@given(cases(), st.integers(0, 2**32 - 1))
def test_what_is_gained_is_worth_what_is_moved_in_every_layer(case: Case, seed: int) -> None:
    present = balance(case.loads, case.layout)
    loads = np.random.default_rng(seed).permuted(case.loads, axis=1)
    cost = MoveCost(expert_bytes=10, token_s=0.1, num_steps=10, node_bytes_per_s=20.0, fabric_bytes_per_s=5.0)
    found = rebalance(present, loads, cost)
    moved = {move.layer for move in found.moves}
    for layer in range(len(loads)):
        assert found.gain_s[layer] > found.cost_s[layer] > 0 if layer in moved else found.cost_s[layer] == 0
    stays = rebalance(present, loads, replace(cost, num_steps=0))
    assert stays.moves == () and (stays.gain_s == 0).all() and (stays.placement.experts_LGS == present.experts_LGS).all()
    gained = stays.placement.gpu_loads(loads).max(1) - found.placement.gpu_loads(loads).max(1)
    assert found.gain_s == pytest.approx(gained)


def test_new_shares_alone_are_used_where_they_are_enough() -> None:
    layout = ExpertLayout(1, 2, 2)
    present = ExpertPlacement(layout, np.array([[[0, 1], [0, 2]]]), np.array([[[0.5, 1.0], [0.5, 1.0]]]))
    loads = [[4.0, 3.0, 1.0]]
    found = rebalance(present, loads, FREE)
    assert found.moves == () and found.placement.imbalance(loads)[0] == pytest.approx(1.0)
    assert found.placement.shares_LGS[0, 0, 0] == pytest.approx(0.25)


def test_the_dearer_the_moves_the_fewer() -> None:
    chance, layout = np.random.default_rng(1), ExpertLayout(2, 4, 4, 4)
    loads = chance.lognormal(8, 1, (4, 24))
    present, later = balance(loads, layout), loads * chance.lognormal(0, 1, loads.shape)
    cost = MoveCost(expert_bytes=30_000_000, token_s=1e-7, num_steps=100, node_bytes_per_s=4e11, fabric_bytes_per_s=5e10)
    found = [rebalance(present, later, replace(cost, num_steps=steps)) for steps in (0, 1, 10, 100, 10_000)]
    moved = [len(one.moves) for one in found]
    assert moved[0] == 0 < moved[2] < moved[4]
    largest = [one.placement.gpu_loads(later).max(1).sum() for one in found]
    assert sorted(largest, reverse=True) == largest
    assert found[4].placement.imbalance(later).mean() < 1.05 * balance(later, layout).imbalance(later).mean()


def test_new_shares_alone_search_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever spreads shares at every step has no time for more."""
    searched: list[str] = []

    def noted(name: str, found: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **kept: Any) -> Any:
            searched.append(name)
            return found(*given, **kept)

        return call

    for name in ("balance", "swap_largest", "rehost"):
        monkeypatch.setattr(replacing, name, noted(name, getattr(replacing, name)))
    loads = np.random.default_rng(1).lognormal(8, 1, (2, 24))
    present = balance(loads, ExpertLayout(2, 4, 4, 4))
    rebalance(present, loads[:, ::-1], replace(FREE, num_steps=0))
    assert not searched
    rebalance(present, loads[:, ::-1], FREE)
    assert {"balance", "swap_largest"} <= set(searched)


def test_equal_loads_under_other_names_of_gpus_move_nothing() -> None:
    """GPUs are alike: the same placement in another order of GPUs is as good, so nothing is copied to get a new one's order."""
    chance, layout = np.random.default_rng(2), ExpertLayout(1, 4, 3)
    loads = chance.lognormal(0, 1, (3, 10))
    placement = balance(loads, layout)
    order = chance.permutation(4)
    other = replace(placement, experts_LGS=placement.experts_LGS[:, order], shares_LGS=placement.shares_LGS[:, order])
    found = rebalance(other, loads, FREE)
    assert np.sort(other.gpu_loads(loads)) == pytest.approx(np.sort(placement.gpu_loads(loads)))
    assert len(found.moves) <= 3 and (found.placement.imbalance(loads) <= placement.imbalance(loads) + 1e-9).all()


def test_a_new_placement_is_named_so_that_most_replicas_stay() -> None:
    chance = np.random.default_rng(4)
    for layout, order in ((ExpertLayout(1, 6, 4), chance.permutation(6)), (ExpertLayout(2, 3, 4, 4), np.array([4, 3, 5, 1, 0, 2]))):
        placement = balance(chance.lognormal(0, 1, (3, 20)), layout)
        other = replace(placement, experts_LGS=placement.experts_LGS[:, order], shares_LGS=placement.shares_LGS[:, order])
        found = alike(other, placement, 20)
        assert (found.experts_LGS == placement.experts_LGS).all() and (found.shares_LGS == placement.shares_LGS).all()


def test_a_new_placement_moves_only_what_is_other_whatever_its_gpus_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """The present placement is the new one under other names of GPUs, but for two replicas that are swapped."""
    monkeypatch.setattr(replacing, "CHANGES", 0)
    layout, loads = ExpertLayout(1, 4, 3), np.array([[12.0, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1]])
    wanted = balance(loads, layout)
    experts = wanted.experts_LGS[:, [2, 0, 3, 1]].copy()
    first, second = np.argwhere(experts == 0)[0], np.argwhere(experts == 11)[0]
    experts[tuple(first)], experts[tuple(second)] = 11, 0
    found = rebalance(replace(wanted, experts_LGS=experts), loads, FREE)
    assert len(found.moves) == 2 and first[1] != second[1]
    assert found.placement.imbalance(loads) == pytest.approx(wanted.imbalance(loads))


def test_a_swap_of_two_only_replicas_is_one_round_with_one_buffer() -> None:
    layout = ExpertLayout(2, 1, 1)
    moves = moves_between(layout, np.array([[[0], [1]]]), np.array([[[1], [0]]]), 1)
    assert set(moves) == {Move(0, 0, 1, 1, 0, 0, 0), Move(0, 0, 0, 0, 1, 0, 1)}


def test_a_copy_comes_from_its_own_node_where_that_has_it() -> None:
    layout = ExpertLayout(2, 2, 2)
    present = np.array([[[0, 1], [2, 3], [0, 2], [1, 3]]])
    wanted = np.array([[[0, 1], [2, 3], [0, 2], [0, 3]]])
    (move,) = moves_between(layout, present, wanted, 1)
    assert (move.expert, move.source, move.target, move.slot, move.replaces) == (0, 2, 3, 0, 1)


def test_the_largest_overlap_is_matched_first() -> None:
    assert matched(np.array([[[1.0, 5.0], [2.0, 6.0]]])).tolist() == [[0, 1]]


def test_a_present_placement_that_is_none_is_refused() -> None:
    layout, loads = ExpertLayout(1, 2, 2), np.ones((1, 3))
    good = balance(loads, layout)
    half = np.full((1, 2, 2), 0.5)
    wrong = [
        (replace(good, experts_LGS=good.experts_LGS[:, :1]), "the loads and the layout make it"),
        (replace(good, experts_LGS=np.array([[[0, 1], [0, 3]]])), "experts 0 to 2"),
        (replace(good, experts_LGS=np.array([[[0, 1], [0, 1]]]), shares_LGS=half), "no replica of expert 2"),
        (replace(good, experts_LGS=np.array([[[0, 0], [1, 2]]])), "twice"),
        (replace(good, shares_LGS=good.shares_LGS * 0.9), "sum 1"),
        (
            ExpertPlacement(ExpertLayout(2, 1, 3, 2), np.array([[[0, 1, 3], [2, 4, 5]]]), np.ones((1, 2, 3))),
            "lies on two nodes",
        ),
    ]
    for placement, says in wrong:
        with pytest.raises(DataError, match=says):
            rebalance(placement, np.ones((1, 6)) if placement.layout.num_groups else loads, FREE)
    for field in ("expert_bytes", "token_s", "num_steps", "node_bytes_per_s", "fabric_bytes_per_s", "buffers"):
        with pytest.raises(DataError) as caught:
            rebalance(good, loads, replace(FREE, **{field: -1}))
        assert caught.value.field == field
