"""The sharded tensors of a training state: weights and optimiser moments under stable names, and nothing that is not a tensor.

Numbers such as the learning rate are functions of the step and the recipe, so they are not stored twice.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
Optimizers: TypeAlias = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
"""Of one model: one, several for parts of it, or none at all."""

_MODEL = "model."
_OPTIMIZER = "optimizer."


def listed(optimizers: Optimizers) -> list[torch.optim.Optimizer]:
    return [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)


def training_state(model: nn.Module, optimizer: Optimizers) -> dict[str, torch.Tensor]:
    """Every weight as `model.NAME` and every moment as `optimizer.state.NAME.KIND`, sharded as they are.

    Of an optimiser that has not stepped, the moments are made first.
    """
    weights = {_MODEL + name: value for name, value in get_model_state_dict(model).items()}
    moments = {_OPTIMIZER + name: value for name, value in _optimizer_part(model, optimizer).items()}
    return {name: value for name, value in (weights | moments).items() if isinstance(value, torch.Tensor)}


def set_training_state(model: nn.Module, optimizer: Optimizers, state: dict[str, torch.Tensor]) -> None:
    """The reverse of `training_state`; every name must be there."""
    weights = {name.removeprefix(_MODEL): value for name, value in state.items() if name.startswith(_MODEL)}
    moments = {name.removeprefix(_OPTIMIZER): value for name, value in state.items() if name.startswith(_OPTIMIZER)}
    set_model_state_dict(model, cast(dict[str, Any], weights))
    if listed(optimizer):
        whole = _optimizer_part(model, optimizer) | moments
        set_optimizer_state_dict(model, optimizer, whole, options=_FLAT)


def _optimizer_part(model: nn.Module, optimizer: Optimizers) -> dict[str, Any]:
    if not listed(optimizer):
        return {}
    return get_optimizer_state_dict(model, optimizer, options=_FLAT)
