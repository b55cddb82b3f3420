"""A stage gets its values and what its recipe asks for, and is cut over data-parallel ranks by FSDP2."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from phalanx.core.errors import SpecError
from phalanx.core.recipe import LlamaRecipe
from phalanx.fabric.layouts import parted_problems
from phalanx.fabric.pipeline.layout import SPLITS_BACKWARD, PipelineLayout
from phalanx.job.models.llama import Block
from phalanx.job.models.lora import adapt
from phalanx.job.models.moe.mixture import mixtures
from phalanx.job.train.initial import fill_part, first_weights
from phalanx.job.train.parallel.experts import ExpertParallel, lie_alone
from phalanx.job.train.parallel.tensors import TensorParallel
from phalanx.job.train.pipeline.stage import Stage
from phalanx.job.train.precision import Dtype, policy
from phalanx.job.train.speed import look_ahead, quicken


def sharded_stage(
    recipe: LlamaRecipe,
    layout: PipelineLayout,
    mesh: DeviceMesh,
    device: torch.device,
    dtype: Dtype,
    fresh: bool = True,
    tensors: TensorParallel | None = None,
    experts: ExpertParallel | None = None,
) -> Callable[[Stage], None]:
    """For `pipeline_parallel`. mesh: of data-parallel ranks. fresh: with initial values; else it holds nothing, for who loads it.
    tensors, experts: cut its matrices, and its experts, before.

    Weights stay gathered over a step: gathering them for each microbatch would cost more than a step without a pipeline does, and
    a weight pass that was put off finds them. Raises SpecError for what a schedule cannot do.
    """
    recipe = _possible(recipe, layout, dtype)
    first, how = first_weights(recipe, fresh), {"mesh": mesh, "mp_policy": policy(dtype, recipe.reduce_dtype)}

    def prepare(stage: Stage) -> None:
        if recipe.lora is not None:
            adapt(stage, recipe.lora)
        quicken(stage, recipe, dtype, device)
        for mixture in mixtures(stage):
            mixture.experts.parted = layout.schedule in SPLITS_BACKWARD
        for name, block in stage.blocks.named_children():
            fill_part(block, f"blocks.{name}", first, device)
            if experts is not None:
                experts.block(block, reshards=False)
            if tensors is not None:
                tensors.block(cast(Block, block), f"blocks.{name}")
            fully_shard(block, **how, reshard_after_forward=False, ignored_params=lie_alone(block))  # type: ignore[call-overload]  # as named
        for name, part in stage.named_children():
            if name != "blocks":
                fill_part(part, "embedding" if name == "output" and stage.whole_shape.tied else name, first, device)
        if tensors is not None:
            tensors.whole(stage)
        fully_shard(stage, **how, reshard_after_forward=False, ignored_params=lie_alone(stage))  # type: ignore[call-overload]  # as named
        look_ahead(stage.blocks, recipe.prefetch_blocks)

    return prepare


def _possible(recipe: LlamaRecipe, layout: PipelineLayout, dtype: Dtype) -> LlamaRecipe:
    """Where the schedule parts the backward pass nothing is compiled by itself, nor the loss fused: see `parted_problems`."""
    if recipe.reshard_after_forward is True:
        raise SpecError("reshard_after_forward", True, "write auto or false: over a pipeline weights stay gathered for a step")
    for problem in parted_problems(layout.schedule, replace(recipe, dtype=dtype)):
        raise SpecError(*problem)
    return replace(recipe, compile=False, fused_loss=False) if layout.schedule in SPLITS_BACKWARD else recipe
