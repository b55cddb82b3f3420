"""AdamW, and a learning rate that is a function of the step alone, so that a resume needs no scheduler's state."""

import math
from typing import Any, Final

import torch
from torch import nn

from phalanx.core.recipe import AnyRecipe
from phalanx.job.train.local_adamw import LocalAdamW
from phalanx.job.train.offload import OffloadPlace, streamed_adamw

_MATRIX: Final = 2
"""Dimensions; of experts' matrices, which are stacked, one more."""


def make_adamw(model: nn.Module, recipe: AnyRecipe, place: OffloadPlace | None = None) -> torch.optim.AdamW:
    """Decoupled decay on matrices only: norms have no scale to shrink. Its moments are there before the first step, as zeros.
    Frozen weights have none.

    Experts are a group of their own, after the rest.

    place: of the moments, None for beside the weights. With one this is a collective of all ranks, and raises as `streamed_adamw`.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.dim() == _MATRIX]
    vectors = [parameter for parameter in trained if parameter.dim() == 1]
    experts = [parameter for parameter in trained if parameter.dim() > _MATRIX]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}]
    groups += [{"params": vectors, "weight_decay": 0.0}] if vectors else []  # of adapters none is one
    groups += [{"params": experts, "weight_decay": recipe.weight_decay}] if experts else []
    options: dict[str, Any] = {"lr": recipe.lr, "betas": (recipe.beta1, recipe.beta2), "fused": True}
    if place is not None:
        return streamed_adamw(groups, place, **options)
    optimizer = LocalAdamW(groups, **options)
    for parameter in trained:
        optimizer.state[parameter] = _moments(parameter)
    return optimizer


def _moments(parameter: nn.Parameter) -> dict[str, torch.Tensor]:
    """What AdamW itself makes in its first step: so that all memory of a run is taken before it, and its size is known."""
    return {
        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
        "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
    }


def lr_at(step: int, recipe: AnyRecipe) -> float:
    """Of update `step`, counted from 1: linear up to `lr` at `warmup_steps`, then a cosine down to `lr * min_lr_ratio`."""
    if step <= recipe.warmup_steps:
        return recipe.lr * step / recipe.warmup_steps
    share = (step - recipe.warmup_steps) / (recipe.steps - recipe.warmup_steps)
    low = recipe.lr * recipe.min_lr_ratio
    return low + (recipe.lr - low) * 0.5 * (1.0 + math.cos(math.pi * min(share, 1.0)))


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
