"""A weight where a model computes with its numbers, on ranks that share its matrices or its tokens."""

from typing import cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial


def part_of(weight: Tensor) -> Tensor:
    """This rank's part, or all of it where it lies whole. A rank's gradient of what lies whole is of its own tokens alone, or of
    its own part of another matrix: those of the ranks are added up, once."""
    if not isinstance(weight, DTensor):
        return weight
    return wide_part_of(weight).to(weight.dtype) if _is_added_up_coarsely(weight) else _local(weight)


def wide_part_of(weight: Tensor) -> Tensor:
    """As `part_of`, in float32 at least, for who computes in that: a gradient is rounded once, after it was added up."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    if isinstance(weight, DTensor) and _is_added_up_coarsely(weight):
        # To redistribute to where it lies changes nothing here; its backward pass adds up, before the gradient is rounded.
        return _local(cast(DTensor, weight.to(wide)).redistribute(placements=weight.placements))
    return part_of(weight).to(wide)


def _local(weight: DTensor) -> Tensor:
    return weight.to_local(grad_placements=[Partial() if one.is_replicate() else one for one in weight.placements])


def _is_added_up_coarsely(weight: DTensor) -> bool:
    """Whether what waits for the backward pass would add up gradients over ranks in less than float32."""
    lies_whole = any(one.is_replicate() for one in weight.placements)
    return lies_whole and weight.requires_grad and torch.finfo(weight.dtype).bits < 32
