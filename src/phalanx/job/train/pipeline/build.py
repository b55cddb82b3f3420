"""This rank's part of a model by the job's layout: all layers, or those of its stages in a pipeline."""

from dataclasses import replace

import torch
from torch.distributed.device_mesh import DeviceMesh

from phalanx.core.errors import SpecError
from phalanx.core.recipe import LlamaRecipe
from phalanx.fabric.layouts import Layout, pipeline_of
from phalanx.fabric.pipeline.layout import PipelineLayout
from phalanx.job.models.llama import Llama, LlamaShape
from phalanx.job.train.compiled import compiled_by_all
from phalanx.job.train.context.shared import context_parallel
from phalanx.job.train.device import Rank
from phalanx.job.train.parallel import sharded_llama
from phalanx.job.train.parallel.experts import ExpertParallel
from phalanx.job.train.parallel.mesh import PIPELINE, context_mesh, data_mesh, of_rank, uncompiled
from phalanx.job.train.parallel.tensors import TensorParallel
from phalanx.job.train.pipeline.pipeline import pipeline_parallel
from phalanx.job.train.pipeline.prepare import sharded_stage
from phalanx.job.train.pipeline.stage import RankPart, Stage, llama_costs
from phalanx.job.train.precision import Dtype


def laid_llama(
    shape: LlamaShape, recipe: LlamaRecipe, rank: Rank, mesh: DeviceMesh, dtype: Dtype, num_microbatches: int, fresh: bool = True
) -> Llama | RankPart:
    """As `sharded_llama`, also over a pipeline. num_microbatches: of each step. A collective of all ranks. Raises SpecError for
    what a pipeline or its schedule cannot do."""
    layout = of_rank(rank)
    if layout.pp == 1:
        return sharded_llama(shape, recipe, rank, mesh, dtype, fresh)
    stages, sharing = _stages(layout, num_microbatches, shape), context_mesh(rank, mesh)
    recipe = compiled_or_not(recipe, layout, rank.device)
    ways = TensorParallel(mesh), ExpertParallel(mesh, layout.ep, dtype, recipe)
    cut = sharded_stage(recipe, stages, data_mesh(mesh), rank.device, dtype, fresh, *ways)

    def prepare(stage: Stage) -> None:
        cut(stage)
        if sharing is not None:
            context_parallel(stage, sharing, layout.context)

    costs, parts = llama_costs(shape, recipe.sequence), layout.cp * layout.tp
    return pipeline_parallel(shape, stages, mesh[PIPELINE], rank.device, dtype, prepare, costs, parts).part


def compiled_or_not(recipe: LlamaRecipe, layout: Layout, device: torch.device) -> LlamaRecipe:
    """What `compile: auto` becomes, on all ranks alike. A collective of all."""
    if recipe.compile != "auto":
        return recipe
    return uncompiled(replace(recipe, compile=compiled_by_all("auto", device)), layout)


def _stages(layout: Layout, num_microbatches: int, shape: LlamaShape) -> PipelineLayout:
    """At submit the same is checked by the recipe's `accumulate`; here by the microbatches that this gang makes of each step, which
    are others where it goes on with the samples of another number of ranks."""
    stages = pipeline_of(layout, num_microbatches)
    for field, _, fix in stages.problems(shape.layers):
        if field == "num_microbatches":
            made = f"{num_microbatches} microbatch{'es' if num_microbatches > 1 else ''}"
            why = f"this gang makes {made} of a step's samples"
            raise SpecError("layout.schedule", layout.schedule, f"{why}; {fix}, or change the number of ranks")
    stages.check(shape.layers)
    return stages
