"""Layers to stages: no cut has a cheaper dearest stage; equal layers give equal counts."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import SpecError
from phalanx.fabric.pipeline.balance import LAYERS_MAX, LayerCosts, balanced_stages

COSTS = st.lists(st.integers(0, 9), min_size=1, max_size=9)


def every_cut(num_layers: int, num_stages: int) -> list[tuple[range, ...]]:
    inner = combinations(range(1, num_layers), num_stages - 1)
    return [tuple(range(first, last) for first, last in pairwise((0, *cuts, num_layers))) for cuts in inner]


@given(COSTS, st.integers(0, 12), st.integers(0, 30), st.data())
def test_the_dearest_stage_is_as_cheap_as_any_cut_makes_it_and_the_rest_is_even(
    layers: list[int], embedding: int, output: int, data: st.DataObject
) -> None:
    num_stages = data.draw(st.integers(1, len(layers)))
    costs = LayerCosts(tuple(layers), embedding, output)
    stages = balanced_stages(costs, num_stages)
    assert [layer for stage in stages for layer in stage] == list(range(len(layers))) and all(stages)

    def worth(cut: tuple[range, ...]) -> tuple[float, float, list[int]]:
        found = costs.of(cut)
        return max(found), sum(cost**2 for cost in found), [len(stage) for stage in cut]

    assert worth(stages) == min(worth(cut) for cut in every_cut(len(layers), num_stages))


@given(st.integers(1, 200), st.data())
def test_equal_layers_give_equal_counts_or_one_more_behind(num_layers: int, data: st.DataObject) -> None:
    num_stages = data.draw(st.integers(1, min(num_layers, 24)))
    counts = [len(stage) for stage in balanced_stages(LayerCosts((0.1,) * num_layers), num_stages)]
    assert counts == sorted(counts) and max(counts) - min(counts) <= 1


def test_embedding_and_output_take_the_place_of_layers() -> None:
    assert [len(stage) for stage in balanced_stages(LayerCosts((1,) * 14, embedding=1, output=1), 4)] == [3, 4, 4, 3]
    assert [len(stage) for stage in balanced_stages(LayerCosts((2,) * 8, output=5), 4)] == [2, 2, 3, 1]


@pytest.mark.parametrize(
    ("costs", "num_stages", "field", "fix"),
    [
        (LayerCosts((1, 1, 1)), 4, "num_stages", "write 1 to 3"),
        (LayerCosts((1, 1, 1)), 0, "num_stages", "write 1 to 3"),
        (LayerCosts(()), 1, "layers", f"write 1 to {LAYERS_MAX:,}"),
        (LayerCosts((1, float("nan"))), 1, "layers[1]", "0 or more"),
        (LayerCosts((1,), embedding=-1), 1, "embedding", "0 or more"),
        (LayerCosts((1,), output=float("inf")), 1, "output", "0 or more"),
    ],
)
def test_what_cannot_be_cut_says_what_to_write(costs: LayerCosts, num_stages: int, field: str, fix: str) -> None:
    with pytest.raises(SpecError) as refused:
        balanced_stages(costs, num_stages)
    assert refused.value.field == field and fix in refused.value.fix
