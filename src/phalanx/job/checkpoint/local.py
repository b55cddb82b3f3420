"""This rank's piece of a tensor, whoever cut it."""

import torch
from torch.distributed.tensor import DTensor


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """In place; all of one that is not cut."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
