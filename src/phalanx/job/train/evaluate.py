"""The held-out loss, always on the same samples."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from phalanx.job.train.loss import mean_over_ranks, token_loss


@torch.no_grad()
def held_out_loss(model: nn.Module, fetch: Callable[[int], Tensor], num_batches: int) -> float:
    """Mean over batches [0, num_batches), each of which `fetch` gives as this rank's (b, s + 1). A collective of all ranks."""
    model.eval()
    losses = [token_loss(model, fetch(index)) for index in range(num_batches)]
    model.train()
    return mean_over_ranks(torch.stack(losses).to(torch.float64).mean())
