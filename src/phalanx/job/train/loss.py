"""Next-token cross-entropy, and its mean over all ranks."""

import torch
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


def mean_over_ranks(value: Tensor) -> float:
    """Of one number a rank, each counting the same; summed in float64, so the same number on every rank."""
    total = value.detach().to(torch.float64)
    dist.all_reduce(total)
    return float(total.item()) / dist.get_world_size()
