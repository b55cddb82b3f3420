"""Every rank has one place, ranks that talk most lie nearest, and ranks with the same samples know of each other."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.spec import LayoutSpec
from phalanx.fabric.layouts import AXES, Layout, laid_out, reach

SIZES = st.integers(min_value=1, max_value=3)
LAYOUTS = st.builds(Layout, pp=SIZES, dp_replicate=SIZES, dp_shard=SIZES, cp=SIZES, tp=SIZES)
POWERS = st.sampled_from([1, 2, 4, 8])


@given(LAYOUTS)
def test_places_and_ranks_are_one_to_one(layout: Layout) -> None:
    places = [layout.coordinates(rank) for rank in range(layout.world_size)]
    assert len({tuple(place.values()) for place in places}) == layout.world_size
    assert [layout.rank_at(place) for place in places] == list(range(layout.world_size))
    assert all(0 <= place[axis] < layout.sizes[axis] for place in places for axis in AXES)


@given(LAYOUTS)
def test_groups_of_an_axis_differ_on_it_alone_and_hold_every_rank_once(layout: Layout) -> None:
    for axis in AXES:
        groups = layout.groups(axis)
        assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
        for group in groups:
            places = [layout.coordinates(rank) for rank in group]
            assert [place[axis] for place in places] == list(range(layout.sizes[axis]))
            assert len({tuple(at for name, at in place.items() if name != axis) for place in places}) == 1


@given(LAYOUTS)
def test_ranks_that_differ_in_data_alone_read_each_part_of_the_samples_once(layout: Layout) -> None:
    for other in range(layout.model_size):
        same = [rank for rank in range(layout.world_size) if layout.model_rank(rank) == other]
        assert sorted(layout.data_rank(rank) for rank in same) == list(range(layout.data_size))
    readers = layout.readers()
    assert [layout.data_rank(rank) for rank in readers] == list(range(layout.data_size))
    assert {layout.model_rank(rank) for rank in readers} == {0}
    counted = Counter(layout.data_rank(rank) for rank in range(layout.world_size))
    assert set(counted.values()) == {layout.model_size}


@given(LAYOUTS)
def test_tensor_parallel_ranks_are_neighbours_and_stages_lie_farthest_apart(layout: Layout) -> None:
    assert all(group == tuple(range(group[0], group[0] + layout.tp)) for group in layout.groups("tp"))
    stages = [layout.coordinates(rank)["pp"] for rank in range(layout.world_size)]
    assert stages == sorted(stages)


@given(pp=POWERS, replicate=POWERS, shard=POWERS, cp=POWERS, tp=POWERS, gpus=POWERS, nodes=st.sampled_from([1, 2]))
def test_what_leaves_a_node_goes_along_rails_and_tensor_parallel_ranks_never_leave_a_domain(
    pp: int, replicate: int, shard: int, cp: int, tp: int, gpus: int, nodes: int
) -> None:
    layout = Layout(pp=pp, dp_replicate=replicate, dp_shard=shard, cp=cp, tp=tp)
    for axis in AXES:
        found = reach(layout, axis, gpus, nodes)
        assert (found == "none") == (layout.sizes[axis] == 1)
        assert found != "across"
    assert reach(layout, "tp", gpus, nodes) in ("none", "domain") or tp > gpus * nodes


def test_a_group_that_changes_rails_is_told() -> None:
    """Three ranks at a step of two on nodes of four: the third is alone on its node, at a place that the others have too."""
    assert reach(Layout(dp_shard=3, tp=2), "dp_shard", gpus_per_node=4) == "across"
    assert reach(Layout(dp_shard=4, tp=2), "dp_shard", gpus_per_node=4) == "rail"
    assert reach(Layout(dp_shard=2, tp=2), "dp_shard", gpus_per_node=4) == "domain"
    assert reach(Layout(dp_shard=4, tp=2), "dp_shard", gpus_per_node=4, nodes_per_domain=2) == "domain"


@pytest.mark.parametrize("rank", [-1, 12])
def test_a_rank_outside_the_world_has_no_place(rank: int) -> None:
    layout = Layout(dp_shard=6, tp=2)
    with pytest.raises(IndexError, match=f"rank {rank} is outside a world of 12"):
        layout.coordinates(rank)
    with pytest.raises(IndexError, match="2 is outside axis tp, which has 2"):
        layout.rank_at({"tp": 2})


@given(
    st.builds(LayoutSpec, pp=SIZES, cp=SIZES, tp=SIZES, zero=st.sampled_from([0, 1, 2, 3]), replicate=SIZES),
    st.integers(min_value=1, max_value=200),
)
def test_data_parallelism_has_what_the_other_axes_leave(asked: LayoutSpec, world_size: int) -> None:
    try:
        layout = laid_out(asked, world_size)
    except ValueError:
        data_size, rest = divmod(world_size, asked.pp * asked.cp * asked.tp)
        assert rest or (asked.zero > 0 and data_size % asked.replicate)
        return
    assert layout.world_size == world_size == math.prod(layout.sizes.values())
    assert (layout.pp, layout.cp, layout.tp, layout.zero) == (asked.pp, asked.cp, asked.tp, asked.zero)
    assert (layout.dp_shard == 1) if asked.zero == 0 else (layout.dp_replicate == asked.replicate)
