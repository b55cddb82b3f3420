"""The held-out loss, always on the same samples."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from phalanx.job.train.batches import HeldOut
from phalanx.job.train.loss import token_loss


@torch.no_grad()
def held_out_loss(model: nn.Module, fetch: HeldOut, num_batches: int) -> float:
    """Mean over the samples of batches [0, num_batches), each of which counts the same. A collective of all ranks."""
    model.eval()
    sums = torch.stack([_sum(model, *part) for index in range(num_batches) for part in fetch(index)]).sum(dim=0)
    model.train()
    dist.all_reduce(sums)
    return float(sums[0].item()) / float(sums[1].item())


def _sum(model: nn.Module, samples: Tensor, counted: int) -> Tensor:
    """Sum of the samples' losses, and their number. One run of the model, even when none of them counts."""
    loss = token_loss(model, samples).to(torch.float64)
    number = torch.tensor(float(counted), dtype=torch.float64, device=loss.device)
    return torch.stack((loss * number, number))
