"""Pipelines without a device: layers cut into stages by cost, schedules in order, and the timeline and bubble that these have."""

from phalanx.fabric.pipeline.balance import LayerCosts, balanced_stages
from phalanx.fabric.pipeline.formulas import bubble_formula, share_formula
from phalanx.fabric.pipeline.layout import SCHEDULES, PipelineLayout
from phalanx.fabric.pipeline.shown import chrome_trace, timeline_lines
from phalanx.fabric.pipeline.timeline import PassCost, Timeline, ideal

__all__ = [
    "SCHEDULES",
    "LayerCosts",
    "PassCost",
    "PipelineLayout",
    "Timeline",
    "balanced_stages",
    "bubble_formula",
    "chrome_trace",
    "ideal",
    "share_formula",
    "timeline_lines",
]
