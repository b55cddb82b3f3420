"""Numbers that another trainer logs, as `Run.log` takes them."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from phalanx.job.train.library.steps import is_name

_ARGUMENTS: Final = ("self", "step", "tokens")
_IN_FRONT: Final = "logged."


def curves_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """What `log` would take for an argument of its own is called "logged.NAME"; what it would refuse is left out: no name and no
    value that somebody logs ends a training."""
    named = {f"{_IN_FRONT}{name}" if name in _ARGUMENTS else name: value for name, value in said.items()}
    return {name: value for name, value in named.items() if is_name(name) and _is_number(value)}


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex() and not isinstance(value, DTensor)
    return isinstance(value, int | float | np.integer | np.floating)
