"""Next-token cross-entropy, and its mean over all ranks.

Samples are (b, s + 1) token ids, or (b, 2, s + 1) where documents are told apart: ids, and the number of each one's document in the
row, -1 for padding. Each id but the last predicts the one after it, where that is of the same document.
"""

from typing import Final

import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_UNCOUNTED: Final = -100
"""What torch leaves out of a cross-entropy."""


def token_loss(model: nn.Module, samples: Tensor) -> Tensor:
    """Mean over the tokens of the samples; of packed ones the mean over rows of each one's mean, so that it does not depend on
    which rows are computed together. Float32."""
    if samples.dim() == 3:
        return sample_losses(model, samples).mean()
    logits_bsv = model(samples[:, :-1])
    return _cross_entropy(logits_bsv, samples[:, 1:], "mean")


def sample_losses(model: nn.Module, samples: Tensor) -> Tensor:
    """As `token_loss`, of each sample alone: float32 (b,)."""
    if samples.dim() == 3:
        return _packed_losses(model, samples[:, 0], samples[:, 1])
    logits_bsv = model(samples[:, :-1])
    return _losses(logits_bsv, samples[:, 1:]).mean(dim=1)


def mean_over_ranks(total: Tensor, count: int) -> float:
    """Of `count` numbers a rank, whose sum is `total` in float64, each counting the same. Of float32 numbers it is the same,
    whatever rank has which: float64 holds their sum exactly, or nearly so."""
    total = total.detach().clone()
    dist.all_reduce(total)
    return float(total.item()) / (count * dist.get_world_size())


def _packed_losses(model: nn.Module, ids: Tensor, segments: Tensor) -> Tensor:
    """0 for a row none of whose targets counts."""
    logits_bsv = model(ids[:, :-1], segments[:, :-1])
    counted_bs = (segments[:, :-1] == segments[:, 1:]) & (segments[:, 1:] >= 0)
    losses_bs = _losses(logits_bsv, ids[:, 1:].masked_fill(~counted_bs, _UNCOUNTED))
    return losses_bs.sum(dim=1) / counted_bs.sum(dim=1).clamp(min=1)


def _losses(logits_bsv: Tensor, targets_bs: Tensor) -> Tensor:
    """Of each token: (b, s). Flat, since the 2-d form is refused on CUDA where arithmetic has to be deterministic."""
    return _cross_entropy(logits_bsv, targets_bs, "none").view(targets_bs.shape)


def _cross_entropy(logits_bsv: Tensor, targets_bs: Tensor, reduction: str) -> Tensor:
    """Logits may be cut along the vocabulary: losses are not."""
    logits = logits_bsv.float().flatten(0, 1)
    found = F.cross_entropy(logits, targets_bs.flatten(), reduction=reduction, ignore_index=_UNCOUNTED)
    return found.to_local() if isinstance(found, DTensor) else found
