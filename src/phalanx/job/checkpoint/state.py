"""The sharded tensors of a training state: weights and optimiser moments under stable names, and nothing that is not a tensor.

Numbers such as the learning rate are functions of the step and the recipe, so they are not stored twice.
"""

from collections.abc import Mapping, Sequence
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

from phalanx.job.checkpoint.rows import Rows, State, rows_of

_TRAINED = StateDictOptions(ignore_frozen_params=True)
_SOME = StateDictOptions(strict=False)
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
Optimizers: TypeAlias = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
"""Of one model: one, several for parts of it, or none at all."""

_MODEL = "model."
_OPTIMIZER = "optimizer."


def listed(optimizers: Optimizers) -> list[torch.optim.Optimizer]:
    return [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)


def training_state(model: nn.Module, optimizer: Optimizers) -> State:
    """Every weight as `model.NAME` and every moment as `optimizer.state.NAME.KIND`, sharded as they are.

    Of an optimiser that has not stepped, the moments are made first. A model with `frozen_stay_out` set leaves its frozen weights
    out: whoever makes it brings them.
    """
    options = _TRAINED if _frozen_stay_out(model) else None
    weights = {_MODEL + name: value for name, value in get_model_state_dict(model, options=options).items()}
    moments = {_OPTIMIZER + name: value for name, value in _optimizer_part(model, optimizer).items()}
    tensors = {name: value for name, value in (weights | moments).items() if isinstance(value, torch.Tensor)}
    return State(tensors, _rows(model, tensors))


def set_training_state(model: nn.Module, optimizer: Optimizers, state: dict[str, torch.Tensor]) -> None:
    """The reverse of `training_state`; every name must be there."""
    weights = {name.removeprefix(_MODEL): value for name, value in state.items() if name.startswith(_MODEL)}
    moments = {name.removeprefix(_OPTIMIZER): value for name, value in state.items() if name.startswith(_OPTIMIZER)}
    options = _SOME if _frozen_stay_out(model) else None
    set_model_state_dict(model, cast(dict[str, Any], weights), options=options)
    if listed(optimizer):
        whole = _optimizer_part(model, optimizer) | moments
        set_optimizer_state_dict(model, optimizer, whole, options=_FLAT)


def _frozen_stay_out(model: nn.Module) -> bool:
    return bool(getattr(model, "frozen_stay_out", False))


def _rows(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> dict[str, Rows]:
    """Of weights that lie otherwise in checkpoints, and of their moments, which lie as they do. Frozen ones may be in none."""
    found: dict[str, Rows] = {}
    for weight, rows in rows_of(model).items():
        own, moments = _MODEL + weight, f"{_OPTIMIZER}state.{weight}."
        if own not in tensors:
            continue
        alike = [name for name in tensors if name.startswith(moments) and tensors[name].shape == tensors[own].shape]
        found |= dict.fromkeys([own, *alike], rows)
    return found


def _optimizer_part(model: nn.Module, optimizer: Optimizers) -> dict[str, Any]:
    if not listed(optimizer):
        return {}
    return get_optimizer_state_dict(model, optimizer, options=_FLAT)
