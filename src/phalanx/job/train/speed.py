"""What makes a model's steps faster or smaller and is no part of the model: put on before it is sharded, and asked for after."""

from typing import cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from phalanx.core.fp8 import is_fp8
from phalanx.core.recipe import LlamaRecipe
from phalanx.job.models.llama import Llama
from phalanx.job.train.activations import runs
from phalanx.job.train.compiled import compiles, run_by
from phalanx.job.train.float8 import to_float8
from phalanx.job.train.loss import HeadPlan
from phalanx.job.train.precision import Dtype


def quicken(model: Llama, recipe: LlamaRecipe, dtype: Dtype, device: torch.device) -> None:
    """A whole model, or a stage that has some of its blocks under their own numbers; before these are filled and sharded. Raises
    SetupError where the machine cannot do what the recipe asks for."""
    if is_fp8(dtype):
        for block in model.blocks:
            to_float8(block, dtype, device)
    compiled, every = compiles(recipe.compile, device), runs(model.shape, recipe)
    run_by(model.blocks, [every[int(number)] for number, _ in model.blocks.named_children()], compiled)
    model.head_plan = HeadPlan(fused=recipe.fused_loss, compiled=compiled)


def look_ahead(blocks: nn.ModuleList, number: int) -> None:
    """Each block asks for the weights of so many that follow, in either direction, before it computes. FSDP by itself asks for one
    in the backward pass, and for one in the forward pass where the CPU is ahead of the device."""
    if not number:
        return
    sharded = [cast(FSDPModule, block) for block in blocks]
    for index, block in enumerate(sharded):
        block.set_modules_to_forward_prefetch(sharded[index + 1 : index + 1 + number])
        block.set_modules_to_backward_prefetch(sharded[max(0, index - number) : index][::-1])
