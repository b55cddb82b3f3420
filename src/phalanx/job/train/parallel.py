"""The model over the mesh: FSDP2 on one data-parallel axis; a gang of one is the same code."""

from collections.abc import Mapping
from typing import cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from phalanx.core.recipe import LlamaRecipe
from phalanx.job.models.llama import Llama, LlamaShape
from phalanx.job.models.moe.mixture import reset_buffers
from phalanx.job.train.device import Rank
from phalanx.job.train.initial import Fill, first_weights
from phalanx.job.train.precision import Dtype, policy


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
    fill = first_weights(recipe, fresh)
    for index, block in enumerate(model.blocks):
        _fill(block, f"blocks.{index}", fill, rank.device)
        fully_shard(block, mesh=mesh, mp_policy=policy(dtype))
    for name, part in model.named_children():
        if name != "blocks":
            _fill(part, name, fill, rank.device)
    fully_shard(model, mesh=mesh, mp_policy=policy(dtype))
    return model


def sync_gradients(model: nn.Module, wanted: bool) -> None:
    """Whether the next backward pass reduces gradients over the mesh; not wanted before the last microbatch of a step."""
    cast(FSDPModule, model).set_requires_gradient_sync(wanted)


def _fill(part: nn.Module, name: str, fill: Fill, device: torch.device) -> None:
    part.to_empty(device=device)
    reset_buffers(part)
    fill(part, name)
