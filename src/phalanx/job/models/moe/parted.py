"""The grouped product for schedules whose backward pass has two parts: the gradients of rows now, those of weights later.

torch asks a function of ours for every gradient that it could give, not for those of the part that runs, and torch 2.11 cannot
begin a part at one. So the weights have a function of their own beside the one of the rows. Both meet in a sum, which is torch's
own: it hands the gradient to the side that is asked for, and there a part may begin.
"""

from typing import Any

import torch
from torch import Tensor

from phalanx.job.models.moe.grouped import grouped, of_weight


def grouped_in_parts(x_nd: Tensor, weight_edf: Tensor, count_e: Tensor, all_used: bool = False, mean_over: int = 1) -> Tensor:
    """As `grouped`, bit by bit; the sum costs one pass over the product."""
    product = grouped(x_nd, weight_edf.detach(), count_e, all_used, mean_over)
    if not (weight_edf.requires_grad and torch.is_grad_enabled()):
        return product
    nothing: Tensor = _OfWeight.apply(weight_edf, x_nd.detach(), count_e, all_used, mean_over)  # type: ignore[no-untyped-call]
    return product.add_(nothing)


class _OfWeight(torch.autograd.Function):
    """Nothing, in the shape of the product and without its memory. A gradient of the product is then the weights' too."""

    @staticmethod
    def forward(ctx: Any, weight_edf: Tensor, x_nd: Tensor, count_e: Tensor, all_used: bool, mean_over: int) -> Tensor:
        ctx.save_for_backward(x_nd, count_e)
        ctx.asked = all_used, weight_edf.dtype, mean_over
        return x_nd.new_full((), -0.0).expand(len(x_nd), weight_edf.shape[2])  # 0.0 would make a 0.0 of -0.0

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None, None]:
        x_nd, count_e = ctx.saved_tensors
        return of_weight(x_nd, gradients[0], count_e, *ctx.asked), None, None, None, None
