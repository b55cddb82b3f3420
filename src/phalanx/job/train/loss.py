"""Next-token cross-entropy, and its mean over all ranks.

Samples are (b, s + 1) token ids, or (b, 2, s + 1) where documents are told apart: ids, and the number of each one's document in the
row, -1 for padding. Each id but the last predicts the one after it, where that is of the same document.

Ranks that share rows have the same samples, and each its own tokens of them: a loss is then that of its part of the tokens, times
the number of those ranks, so that the mean over ranks stays what it is without sharing.

A model that takes a `head` computes its loss where its logits would be, if its `head_plan` asks for that: see `fused_loss`.
"""

from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Shard

from phalanx.core.recipe import Switch
from phalanx.job.checkpoint.local import local_of
from phalanx.job.models.context import context_of
from phalanx.job.train.fused_loss import Part, fused_loss, token_losses

_UNCOUNTED: Final = -100
"""What torch leaves out of a cross-entropy."""
MANY_LOGITS_BYTES: Final = 64 * 2**20
"""Of one sample, as float32. Decided by a sample, not a microbatch, which in a gang of another size is another one."""


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """How a model's loss is computed. fused: without holding all logits; "auto" where a sample has many. compiled: that part."""

    fused: Switch = False
    compiled: bool = False

    def fuses(self, sequence: int, vocab: int) -> bool:
        return 4 * sequence * vocab > MANY_LOGITS_BYTES if self.fused == "auto" else self.fused


def token_loss(model: nn.Module, samples: Tensor) -> Tensor:
    """Mean over the tokens of the samples; of packed ones the mean over rows of each one's mean, so that it does not depend on
    which rows are computed together. Float32."""
    if (plan := _fuses(model, samples)) is not None:
        return _fused_loss(model, samples, plan)
    if samples.dim() == 3:
        return sample_losses(model, samples).mean()
    logits_bsv = model(samples[:, :-1])
    return _cross_entropy(logits_bsv, context_of(model).cut(samples[:, 1:]), "mean")


def sample_losses(model: nn.Module, samples: Tensor) -> Tensor:
    """As `token_loss`, of each sample alone: float32 (b,)."""
    if not torch.is_grad_enabled() and _fuses(model, samples) is not None:
        return _fused_losses(model, samples)
    if samples.dim() == 3:
        return _packed_losses(model, samples[:, 0], samples[:, 1])
    logits_bsv = model(samples[:, :-1])
    return _losses(logits_bsv, context_of(model).cut(samples[:, 1:])).mean(dim=1)


def of_whole_rows(model: nn.Module, losses: Tensor) -> Tensor:
    """The losses of samples, as `sample_losses` gives them, where ranks that share rows have each its part of them. A collective of
    these ranks."""
    context = context_of(model)
    if context.ranks == 1:
        return losses
    total = losses.clone()
    dist.all_reduce(total, group=context.group)
    return total / context.ranks


def sum_over_ranks(total: Tensor) -> Tensor:
    """Of all ranks' sums, float64. Of float32 numbers it is the same, whatever rank has which: float64 holds their sum exactly, or
    nearly so. A collective of all ranks."""
    total = total.detach().clone()
    dist.all_reduce(total)
    return total


def _packed_losses(model: nn.Module, ids: Tensor, segments: Tensor) -> Tensor:
    """0 for a row none of whose targets counts."""
    logits_bsv = model(ids[:, :-1], segments[:, :-1])
    counted_bs, context = _counted(segments), context_of(model)
    losses_bs = _losses(logits_bsv, context.cut(ids[:, 1:].masked_fill(~counted_bs, _UNCOUNTED)))
    return losses_bs.sum(dim=1) * context.ranks / counted_bs.sum(dim=1).clamp(min=1)


def _losses(logits_bsv: Tensor, targets_bs: Tensor) -> Tensor:
    """Of each token: (b, s). Flat, since the 2-d form is refused on CUDA where arithmetic has to be deterministic."""
    return _cross_entropy(logits_bsv, targets_bs, "none").view(targets_bs.shape)


def _cross_entropy(logits_bsv: Tensor, targets_bs: Tensor, reduction: str) -> Tensor:
    """Logits may be cut along the vocabulary: losses are not."""
    logits = logits_bsv.float().flatten(0, 1)
    found = F.cross_entropy(logits, targets_bs.flatten(), reduction=reduction, ignore_index=_UNCOUNTED)
    return local_of(found)


def _counted(segments: Tensor) -> Tensor:
    """(b, s): whether the token after is of the same document."""
    return (segments[:, :-1] == segments[:, 1:]) & (segments[:, 1:] >= 0)


def _fuses(model: nn.Module, samples: Tensor) -> HeadPlan | None:
    """The plan of a model that computes the loss of these samples without holding all logits."""
    plan: HeadPlan | None = getattr(model, "head_plan", None)
    if plan is None or plan.fused is False:
        return None
    return plan if plan.fuses(samples.shape[-1] - 1, model.shape.vocab) else None  # type: ignore[union-attr, arg-type]


Own = tuple[Tensor, Tensor, Part | None]


def _own(hidden_bsd: Tensor, weight_vd: Tensor) -> Own:
    """This rank's part of an output, and hidden states whose gradients are added up over the ranks that have the others."""
    if not isinstance(weight_vd, DTensor):
        return hidden_bsd.flatten(0, 1), weight_vd, None
    assert isinstance(hidden_bsd, DTensor) and weight_vd.placements == (Shard(0),), "whole rows of the vocabulary"
    mesh = weight_vd.device_mesh
    rows = -(-weight_vd.shape[0] // mesh.size())  # as torch cuts
    hidden = hidden_bsd.to_local(grad_placements=[Partial()])
    return hidden.flatten(0, 1), weight_vd.to_local(), Part(rows * mesh.get_local_rank(), rows, mesh.get_group())


def _fused_loss(model: nn.Module, samples: Tensor, plan: HeadPlan) -> Tensor:
    ids, segments = _parts(samples)
    context = context_of(model)
    targets_bs = context.cut(ids[:, 1:])
    if segments is None:
        share_bs = torch.full(targets_bs.shape, 1.0 / targets_bs.numel(), device=ids.device)
    else:
        counted_bs = _counted(segments)
        share_bs = context.cut(counted_bs / counted_bs.sum(dim=1, keepdim=True).clamp(min=1)) * (context.ranks / len(ids))

    def head(hidden_bsd: Tensor, weight_vd: Tensor) -> Tensor:
        hidden_nd, weight_vd, part = _own(hidden_bsd, weight_vd)
        return fused_loss(hidden_nd, weight_vd, targets_bs.flatten(), share_bs.flatten(), compiled=plan.compiled, part=part)

    loss: Tensor = model(ids[:, :-1], *_before(segments), head=head)
    return loss


def _fused_losses(model: nn.Module, samples: Tensor) -> Tensor:
    ids, segments = _parts(samples)
    context = context_of(model)
    targets_bs = context.cut(ids[:, 1:])

    def head(hidden_bsd: Tensor, weight_vd: Tensor) -> Tensor:
        hidden_nd, weight_vd, part = _own(hidden_bsd, weight_vd)
        return token_losses(hidden_nd, weight_vd, targets_bs.flatten(), part=part).view(targets_bs.shape)

    losses_bs: Tensor = model(ids[:, :-1], *_before(segments), head=head)
    if segments is None:
        return losses_bs.mean(dim=1)
    counted_bs = _counted(segments)
    return losses_bs.where(context.cut(counted_bs), 0.0).sum(dim=1) * context.ranks / counted_bs.sum(dim=1).clamp(min=1)


def _parts(samples: Tensor) -> tuple[Tensor, Tensor | None]:
    """Ids, and segments where documents are told apart."""
    return (samples[:, 0], samples[:, 1]) if samples.dim() == 3 else (samples, None)


def _before(segments: Tensor | None) -> tuple[Tensor, ...]:
    """A model's further argument."""
    return () if segments is None else (segments[:, :-1],)
