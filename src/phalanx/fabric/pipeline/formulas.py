"""Published bubbles of the schedules, and where each of them is exact. Costs are of one stage and microbatch, all stages alike.

F, B, W: forward, whole backward, and its weight part. A rank of several stages has them once for each; so a bubble of (p-1)(F+B)
with v stages a rank is the v-th part of what the same model has with one.
"""

import math
from typing import Final

from phalanx.fabric.pipeline.layout import PipelineLayout
from phalanx.fabric.pipeline.timeline import PassCost

_ALIKE: Final = 0.05
"""Passes that were measured never take the same time."""


def bubble_formula(layout: PipelineLayout, cost: PassCost) -> float | None:
    """What a rank idles in a step, by the schedule's paper; None where it has none for these costs. p ranks:

    gpipe, 1f1b: (p-1)(F+B), arXiv:2104.04473, section 2.1. bfs, interleaved: the same of smaller stages (section 2.2, and
    arXiv:2211.05953). zb1p: (p-1)(F+B-2W), of arXiv:2401.10241, as DeepSeek writes it (arXiv:2412.19437, table 2). zbv: 0 where
    forward and both halves of the backward pass cost the same (arXiv:2401.10241, section 6). dualpipev: (p-1)(F&B+B-3W), where
    DeepSeek counts by stages, two for each of these ranks (github.com/deepseek-ai/DualPipe).
    """
    found = _of_paper(layout, cost)
    return found if found is not None and found >= 0 else None  # weight passes longer than what they fill are nobody's case


def _of_paper(layout: PipelineLayout, cost: PassCost) -> float | None:
    hops = layout.num_ranks - 1
    if layout.schedule == "zb1p":
        return hops * (cost.forward + cost.backward - 2 * cost.weight)
    if layout.schedule == "zbv":
        alike = all(math.isclose(cost.forward, one, rel_tol=_ALIKE) for one in (cost.input, cost.weight))
        return 0 if alike else None
    if layout.schedule == "dualpipev":
        return hops * (cost.pair + cost.backward - 3 * cost.weight)
    return hops * (cost.forward + cost.backward)


def is_exact(layout: PipelineLayout, cost: PassCost) -> bool:
    """Whether `ideal` has the formula's bubble: given enough microbatches to fill the pipeline and costs that the paper assumes.
    Elsewhere the formula is an estimate. dualpipev is exact where a forward and a backward that are run as one cost as much as one
    after the other; with torch, which runs them one after the other, the bubble is smaller: the forward's result leaves sooner."""
    equal = cost.forward == cost.input == cost.weight
    enough = layout.num_microbatches >= layout.num_ranks
    match layout.schedule:
        case "gpipe" | "1f1b":
            return True
        case "bfs" | "interleaved":
            return enough
        case "zb1p":
            return enough and cost.weight <= cost.forward and cost.weight <= cost.input
        case "zbv":
            return equal and layout.num_microbatches >= 2 * layout.num_ranks - 1
        case "dualpipev":
            return equal and cost.overlapped == cost.forward + cost.backward


def share_formula(layout: PipelineLayout) -> float:
    """(p-1)/(v m + p-1): the share of the time that a rank idles with m microbatches, v stages a rank and one backward pass after
    one forward (arXiv:2104.04473, section 2). Schedules that put weight passes off do better."""
    hops = layout.num_ranks - 1
    return hops / (layout.stages_per_rank * layout.num_microbatches + hops)
