"""Next-token cross-entropy, and its mean over all ranks."""

import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn


def token_loss(model: nn.Module, samples: Tensor) -> Tensor:
    """Mean over the tokens of `samples` (b, s + 1): each but the last predicts the one after it. Float32."""
    logits_bsv = model(samples[:, :-1])
    return F.cross_entropy(logits_bsv.float().flatten(0, 1), samples[:, 1:].flatten())


def sample_losses(model: nn.Module, samples: Tensor) -> Tensor:
    """As `token_loss`, of each sample of (b, s + 1) alone: float32 (b,)."""
    logits_bsv = model(samples[:, :-1])
    losses = F.cross_entropy(
        logits_bsv.float().flatten(0, 1), samples[:, 1:].flatten(), reduction="none"
    )  # the 2-d form is refused
    return losses.view(len(samples), -1).mean(dim=1)  # on CUDA where arithmetic has to be deterministic


def mean_over_ranks(total: Tensor, count: int) -> float:
    """Of `count` numbers a rank, whose sum is `total` in float64, each counting the same. Of float32 numbers it is the same,
    whatever rank has which: float64 holds their sum exactly, or nearly so."""
    total = total.detach().clone()
    dist.all_reduce(total)
    return float(total.item()) / (count * dist.get_world_size())
