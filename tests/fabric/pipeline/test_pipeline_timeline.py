"""Every schedule's simulated timeline: what a pass needs is there before it, each is made once, and the bubble is the formula's."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import Bug, DataError, SpecError
from phalanx.core.spec import ScheduleName
from phalanx.fabric.pipeline.actions import Action, Kind, flat, orders
from phalanx.fabric.pipeline.formulas import bubble_formula, is_exact, share_formula
from phalanx.fabric.pipeline.layout import SCHEDULES, V_SHAPED, PipelineLayout
from phalanx.fabric.pipeline.measured import bubbles
from phalanx.fabric.pipeline.shown import chrome_trace, timeline_lines
from phalanx.fabric.pipeline.timeline import PassCost, Span, Timeline, ideal, needs, replay, result_of

SIZES = st.integers(1, 6)


@st.composite
def layouts(draw: st.DrawFn) -> PipelineLayout:
    """Any that can be, of a few ranks."""
    return draw(
        st.builds(
            PipelineLayout,
            schedule=st.sampled_from(SCHEDULES),
            num_ranks=st.integers(2, 6),
            num_microbatches=st.integers(1, 14),
            stages_per_rank=st.integers(1, 3),
        ).filter(lambda layout: not layout.problems())
    )


@st.composite
def costs(draw: st.DrawFn) -> PassCost:
    cost = PassCost(draw(SIZES), draw(SIZES), draw(SIZES))
    together = draw(st.sampled_from([None, cost.forward + cost.backward]))
    return replace(cost, overlapped=together)


@given(layouts(), st.data())
def test_safety_every_pass_is_made_once_by_its_own_rank_and_after_what_it_needs(
    layout: PipelineLayout, data: st.DataObject
) -> None:
    each = [data.draw(costs()) for _ in range(layout.num_stages)]
    timeline = ideal(layout, each, transfer=data.draw(st.integers(0, 2)))
    ends = {result_of(span.action): span.end for spans in timeline.ranks for span in spans if span.action.kind is not Kind.WEIGHT}
    made = [span.action for spans in timeline.ranks for span in spans]
    assert len(made) == len(set(made))
    assert {layout.rank_of(span.action.stage) == rank for rank, spans in enumerate(timeline.ranks) for span in spans} == {True}
    for stage in range(layout.num_stages):
        for microbatch in range(layout.num_microbatches):
            kinds = sorted(action.kind for action in made if action[1:] == (stage, microbatch))
            assert kinds in (["B", "F"], ["F", "I", "W"])
    spans_of_all = [span for spans in timeline.ranks for span in spans]
    late = [span for span in spans_of_all if any(ends[it] > span.start for it in needs(span.action, layout.num_stages))]
    assert late == []


@given(layouts(), costs())
def test_a_rank_does_one_thing_at_a_time(layout: PipelineLayout, cost: PassCost) -> None:
    timeline = ideal(layout, cost)
    work = layout.num_microbatches * layout.stages_per_rank * (cost.forward + cost.backward)
    for rank, spans in enumerate(timeline.ranks):
        assert timeline.busy(rank) == work, "no two passes overlap, but the pairs of DualPipe, which cost as much together"
        assert all(sooner.start <= later.start for sooner, later in pairwise(spans))
    assert timeline.makespan >= timeline.bubble + work


@given(layouts(), costs())
def test_the_bubble_is_the_published_one_where_that_is_exact(layout: PipelineLayout, cost: PassCost) -> None:
    if is_exact(layout, cost):
        assert ideal(layout, cost).bubble == bubble_formula(layout, cost)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_the_bubble_at_equal_costs(schedule: ScheduleName, num_ranks: int) -> None:
    """F = I = W = 1: by hand."""
    stages = 2 if schedule in (*V_SHAPED, "bfs", "interleaved") else 1
    layout = PipelineLayout(
        schedule=schedule, num_ranks=num_ranks, num_microbatches=2 * num_ranks, stages_per_rank=stages
    )  # fmt: skip
    cost = PassCost(1, 1, 1, overlapped=3)
    hop = {"zb1p": 1, "zbv": 0, "dualpipev": 2}.get(schedule, 3)
    timeline = ideal(layout, cost)
    assert is_exact(layout, cost) and timeline.bubble == bubble_formula(layout, cost) == hop * (num_ranks - 1)
    if hop == 3:
        assert timeline.bubble_share == pytest.approx(share_formula(layout), rel=1e-12)
    apart = ideal(layout, PassCost(1, 1, 1)).bubble
    assert apart == (num_ranks - 1 if schedule == "dualpipev" else timeline.bubble)


def test_zbv_begins_and_ends_aslant_so_that_a_barrier_costs_what_it_saves() -> None:
    """No rank idles between its own passes; the last one begins 3 later than the first."""
    timeline = ideal(PipelineLayout(schedule="zbv", num_ranks=4, num_microbatches=8, stages_per_rank=2), PassCost(1, 1, 1))
    assert timeline.bubble == 0 and timeline.makespan == 8 * 6 + 3
    assert timeline.waiting_share == pytest.approx(3 / 51)


@pytest.mark.parametrize(
    ("schedule", "stages", "held"), [("gpipe", 1, 10), ("1f1b", 1, 4), ("zb1p", 1, 4), ("zbv", 2, 8), ("dualpipev", 2, 9)]
)
def test_activations_that_a_rank_holds_are_the_published_ones(schedule: ScheduleName, stages: int, held: int) -> None:
    """p, of twice as many stages 2p, and 2p+1: table 2 of arXiv:2412.19437."""
    layout = PipelineLayout(schedule=schedule, num_ranks=4, num_microbatches=10, stages_per_rank=stages)
    timeline = ideal(layout, PassCost(1, 1, 1))
    assert max(timeline.held(rank) for rank in range(4)) == held


def test_an_uneven_stage_and_slow_links_make_the_bubble_larger() -> None:
    layout = PipelineLayout(schedule="1f1b", num_ranks=4, num_microbatches=8)
    even = ideal(layout, PassCost(2, 2, 2)).bubble
    assert ideal(layout, PassCost(2, 2, 2), transfer=1).bubble > even
    uneven = [PassCost(size, size, size) for size in (1, 3, 2, 2)]
    assert ideal(layout, uneven).bubble > even


@pytest.mark.parametrize(
    ("asked", "field", "fix"),
    [
        ({"schedule": "gpip"}, "schedule", "gpipe, 1f1b, bfs, interleaved, zb1p, zbv, dualpipev"),
        ({"num_ranks": 1}, "num_ranks", "write 2 or more"),
        ({"num_microbatches": 0}, "num_microbatches", "write 1 or more"),
        ({"num_microbatches": 3}, "num_microbatches", "write 4 or more with schedule 1f1b over 4 ranks"),
        ({"num_microbatches": 2**21}, "num_microbatches", "write less"),
        ({"stages_per_rank": 2}, "stages_per_rank", "write 1 with schedule 1f1b"),
        ({"schedule": "zbv"}, "stages_per_rank", "write 2 with schedule zbv"),
        ({"schedule": "interleaved"}, "stages_per_rank", "write 2 or more"),
        ({"schedule": "zb1p", "stages_per_rank": 0}, "stages_per_rank", "write 1 or more"),
        ({"schedule": "dualpipev", "stages_per_rank": 2, "num_microbatches": 7}, "num_microbatches", "write 8 or more"),
        ({"schedule": "interleaved", "stages_per_rank": 2, "num_microbatches": 9}, "num_microbatches", "write 8, 10 or another"),
        ({"schedule": "interleaved", "stages_per_rank": 4, "layers": 15}, "stages_per_rank", "write 3 or less"),
        ({"layers": 3}, "num_ranks", "write 3 or less"),
        ({"schedule": "zbv", "stages_per_rank": 2, "layers": 7}, "num_ranks", "write 3 or less"),
    ],
)
def test_what_cannot_be_says_what_to_write(asked: dict[str, Any], field: str, fix: str) -> None:
    wanted: dict[str, Any] = {"schedule": "1f1b", "num_ranks": 4, "num_microbatches": 8, "layers": 32} | asked
    num_layers = wanted.pop("layers")
    with pytest.raises(SpecError) as refused:
        PipelineLayout(**wanted).check(num_layers)
    assert refused.value.field == field and fix in refused.value.fix and refused.value.value == wanted.get(field, 1)


def test_odd_ranks_are_fine_with_every_schedule() -> None:
    for schedule in SCHEDULES:
        stages = 2 if schedule in (*V_SHAPED, "bfs", "interleaved") else 1
        assert PipelineLayout(schedule=schedule, num_ranks=5, num_microbatches=10, stages_per_rank=stages).problems(10) == []


def test_ranks_that_would_wait_for_ever_are_a_bug() -> None:
    layout = PipelineLayout(schedule="1f1b", num_ranks=2, num_microbatches=2)
    first, second = orders(layout)
    with pytest.raises(Bug, match="wait for each other at 0B0, 1B0"):
        replay(layout, (first, second[1:]), lambda action: 1)


def test_a_measured_timeline_is_told_beside_its_replay_and_its_formula() -> None:
    """Passes that take 2, 3 and 1, of which every one began half a second late."""
    layout = PipelineLayout(schedule="zb1p", num_ranks=3, num_microbatches=6)
    cost = PassCost(2.0, 3.0, 1.0)
    kept = ideal(layout, cost, transfer=0.5)
    found = bubbles(layout, kept)
    assert found.cost == cost and found.formula == found.replayed == 2 * (2 + 4 - 2)
    assert found.measured == kept.bubble > found.replayed and found.measured_share == kept.bubble_share
    with pytest.raises(DataError, match="schedule 1f1b"):
        bubbles(PipelineLayout(schedule="1f1b", num_ranks=3, num_microbatches=6), kept)
    with pytest.raises(DataError, match="of 2 ranks"):
        bubbles(PipelineLayout(schedule="zb1p", num_ranks=2, num_microbatches=6), kept)


def test_a_timeline_is_shown_as_text_and_as_a_trace() -> None:
    timeline = ideal(PipelineLayout(schedule="1f1b", num_ranks=2, num_microbatches=2), PassCost(1, 1, 1))
    assert list(timeline_lines(timeline, 27)) == ["  0 F0-F1-......B0----...B1----", "  1 ...F0-B0----F1-B1----......"]
    folded = ideal(PipelineLayout(schedule="zbv", num_ranks=2, num_microbatches=1, stages_per_rank=2), PassCost(1, 1, 1))
    assert list(timeline_lines(folded, 20)) == ["  0 F0....f0i0w0....I0W0", "  1 ..F0f0....i0w0I0W0.."]
    trace = json.loads(json.dumps(chrome_trace(timeline, second=1000)))
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == 8 and {event["tid"] for event in slices} == {0, 1}
    first = slices[0]
    assert (first["name"], first["ts"], first["dur"], first["args"]["stage"]) == ("F0", 0, 1000, 0)


def test_pairs_of_dualpipe_are_of_different_microbatches_and_may_overlap() -> None:
    layout = PipelineLayout(schedule="dualpipev", num_ranks=2, num_microbatches=4, stages_per_rank=2)
    pairs = [unit for order in orders(layout) for unit in order if len(unit) == 2]
    assert pairs and all(there.kind is Kind.FORWARD and back.kind is Kind.BACKWARD for there, back in pairs)
    assert all(there.microbatch != back.microbatch for there, back in pairs)
    assert ideal(layout, PassCost(1, 1, 1, overlapped=2)).makespan < ideal(layout, PassCost(1, 1, 1)).makespan
    assert Action(Kind.FORWARD, 0, 0) == flat(orders(layout)[0])[0]
    assert Timeline(((Span(pairs[0][0], 0, 2), Span(pairs[0][1], 0, 2)),)).busy(0) == 2


def test_there_is_no_formula_where_weight_passes_are_longer_than_what_they_fill() -> None:
    zb1p = PipelineLayout(schedule="zb1p", num_ranks=4, num_microbatches=8, stages_per_rank=1)
    assert bubble_formula(zb1p, PassCost(1, 1, 3)) is None and bubble_formula(zb1p, PassCost(1, 1, 1)) == 3
