"""Clips gradients by their global norm, which does not depend on how they are cut over the ranks.

torch's own (`clip_grad_norm_`) adds up squares in float32, shard by shard: another number of ranks gets another last bit, by which
all weights are multiplied while it clips. Here they are added up in float64 and the norm is rounded to float32 once.
"""

import math
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from phalanx.job.checkpoint.local import local_of

EPSILON: Final = 1e-6
"""As torch's."""
_SURELY_LESS: Final = 1 - 1e-6
"""Also after float32 has rounded both: nearer ones are multiplied, by what comes out."""


@torch.no_grad()
def global_norm(model: nn.Module) -> Tensor:
    """Of all gradients, float32. A collective of all ranks, each of which has its part of every gradient; parts that several have
    count once."""
    found = _gradients(model)
    return _global_norm([local_of(grad) for grad in found], [_holders(grad) for grad in found])


@torch.no_grad()
def clip(model: nn.Module, norm: float, largest: float) -> None:
    """Scales all gradients down where their norm is above `largest`. norm: as `global_norm` found it. To multiply by 1 would read
    and write all of them once more, in each step of a run that has calmed down."""
    if norm < largest * _SURELY_LESS - EPSILON:
        return
    scale = torch.clamp(largest / (torch.tensor(norm, dtype=torch.float32) + EPSILON), max=1.0)
    torch._foreach_mul_([local_of(grad) for grad in _gradients(model)], float(scale))


def _gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def _global_norm(grads: list[Tensor], holders: list[int]) -> Tensor:
    """holders: of each, how many ranks have the same part."""
    norms = torch._foreach_norm(grads, 2, torch.float64)
    squares_each = list(torch._foreach_mul(norms, norms))
    if any(count > 1 for count in holders):  # by numbers: a tensor of them would be waited for by the host
        torch._foreach_div_(squares_each, [float(count) for count in holders])
    squares = torch.stack(squares_each).sum()
    dist.all_reduce(squares)
    return squares.sqrt().to(torch.float32)


def _holders(grad: Tensor) -> int:
    if not isinstance(grad, DTensor):
        return 1
    sizes = grad.device_mesh.shape
    return math.prod(size for size, placement in zip(sizes, grad.placements, strict=True) if placement.is_replicate())
