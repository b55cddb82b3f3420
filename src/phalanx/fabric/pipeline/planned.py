"""Schedules side by side, as the command line shows them."""

import math
from dataclasses import replace
from typing import Final, cast

from phalanx.core.errors import SpecError
from phalanx.core.pipeline import PipelineAsked, PipelineView, ScheduleView
from phalanx.core.spec import ScheduleName
from phalanx.fabric.pipeline.balance import LayerCosts, balanced_stages
from phalanx.fabric.pipeline.formulas import bubble_formula
from phalanx.fabric.pipeline.layout import SCHEDULES, PipelineLayout
from phalanx.fabric.pipeline.shown import chrome_trace, timeline_lines
from phalanx.fabric.pipeline.timeline import PassCost, Timeline, ideal

_USUAL_STAGES: Final = {"bfs": 2, "interleaved": 2, "zbv": 2, "dualpipev": 2}
"""A rank's, where nobody asks for another number; else one."""


def planned(asked: PipelineAsked) -> PipelineView:
    """Raises SpecError: of one schedule that was named whatever is wrong with it, of all of them what is wrong with each."""
    _check_costs(asked)
    if asked.schedule:
        view, timeline = _shown(asked, _layout(asked, asked.schedule))
        return PipelineView(
            num_ranks=asked.num_ranks, num_microbatches=asked.num_microbatches, schedules=(view,),
            lines=tuple(timeline_lines(timeline)), trace=chrome_trace(timeline),
        )  # fmt: skip
    views = tuple(_or_refused(asked, _layout(asked, name)) for name in SCHEDULES)
    if all(view.refused for view in views):
        _layout(asked, "gpipe").check(asked.layers or None)
    return PipelineView(num_ranks=asked.num_ranks, num_microbatches=asked.num_microbatches, schedules=views)


def _check_costs(asked: PipelineAsked) -> None:
    for name in ("forward", "input", "weight", "embedding", "output"):
        value = getattr(asked, name)
        if not (math.isfinite(value) and value >= 0):
            raise SpecError(name, value, "write a finite cost, 0 or more")
    if asked.forward + asked.input + asked.weight == 0:
        raise SpecError("forward", asked.forward, "passes without a cost have no bubble; write more than 0")


def _layout(asked: PipelineAsked, schedule: str) -> PipelineLayout:
    stages = asked.stages_per_rank or _USUAL_STAGES.get(schedule, 1)
    return PipelineLayout(
        schedule=cast(ScheduleName, schedule), num_ranks=asked.num_ranks, num_microbatches=asked.num_microbatches,
        stages_per_rank=stages,
    )  # fmt: skip


def _or_refused(asked: PipelineAsked, layout: PipelineLayout) -> ScheduleView:
    try:
        return _shown(asked, layout)[0]
    except SpecError as error:
        return ScheduleView(schedule=layout.schedule, stages_per_rank=layout.stages_per_rank, refused=error.sentence())


def _shown(asked: PipelineAsked, layout: PipelineLayout) -> tuple[ScheduleView, Timeline]:
    layout.check(asked.layers or None)
    parts = layout.stages_per_rank
    cost = PassCost(asked.forward / parts, asked.input / parts, asked.weight / parts)
    counts, shares = _stages(asked, layout)
    timeline = ideal(layout, [_times(cost, share) for share in shares])
    even = max(shares) - min(shares) < 1e-9
    view = ScheduleView(
        schedule=layout.schedule, stages_per_rank=parts, bubble=timeline.bubble, bubble_share=timeline.bubble_share,
        formula=bubble_formula(layout, cost) if even else None, waiting_share=timeline.waiting_share, layers=counts,
        held=max(timeline.held(rank) for rank in range(layout.num_ranks)) / parts,
    )  # fmt: skip
    return view, timeline


def _stages(asked: PipelineAsked, layout: PipelineLayout) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The layers of each stage, and what it costs beside the mean one."""
    if not asked.layers:
        return (), (1.0,) * layout.num_stages
    costs = LayerCosts((1.0,) * asked.layers, asked.embedding, asked.output)
    stages = balanced_stages(costs, layout.num_stages)
    each = costs.of(stages)
    return tuple(map(len, stages)), tuple(one * layout.num_stages / sum(each) for one in each)


def _times(cost: PassCost, share: float) -> PassCost:
    return replace(cost, forward=cost.forward * share, input=cost.input * share, weight=cost.weight * share)
