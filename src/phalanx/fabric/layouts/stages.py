"""What a job's pipeline asks of its recipe, and what both cannot have together; part of `problems`."""

from collections.abc import Iterator
from typing import Final

from phalanx.core.fp8 import is_fp8
from phalanx.core.recipe import LlamaRecipe
from phalanx.core.spec import LayoutSpec, ScheduleName
from phalanx.fabric.layouts.layout import Layout
from phalanx.fabric.pipeline.layout import SCHEDULES, SPLITS_BACKWARD, PipelineLayout, fewest_stages

Problem = tuple[str, object, str]
_NAMES: Final = {"num_ranks": "pp", "num_microbatches": "hyperparameters.accumulate"}
"""Fields of a pipeline as a job has them."""


def pipeline_of(asked: LayoutSpec | Layout, num_microbatches: int) -> PipelineLayout:
    """Of a layout with `pp` above 1. num_microbatches: of a step."""
    return PipelineLayout(
        schedule=asked.schedule, num_ranks=asked.pp, num_microbatches=num_microbatches, stages_per_rank=stages_per_rank(asked)
    )


def stages_per_rank(asked: LayoutSpec | Layout) -> int:
    return asked.stages_per_rank or fewest_stages(asked.schedule)


def stage_problems(asked: LayoutSpec, recipe: LlamaRecipe) -> Iterator[Problem]:
    """Whatever the model."""
    if asked.pp == 1:
        return
    yield from _gathered(asked, recipe)
    yield from parted_problems(asked.schedule, recipe)
    for field, value, fix in pipeline_of(asked, recipe.accumulate).problems():
        yield _NAMES.get(field, field), value, fix + (_others(asked, recipe) if field == "num_microbatches" else "")


def _gathered(asked: LayoutSpec, recipe: LlamaRecipe) -> Iterator[Problem]:
    """Weights stay gathered over a step, through all of its microbatches."""
    if recipe.reshard_after_forward is True:
        fix = "write auto or false: over a pipeline (layout.pp) weights stay gathered for a step, not anew for each microbatch"
        yield "hyperparameters.reshard_after_forward", True, fix
    if recipe.prefetch_blocks and asked.zero == 0:
        fix = "write 0, or a layout.zero above 0: with 0 every rank of a stage has its weights, and asks nobody for them"
        yield "hyperparameters.prefetch_blocks", recipe.prefetch_blocks, fix


def parted_problems(schedule: ScheduleName, recipe: LlamaRecipe) -> Iterator[Problem]:
    """Where the gradient of weights is a pass of its own, nothing that makes it together with the rest can be, nor what can go back
    but once through what it has kept: a compiled backward pass is one piece, and torch 2.11 begins no pass at a function of ours
    (2.13 does), as a fused loss and 8-bit products are. Experts' products are two (`job.models.moe.parted`)."""
    if schedule not in SPLITS_BACKWARD:
        return
    whole = ", ".join(name for name in SCHEDULES if name not in SPLITS_BACKWARD)
    asks = {
        "dtype: bf16": is_fp8(recipe.dtype), "compile: auto": recipe.compile is True,
        "fused_loss: auto": recipe.fused_loss is True,
        "activation_checkpointing: full": recipe.activation_checkpointing == "selective",
    }  # fmt: skip
    for change in (change for change, is_asked in asks.items() if is_asked):
        field = change.split(":")[0]
        fix = f"write one of {whole}, or {change}: it parts the backward pass, which cannot be done with {field}"
        yield "schedule", schedule, f"{fix}: {getattr(recipe, field)}".replace("True", "true")


def _others(asked: LayoutSpec, recipe: LlamaRecipe) -> str:
    """Schedules that do with the recipe's microbatches."""
    fits = [
        name
        for name in SCHEDULES
        if not PipelineLayout(
            schedule=name, num_ranks=asked.pp, num_microbatches=recipe.accumulate, stages_per_rank=fewest_stages(name)
        ).problems()
    ]
    return f", or layout.schedule: {fits[0]}" if fits else ""
