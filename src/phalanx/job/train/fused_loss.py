"""The cross-entropy of a linear layer's outputs, some tokens at a time: all logits together are never held.

Their gradient is computed with them, while they are there, and goes at once into those of the hidden states and of the weight. So
logits are computed once, and a backward pass has nothing left to do but multiply by what comes from above (as Liger-Kernel does,
arXiv:2410.10989, section 3.2).

Shapes end names: n tokens, d width, v vocabulary.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

LOGITS_AT_ONCE_BYTES: Final = 512 * 2**20
"""Of logits as float32, which are in memory while the loss is computed; half of it as they come from the product."""

OfLogits = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def tokens_at_once(vocab: int) -> int:
    """A power of two, so that sequences are cut evenly."""
    return 1 << max(7, (LOGITS_AT_ONCE_BYTES // (4 * vocab)).bit_length() - 1)


def fused_loss(
    hidden_nd: Tensor, weight_vd: Tensor, targets_n: Tensor, share_n: Tensor, at_once: int | None = None, compiled: bool = False
) -> Tensor:
    """Sum over tokens of share x cross-entropy, float32. share_n: float32, 0 of what does not count.

    at_once: tokens whose logits are held together. compiled: torch fuses what is done to logits into one kernel.
    """
    at_once = at_once or tokens_at_once(len(weight_vd))
    if not torch.is_grad_enabled():
        return _counted(token_losses(hidden_nd, weight_vd, targets_n, at_once), share_n).sum()
    loss: Tensor = _FusedLoss.apply(hidden_nd, weight_vd, targets_n, share_n, at_once, compiled)  # type: ignore[no-untyped-call]
    return loss


@torch.no_grad()
def token_losses(hidden_nd: Tensor, weight_vd: Tensor, targets_n: Tensor, at_once: int | None = None) -> Tensor:
    """Of each token, float32 (n,); without gradients."""
    parts = _parts(len(hidden_nd), at_once or tokens_at_once(len(weight_vd)))
    return torch.cat([_losses((hidden_nd[part] @ weight_vd.t()).float(), targets_n[part])[0] for part in parts])


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_nd: Tensor, weight_vd: Tensor, targets_n: Tensor, share_n: Tensor, at_once: int, compiled: bool
    ) -> Tensor:
        of_logits = _compiled() if compiled else _loss_and_gradient
        total = torch.zeros((), dtype=torch.float64, device=hidden_nd.device)
        hidden_grad_nd = torch.empty_like(hidden_nd)
        weight_grad_vd = torch.zeros_like(weight_vd, dtype=torch.float32)  # summed over parts: not in 8 bits of mantissa
        for part in _parts(len(hidden_nd), at_once):
            loss, grad_nv = of_logits(hidden_nd[part] @ weight_vd.t(), targets_n[part], share_n[part])
            total += loss
            torch.mm(grad_nv, weight_vd, out=hidden_grad_nd[part])
            weight_grad_vd += grad_nv.t() @ hidden_nd[part]
        ctx.save_for_backward(hidden_grad_nd, weight_grad_vd)
        ctx.weight_dtype = weight_vd.dtype
        return total.to(torch.float32)

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> Any:
        hidden_grad_nd, weight_grad_vd = ctx.saved_tensors
        hidden = (hidden_grad_nd.float() * above[0]).to(hidden_grad_nd.dtype)
        return hidden, (weight_grad_vd * above[0]).to(ctx.weight_dtype), *4 * (None,)


def _loss_and_gradient(logits_nv: Tensor, targets_n: Tensor, share_n: Tensor) -> tuple[Tensor, Tensor]:
    """The part's loss, and its gradient by logits in their own dtype. By comparison, not by index: in any order the same bits."""
    wide_nv = logits_nv.float()
    losses_n, logsumexp_n1 = _losses(wide_nv, targets_n)
    is_target_nv = torch.arange(wide_nv.shape[1], device=wide_nv.device) == targets_n[:, None]
    grad_nv = ((wide_nv - logsumexp_n1).exp() - is_target_nv.to(torch.float32)) * share_n[:, None]
    return _counted(losses_n, share_n).sum(), grad_nv.to(logits_nv.dtype)


def _losses(wide_nv: Tensor, targets_n: Tensor) -> tuple[Tensor, Tensor]:
    logsumexp_n1 = wide_nv.logsumexp(dim=1, keepdim=True)
    return (logsumexp_n1 - wide_nv.gather(1, targets_n[:, None])).squeeze(1), logsumexp_n1


def _counted(losses_n: Tensor, share_n: Tensor) -> Tensor:
    return torch.where(share_n > 0, losses_n * share_n, 0.0)


def _parts(number: int, at_once: int) -> Iterator[slice]:
    return (slice(start, start + at_once) for start in range(0, number, at_once))


@cache
def _compiled() -> OfLogits:
    made: OfLogits = torch.compile(_loss_and_gradient, dynamic=False, fullgraph=True)
    return made
