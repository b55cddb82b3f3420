"""Packing parts of GPUs: the published scores by hand, ours by hand, and that keeping scores changes nothing."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.errors import Bug
from phalanx.decide.scheduler.where.columns import Columns, Node, Pod, Popular, Spot, popular
from phalanx.decide.scheduler.where.expected_idle import PRICE_MILLI, ExpectedIdle, prices
from phalanx.decide.scheduler.where.filling import arrivals, even_draws, idle_after, streams
from phalanx.decide.scheduler.where.fragmentation import TYPICAL_SHARE, BestFit, GradientDescent, Packer
from tests.drawn import examples

BIG = Pod(3_000, 4_000, 1, 810)
SMALL = Pod(1_000, 2_000, 1, 190)
WHOLE = Pod(4_000, 8_000, 1, 1_000)
GANG = Pod(16_000, 32_000, 4, 1_000)
CPUS = Pod(6_000, 1_000, 0, 0)
ONLY_T4 = Pod(1_000, 1_000, 1, 500, frozenset({"T4"}))
KINDS = (BIG, SMALL, WHOLE, GANG, CPUS, ONLY_T4)
MIX = (Popular(BIG, 4), Popular(SMALL, 3), Popular(WHOLE, 6), Popular(GANG, 1), Popular(CPUS, 2), Popular(ONLY_T4, 2))


def node(name: str, num_gpu: int = 2, cpu_milli: int = 16_000, model: str = "T4") -> Node:
    return Node(name, cpu_milli, 64_000, num_gpu, model)


def placed(packer: Packer, pod: Pod) -> Spot:
    spot = packer.choose(pod)
    assert spot is not None
    packer.take(spot, pod)
    return spot


# What FGD's authors published


def test_the_typical_pods_are_the_most_popular_ones_that_cover_the_share() -> None:
    pods = [BIG] * 12 + [SMALL] * 7 + [WHOLE]
    assert popular(pods, TYPICAL_SHARE) == (Popular(BIG, 12), Popular(SMALL, 7))
    assert popular(pods, 0.96) == popular(pods) == (Popular(BIG, 12), Popular(SMALL, 7), Popular(WHOLE, 1))
    assert popular([]) == ()


def test_fragments_are_the_idle_milli_that_a_typical_pod_cannot_use() -> None:
    """GPUs with 190 and 500 free, 2.5 cores: BIG has no CPUs for it, SMALL can use both, CPUS wants no GPU."""
    columns = Columns([node("a")])
    packer = GradientDescent(columns, [Popular(BIG, 5), Popular(SMALL, 3), Popular(CPUS, 2)])
    columns.take(Spot(0, (0,)), BIG)
    columns.take(Spot(0, (1,)), Pod(10_500, 1_000, 1, 500))
    assert packer.fragments_milli(columns.free) == pytest.approx([690 * 5 / 10 + 0 + 690 * 2 / 10])
    columns.release(Spot(0, (0,)), BIG)
    assert packer.fragments_milli(columns.free) == pytest.approx([500 * 5 / 10 + 1_500 * 2 / 10]), "BIG fits one of the two"


def test_a_score_is_the_sigmoid_of_what_a_pod_saves_in_whole_points() -> None:
    columns = Columns([node("b"), node("a"), node("c", num_gpu=1)])
    packer = GradientDescent(columns, [Popular(BIG, 1)])
    assert columns.names == ("a", "b", "c")
    saved = packer.score(SMALL)  # 810 stay, which BIG can use
    assert list(saved) == [math.floor(100 / (1 + math.exp(0)))] * 3
    assert packer.choose(SMALL) == Spot(0, (0,)), "equal scores: the first by name, the lowest GPU"
    columns.take(Spot(1, (1,)), SMALL)
    assert packer.score(Pod(0, 0, 1, 800))[1] == math.floor(100 / (1 + math.exp(10 / 1000))), "10 are left that nobody can use"
    half = packer.score(Pod(0, 0, 1, 500))
    assert half[0] == math.floor(100 / (1 + math.exp(500 / 1000)))
    assert half[1] == math.floor(100 / (1 + math.exp(310 / 1000)))
    assert packer.choose(Pod(0, 0, 1, 500)) == Spot(1, (1,))


def test_best_fit_takes_the_fullest_node_and_the_tightest_gpu() -> None:
    columns = Columns([node("a", num_gpu=4, cpu_milli=64_000), node("b"), node("c")])
    packer = BestFit(columns)
    columns.take(Spot(2, (1,)), SMALL)
    expected = [1 - ((64 - 3) / 128 + (4 - 0.81) / 8) / 2, 1 - ((16 - 3) / 128 + (2 - 0.81) / 8) / 2]
    assert list(packer.score(BIG)[:2]) == [math.floor(100 * one) for one in expected]
    assert packer.choose(BIG) == Spot(2, (1,))


# Ours


def test_a_node_is_worth_what_stays_idle_after_streams_have_filled_it() -> None:
    """One GPU, 6 cores. First stream: BIG, WHOLE fits no more, SMALL. Second: SMALL four times, then only 2 cores are left."""
    columns = Columns([node("a", num_gpu=1, cpu_milli=6_000)])
    mix = [Popular(BIG, 1), Popular(SMALL, 1), Popular(WHOLE, 1)]
    picks = np.array([[0, 2, 1, 0, 0], [1, 1, 1, 1, 0]])
    filled = streams(columns, mix, (picks + 0.5) / 3)
    assert filled.gpu_milli[0].tolist() == [[810, 1000, 190, 810, 810], [190, 190, 190, 190, 810]]
    assert idle_after(columns.free, filled).tolist() == [(0 + (1000 - 4 * 190)) / 2]


def test_several_whole_gpus_go_to_one_pod_of_a_stream() -> None:
    columns = Columns([node("a", num_gpu=8, cpu_milli=64_000)])
    mix = [Popular(GANG, 1), Popular(SMALL, 1)]
    filled = streams(columns, mix, (np.array([[1, 0, 0], [0, 0, 0]]) + 0.5) / 2)
    assert idle_after(columns.free, filled).tolist() == [((8_000 - 190 - 4_000) + 0) / 2]


def test_what_goes_well_together_is_put_together() -> None:
    packer = ExpectedIdle(Columns([node("a"), node("b")]), popular([BIG] * 9 + [SMALL] * 1))
    first = placed(packer, BIG)
    assert placed(packer, SMALL) == first
    packer.release(first, SMALL)
    assert placed(packer, SMALL) == first


def test_a_node_for_a_gang_is_not_broken_up_when_such_gangs_are_to_come() -> None:
    columns = Columns([node("a", num_gpu=4, cpu_milli=64_000), node("b", num_gpu=4, cpu_milli=64_000)])
    half = Pod(2_000, 1_000, 1, 500)
    packer = ExpectedIdle(columns, popular([GANG] * 5 + [half] * 5))
    assert placed(packer, half).node == 0
    assert [placed(packer, half).node for _ in range(5)] == [0] * 5
    assert placed(packer, CPUS).node == 0
    assert placed(packer, GANG).node == 1


def test_pods_that_may_go_anywhere_keep_off_models_that_others_must_have() -> None:
    columns = Columns([node("a"), node("b", model="V100")])
    anywhere = Pod(1_000, 1_000, 1, 500)
    mix = popular([ONLY_T4] * 3 + [anywhere] * 3)
    costs = dict(zip(columns.models, prices(columns, mix), strict=True))
    assert costs == pytest.approx({"T4": PRICE_MILLI * (3 / 2) / (3 / 2 + 3 / 4), "V100": 0.0})
    assert placed(ExpectedIdle(columns, mix), anywhere).node == 1
    assert not prices(columns, popular([anywhere])).any()


def test_pods_with_a_choice_come_where_less_is_asked_for() -> None:
    columns = Columns([node("a"), node("b", model="V100")])
    anywhere = Pod(1_000, 1_000, 1, 500)
    often = arrivals(columns, [Popular(ONLY_T4, 2), Popular(anywhere, 2), Popular(CPUS, 3)])
    t4, v100 = columns.models.index("T4"), columns.models.index("V100")
    assert often[0, v100] == 0
    assert 0 <= often[1, t4] < 0.2 < 0.8 < often[1, v100]
    assert often[2, t4] == often[2, v100]
    assert often @ [2, 2] == pytest.approx([2, 2, 3]), "each pod comes once"


def test_where_no_pod_may_come_all_stays_idle() -> None:
    columns = Columns([node("a"), node("b", model="V100")])
    packer = ExpectedIdle(columns, popular([ONLY_T4]))
    assert packer.idle_milli(columns.free).tolist() == [0, 2_000]
    nothing_known = ExpectedIdle(columns, ())
    assert nothing_known.idle_milli(columns.free).tolist() == [2_000, 2_000]
    assert nothing_known.choose(BIG) == Spot(0, (0,))


def test_the_draws_are_even_and_the_same_for_ever() -> None:
    draws = even_draws(8, 5, 2023)
    assert (np.sort(np.floor(draws * 8), axis=0) == np.arange(8)[:, None]).all()
    assert even_draws(2, 2, 2023).ravel().tolist() == [
        0.34866571080117537,
        0.2730910725731593,
        0.8809302508898745,
        0.7924506415422127,
    ]


# What holds for all

MAKERS: Sequence[Callable[[Columns], Packer]] = (
    BestFit,
    lambda columns: GradientDescent(columns, MIX),
    lambda columns: ExpectedIdle(columns, MIX, even_draws(3, 12, 1)),
)
NODES = st.lists(
    st.builds(
        Node,
        st.just(""),
        st.integers(1_000, 32_000),
        st.integers(1_000, 40_000),
        st.integers(0, 4),
        st.sampled_from(["T4", "V100"]),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=examples(60))
@given(NODES, st.lists(st.tuples(st.sampled_from(KINDS), st.booleans()), max_size=20), st.integers(0, 2))
def test_kept_scores_are_those_of_a_new_packer_and_nothing_is_overcommitted(
    nodes: list[Node], steps: list[tuple[Pod, bool]], which: int
) -> None:
    named = [Node(f"n{place}", one.cpu_milli, one.memory_mib, one.num_gpu, one.model) for place, one in enumerate(nodes)]
    packer, held = MAKERS[which](Columns(named)), list[tuple[Spot, Pod]]()
    for pod, release in steps:
        spot = packer.choose(pod)
        assert (spot is None) == (not packer.feasible(pod).any())
        if spot is not None:
            assert len(spot.gpus) == pod.num_gpu
            assert not pod.models or named[spot.node].model in pod.models or not pod.num_gpu
            packer.take(spot, pod)  # raises when it is not free
            held.append((spot, pod))
        if release and held:
            packer.columns.release(*held.pop(0))  # whoever changes the columns, the packer notices
        anew = Columns(named[::-1])
        for kept_spot, kept_pod in held:
            anew.take(kept_spot, kept_pod)
        other = MAKERS[which](anew)
        for kind in KINDS:
            assert packer.score(kind).tolist() == pytest.approx(other.score(kind).tolist(), abs=1e-6)
            assert packer.choose(kind) == other.choose(kind)


def test_taking_more_than_is_free_is_a_bug_of_ours() -> None:
    columns = Columns([node("a")])
    columns.take(Spot(0, (0,)), BIG)
    for spot, pod in ((Spot(0, (0,)), WHOLE), (Spot(0, (1,)), GANG), (Spot(0, ()), Pod(14_000, 0, 0, 0))):
        with pytest.raises(Bug):
            columns.take(spot, pod)
    with pytest.raises(Bug):
        columns.release(Spot(0, (1,)), BIG)
    assert columns.free.gpu_milli.tolist() == [[190, 1000]]
    assert columns.free.cpu_milli.tolist() == [13_000]


def test_no_node_is_no_place() -> None:
    for make in MAKERS:
        assert make(Columns([])).choose(CPUS) is None
