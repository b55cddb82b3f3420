"""A weight where a model computes with its numbers, on ranks that share its matrices or its tokens."""

from torch import Tensor
from torch.distributed.tensor import DTensor, Partial


def part_of(weight: Tensor) -> Tensor:
    """This rank's part, or all of it where it lies whole. A rank's gradient of what lies whole is of its own tokens alone, or of
    its own part of another matrix: those of the ranks are added up, once."""
    if not isinstance(weight, DTensor):
        return weight
    return weight.to_local(grad_placements=[Partial() if one.is_replicate() else one for one in weight.placements])
