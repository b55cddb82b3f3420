"""The model over the mesh: FSDP2 on one data-parallel axis; a gang of one is the same code."""

from collections.abc import Mapping
from typing import cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from phalanx.core.recipe import LlamaRecipe
from phalanx.job.models.llama import Llama, LlamaShape
from phalanx.job.models.lora import adapt
from phalanx.job.train.device import Rank
from phalanx.job.train.initial import Fill, first_weights
from phalanx.job.train.precision import Dtype, policy
from phalanx.job.train.speed import look_ahead, quicken


def layout_of(rank: Rank) -> Mapping[str, int]:
    """Mesh axis to its size."""
    return {"dp": rank.world_size}


def make_mesh(rank: Rank) -> DeviceMesh:
    return init_device_mesh(rank.device.type, (rank.world_size,), mesh_dim_names=("dp",))


def sharded_llama(shape: LlamaShape, recipe: LlamaRecipe, rank: Rank, mesh: DeviceMesh, dtype: Dtype, fresh: bool = True) -> Llama:
    """A model whose weights are those of `init`, or depend on nothing but shape, seed and `init_std`. fresh: else they hold
    nothing, for who loads them all: to draw billions of them takes longer than to read them.

    Built without memory, then filled and sharded block by block, so no rank ever holds more than its shards and one block.
    """
    with torch.device("meta"):
        model = Llama(shape)
        if recipe.lora is not None:
            adapt(model, recipe.lora)
    quicken(model, recipe, dtype, rank.device)
    fill, arithmetic = first_weights(recipe, fresh), policy(dtype, recipe.reduce_dtype)
    for index, block in enumerate(model.blocks):
        _fill(block, f"blocks.{index}", fill, rank.device)
        fully_shard(block, mesh=mesh, mp_policy=arithmetic, reshard_after_forward=recipe.reshard_after_forward)
    for name, part in model.named_children():
        if name != "blocks":
            _fill(part, name, fill, rank.device)
    if not shape.tied:
        # Each its own: the output's gradients are there first of all, the embedding's last. Their weights stay from forward to
        # backward, since what comes between is short, or nothing.
        fully_shard([model.norm, cast(nn.Module, model.output)], mesh=mesh, mp_policy=arithmetic, reshard_after_forward=False)
        fully_shard(model.embedding, mesh=mesh, mp_policy=arithmetic, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=arithmetic)
    look_ahead(model.blocks, recipe.prefetch_blocks)
    return model


def sync_gradients(model: nn.Module, wanted: bool) -> None:
    """Whether the next backward pass reduces gradients over the mesh; not wanted before the last microbatch of a step."""
    cast(FSDPModule, model).set_requires_gradient_sync(wanted)


def _fill(part: nn.Module, name: str, fill: Fill, device: torch.device) -> None:
    part.to_empty(device=device)
    fill(part, name)
