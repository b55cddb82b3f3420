"""Products of rows with one matrix for each run of them: an expert's tokens with its weights.

Torch has one kernel for all (`F.grouped_mm`, in 2.11 under that name for bf16 alone); where it does not take what is given, a
product for each expert, which is also what it is held against. Both are behind one operator, so that a compiler sees neither:
torch's own refuses float32 there, and sizes of runs are numbers that a graph cannot have.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor

_KERNEL: Final[Callable[..., Tensor] | None] = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
_ON_CPU: Final = (torch.float32, torch.bfloat16)
STRIDE_BYTES: Final = 16
"""Rows of every operand begin at multiples of it."""


def grouped(x_nd: Tensor, weight_edf: Tensor, count_e: Tensor, all_used: bool = False, mean_over: int = 1) -> Tensor:
    """Rows in the order of their experts, count_e of each, times that expert's matrix: (n, f), in the dtype of the rows. Gradients
    of experts without rows are 0. Weights of another dtype are cast for as long as a product takes, and have gradients in theirs.

    all_used: somebody knows that there are no experts without rows, and nobody need look for them in memory. mean_over: by what the
    gradient of the weights is divided."""
    product: Tensor = _product(x_nd, weight_edf, count_e, all_used, mean_over)
    return product


def has_kernel(x: Tensor) -> bool:
    """Whether torch's kernel takes such numbers on their device."""
    if _KERNEL is None:
        return False
    if x.device.type == "cuda":
        return x.dtype == torch.bfloat16 and torch.cuda.get_device_capability(x.device) >= (8, 0)
    return x.device.type == "cpu" and x.dtype in _ON_CPU


def one_by_one(x_nd: Tensor, weight_edf: Tensor, count_e: Tensor) -> Tensor:
    """The same as a product for each expert."""
    parts = torch.split(x_nd, count_e.tolist())
    return torch.cat([part @ weight for part, weight in zip(parts, weight_edf.unbind(), strict=True)])


@torch.library.custom_op("phalanx::grouped_product", mutates_args=())
def _product(x_nd: Tensor, weight_edf: Tensor, count_e: Tensor, all_used: bool, mean_over: int) -> Tensor:
    weight_edf = weight_edf.to(x_nd.dtype)
    if not len(x_nd) or not has_kernel(x_nd):
        return one_by_one(x_nd, weight_edf, count_e)
    more_d, more_f = _missing(x_nd, weight_edf.shape[1]), _missing(x_nd, weight_edf.shape[2])
    if more_d or more_f:
        wide = _kernel(F.pad(x_nd, (0, more_d)), F.pad(weight_edf, (0, more_f, 0, more_d)), count_e)
        return wide[:, : weight_edf.shape[2]].contiguous()
    return _kernel(x_nd.contiguous(), weight_edf, count_e)


@torch.library.custom_op("phalanx::grouped_product_of_weight", mutates_args=())
def of_weight(x_nd: Tensor, gradient_nf: Tensor, count_e: Tensor, all_used: bool, wanted: torch.dtype, mean_over: int) -> Tensor:
    """The gradient of each expert's matrix, (e, d, f), of that of the product; in the dtype that is wanted."""
    return divided(_sum_of_weight(x_nd, gradient_nf, count_e, all_used), wanted, mean_over)


def divided(total: Tensor, wanted: torch.dtype, by: int) -> Tensor:
    """In the dtype that is wanted, where it is also divided; by one pass over memory. May be `total` itself."""
    if by == 1:
        return total.to(wanted)
    # One number with a dimension: a plain one would be multiplied by in the total's own dtype.
    return total * torch.full((1,), 1 / by, dtype=wanted, device=total.device)


def _sum_of_weight(x_nd: Tensor, gradient_nf: Tensor, count_e: Tensor, all_used: bool) -> Tensor:
    if not len(x_nd) or not has_kernel(x_nd):
        counts = count_e.tolist()
        parts = zip(torch.split(x_nd, counts), torch.split(gradient_nf, counts), strict=True)
        return torch.stack([x.transpose(0, 1) @ gradient for x, gradient in parts])
    d, f = x_nd.shape[1], gradient_nf.shape[1]
    x_nd, gradient_nf = F.pad(x_nd, (0, _missing(x_nd, d))), F.pad(gradient_nf, (0, _missing(x_nd, f)))
    wide = _kernel(x_nd.transpose(0, 1), gradient_nf.contiguous(), count_e)
    if not all_used:
        wide.masked_fill_((count_e == 0)[:, None, None], 0)  # what the kernel leaves there is not said
    return wide if wide.shape[1:] == (d, f) else wide[:, :d, :f].contiguous()


@_product.register_fake
def _(x_nd: Tensor, weight_edf: Tensor, count_e: Tensor, all_used: bool, mean_over: int) -> Tensor:
    return x_nd.new_empty(x_nd.shape[0], weight_edf.shape[2])


@of_weight.register_fake
def _(x_nd: Tensor, gradient_nf: Tensor, count_e: Tensor, all_used: bool, wanted: torch.dtype, mean_over: int) -> Tensor:
    return x_nd.new_empty(count_e.shape[0], x_nd.shape[1], gradient_nf.shape[1], dtype=wanted)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, bool, int], output: Tensor) -> None:
    *tensors, ctx.all_used, ctx.mean_over = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, gradient_nf: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
    x_nd, weight_edf, count_e = ctx.saved_tensors
    of_x = its_weight = None
    if ctx.needs_input_grad[0]:
        of_x = _product(gradient_nf, weight_edf.transpose(1, 2), count_e, ctx.all_used, 1)
    if ctx.needs_input_grad[1]:
        its_weight = of_weight(x_nd, gradient_nf, count_e, ctx.all_used, weight_edf.dtype, ctx.mean_over)
    return of_x, its_weight, None, None, None


_product.register_autograd(_backward, setup_context=_keep)


def _kernel(left: Tensor, right: Tensor, count_e: Tensor) -> Tensor:
    assert _KERNEL is not None, "asked for before"
    return _KERNEL(left, right, offs=count_e.cumsum(0).to(torch.int32))


def _missing(x: Tensor, width: int) -> int:
    return -width % (STRIDE_BYTES // x.element_size())
