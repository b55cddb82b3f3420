"""The cross-entropy of a linear layer's outputs, some tokens at a time: all logits together are never held.

Their gradient is computed with them, while they are there, and goes at once into those of the hidden states and of the weight. So
logits are computed once, and a backward pass has nothing left to do but multiply by what comes from above (as Liger-Kernel does,
arXiv:2410.10989, section 3.2).

Ranks that have each a part of the vocabulary (tensor parallel) tell each other two numbers of each token: the logarithm of the sum
of their logits' exponentials, and the logit of its target where they have it.

Shapes end names: n tokens, d width, v vocabulary (or this rank's part of it), r ranks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

LOGITS_AT_ONCE_BYTES: Final = 512 * 2**20
"""Of logits as float32, which are in memory while the loss is computed; half of it as they come from the product."""

OfLogits = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Part:
    """Of the vocabulary: this rank's rows begin at id `first`. group: of the ranks that have all of it together, with at most
    `rows` each."""

    first: int
    rows: int
    group: dist.ProcessGroup


def tokens_at_once(vocab: int) -> int:
    """A power of two, so that sequences are cut evenly."""
    return 1 << max(7, (LOGITS_AT_ONCE_BYTES // (4 * vocab)).bit_length() - 1)


def fused_loss(
    hidden_nd: Tensor,
    weight_vd: Tensor,
    targets_n: Tensor,
    share_n: Tensor,
    at_once: int | None = None,
    compiled: bool = False,
    part: Part | None = None,
) -> Tensor:
    """Sum over tokens of share x cross-entropy, float32. share_n: float32, 0 of what does not count.

    at_once: tokens whose logits are held together. compiled: torch fuses what is done to logits into one kernel. part: of the
    vocabulary, whose rows of the weight these are; the loss is then that of all of it, on every rank of the group, and the gradient
    of the hidden states this part's share, which adds up over them. A collective of these ranks.
    """
    at_once = at_once or tokens_at_once(part.rows if part else len(weight_vd))
    if not torch.is_grad_enabled():
        return _counted(token_losses(hidden_nd, weight_vd, targets_n, at_once, part), share_n).sum()
    of_logits = partial(_of_part, part, compiled) if part else _compiled(_loss_and_gradient) if compiled else _loss_and_gradient
    loss: Tensor = _FusedLoss.apply(hidden_nd, weight_vd, targets_n, share_n, at_once, of_logits)  # type: ignore[no-untyped-call]
    return loss


@torch.no_grad()
def token_losses(
    hidden_nd: Tensor, weight_vd: Tensor, targets_n: Tensor, at_once: int | None = None, part: Part | None = None
) -> Tensor:
    """Of each token, float32 (n,); without gradients. part: as in `fused_loss`."""
    found = []
    for some in _parts(len(hidden_nd), at_once or tokens_at_once(part.rows if part else len(weight_vd))):
        logits_nv = hidden_nd[some] @ weight_vd.t()
        if part is None:
            found.append(_losses(logits_nv.float(), targets_n[some])[0])
        else:
            logsumexp_n, target_n = _joined(_told(logits_nv, targets_n[some] - part.first), part.group)
            found.append(logsumexp_n - target_n)
    return torch.cat(found)


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_nd: Tensor, weight_vd: Tensor, targets_n: Tensor, share_n: Tensor, at_once: int, of_logits: OfLogits
    ) -> Tensor:
        is_trained = ctx.needs_input_grad[1]  # no frozen one, beside which adapters learn
        total = torch.zeros((), dtype=torch.float64, device=hidden_nd.device)
        hidden_grad_nd = torch.empty_like(hidden_nd)
        # In float32, since it is a sum over parts.
        weight_grad_vd = torch.zeros(weight_vd.shape if is_trained else (), dtype=torch.float32, device=weight_vd.device)
        for part in _parts(len(hidden_nd), at_once):
            loss, grad_nv = of_logits(hidden_nd[part] @ weight_vd.t(), targets_n[part], share_n[part])
            total += loss
            torch.mm(grad_nv, weight_vd, out=hidden_grad_nd[part])
            if is_trained:
                weight_grad_vd += grad_nv.t() @ hidden_nd[part]
        ctx.save_for_backward(hidden_grad_nd, weight_grad_vd)
        ctx.weight_dtype = weight_vd.dtype
        return total.to(torch.float32)

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> Any:
        hidden_grad_nd, weight_grad_vd = ctx.saved_tensors
        hidden = (hidden_grad_nd.float() * above[0]).to(hidden_grad_nd.dtype)
        weight = (weight_grad_vd * above[0]).to(ctx.weight_dtype) if ctx.needs_input_grad[1] else None
        return hidden, weight, *4 * (None,)


def _loss_and_gradient(logits_nv: Tensor, targets_n: Tensor, share_n: Tensor) -> tuple[Tensor, Tensor]:
    """The part's loss, and its gradient by logits in their own dtype. By comparison, not by index: in any order the same bits."""
    wide_nv = logits_nv.float()
    losses_n, logsumexp_n1 = _losses(wide_nv, targets_n)
    is_target_nv = torch.arange(wide_nv.shape[1], device=wide_nv.device) == targets_n[:, None]
    grad_nv = ((wide_nv - logsumexp_n1).exp() - is_target_nv.to(torch.float32)) * share_n[:, None]
    return _counted(losses_n, share_n).sum(), grad_nv.to(logits_nv.dtype)


def _of_part(part: Part, compiled: bool, logits_nv: Tensor, targets_n: Tensor, share_n: Tensor) -> tuple[Tensor, Tensor]:
    """As `_loss_and_gradient`, where the vocabulary is cut: the loss of all of it, and the gradient by this part's logits."""
    own_n = targets_n - part.first
    told_2n = (_compiled(_told) if compiled else _told)(logits_nv, own_n)
    logsumexp_n, target_n = _joined(told_2n, part.group)
    gradient = _compiled(_gradient_of_part) if compiled else _gradient_of_part
    return _counted(logsumexp_n - target_n, share_n).sum(), gradient(logits_nv, own_n, share_n, logsumexp_n)


def _told(logits_nv: Tensor, own_n: Tensor) -> Tensor:
    """(2, n): logsumexp, and the target's logit or 0. own_n: the target's row, of another rank where it is none of these."""
    wide_nv = logits_nv.float()
    if not wide_nv.shape[1]:  # a vocabulary of fewer words than ranks
        return torch.stack((wide_nv.logsumexp(dim=1), torch.zeros_like(own_n, dtype=wide_nv.dtype)))
    target_n = wide_nv.gather(1, own_n.clamp(0, wide_nv.shape[1] - 1)[:, None]).squeeze(1)
    is_own_n = (own_n >= 0) & (own_n < wide_nv.shape[1])
    return torch.stack((wide_nv.logsumexp(dim=1), target_n.where(is_own_n, 0.0)))


def _joined(told_2n: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """Of all parts. A collective."""
    every = [torch.empty_like(told_2n) for _ in range(group.size())]
    dist.all_gather(every, told_2n, group=group)
    told_r2n = torch.stack(every)
    return told_r2n[:, 0].logsumexp(dim=0), told_r2n[:, 1].sum(dim=0)


def _gradient_of_part(logits_nv: Tensor, own_n: Tensor, share_n: Tensor, logsumexp_n: Tensor) -> Tensor:
    is_target_nv = torch.arange(logits_nv.shape[1], device=logits_nv.device) == own_n[:, None]
    grad_nv = ((logits_nv.float() - logsumexp_n[:, None]).exp() - is_target_nv.to(torch.float32)) * share_n[:, None]
    return grad_nv.to(logits_nv.dtype)


def _losses(wide_nv: Tensor, targets_n: Tensor) -> tuple[Tensor, Tensor]:
    logsumexp_n1 = wide_nv.logsumexp(dim=1, keepdim=True)
    return (logsumexp_n1 - wide_nv.gather(1, targets_n[:, None])).squeeze(1), logsumexp_n1


def _counted(losses_n: Tensor, share_n: Tensor) -> Tensor:
    return torch.where(share_n > 0, losses_n * share_n, 0.0)


def _parts(number: int, at_once: int) -> Iterator[slice]:
    return (slice(start, start + at_once) for start in range(0, number, at_once))


@cache
def _compiled(of_logits: Callable[..., Any]) -> Callable[..., Any]:
    made: Callable[..., Any] = torch.compile(of_logits, dynamic=False, fullgraph=True)
    return made
