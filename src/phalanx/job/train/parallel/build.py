"""A model with its first weights, laid over the mesh block by block."""

from dataclasses import replace
from typing import cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from phalanx.core.recipe import LlamaRecipe
from phalanx.job.models.llama import Block, Llama, LlamaShape
from phalanx.job.models.lora import adapt
from phalanx.job.train.compiled import compiled_by_all, compiles, parts_run_compiled
from phalanx.job.train.context.shared import context_parallel
from phalanx.job.train.device import Rank
from phalanx.job.train.initial import fill_part, first_weights
from phalanx.job.train.loss import HeadPlan
from phalanx.job.train.parallel.data import DataParallel
from phalanx.job.train.parallel.experts import ExpertParallel
from phalanx.job.train.parallel.mesh import compiles_parts, context_mesh, of_rank, uncompiled
from phalanx.job.train.parallel.tensors import TensorParallel
from phalanx.job.train.precision import Dtype
from phalanx.job.train.speed import look_ahead, quicken


def sharded_llama(shape: LlamaShape, recipe: LlamaRecipe, rank: Rank, mesh: DeviceMesh, dtype: Dtype, fresh: bool = True) -> Llama:
    """A model whose weights are those of `init`, or depend on nothing but shape, seed and `init_std`. fresh: else they hold
    nothing, for who loads them all: to draw billions of them takes longer than to read them.

    Built without memory, then filled and sharded block by block, so no rank ever holds more than its shards and one block.
    """
    with torch.device("meta"):
        model = Llama(shape)
        if recipe.lora is not None:
            adapt(model, recipe.lora)
    layout, compiled = of_rank(rank), compiled_by_all(recipe.compile, rank.device)
    blocks = uncompiled(replace(recipe, compile=compiled), layout) if recipe.compile == "auto" else recipe
    quicken(model, blocks, dtype, rank.device)
    if compiles_parts(layout) and compiles(compiled, rank.device):
        parts_run_compiled(model.blocks)
    model.head_plan = HeadPlan(fused=recipe.fused_loss, compiled=compiles(compiled, rank.device))
    fill = first_weights(recipe, fresh)
    data, tensors = DataParallel(mesh, dtype, layout.zero, recipe), TensorParallel(mesh)
    experts = ExpertParallel(mesh, layout.ep, dtype, recipe)
    for index, block in enumerate(model.blocks):
        fill_part(block, f"blocks.{index}", fill, rank.device)
        experts.block(block, data.reshards)
        tensors.block(cast(Block, block), f"blocks.{index}")
        data.part(block)
    for name, part in model.named_children():
        if name != "blocks":
            fill_part(part, name, fill, rank.device)
    tensors.whole(model)
    if (sharing := context_mesh(rank, mesh)) is not None:
        context_parallel(model, sharing, layout.context)
    if not shape.tied:
        # Each its own: the output's gradients are there first of all, the embedding's last. Their weights stay from forward to
        # backward, since what comes between is short, or nothing.
        data.kept([model.norm, cast(nn.Module, model.output)])
        if not tensors.cuts:  # what FSDP wraps must give out no view, as an embedding does that is cut: it stays the whole model's
            data.kept([model.embedding])
    data.whole(model)
    look_ahead(model.blocks, recipe.prefetch_blocks)
    return model
