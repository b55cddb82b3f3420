"""The held-out loss, always on the same samples."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from phalanx.job.train.batches import HeldOut
from phalanx.job.train.parallel import let_go
from phalanx.job.train.passes import mean_loss


@torch.no_grad()
def held_out_loss(model: nn.Module, held_out: HeldOut, moved: Callable[[int], None] = lambda index: None) -> float:
    """Mean over the samples of all held-out batches, each of which counts the same. `moved` hears of each batch before it is read.
    A collective of all ranks."""
    model.eval()
    found = []
    with held_out.reading() as batches:
        for index in range(held_out.num_batches):
            moved(index)
            found += [_sum(model, *part) for part in next(batches)]
    model.train()
    let_go(model)
    sums = torch.stack(found).sum(dim=0)
    dist.all_reduce(sums)
    return float(sums[0].item()) / float(sums[1].item())


def _sum(model: nn.Module, samples: Tensor, counted: int) -> Tensor:
    """Sum of the samples' losses, and their number. One run of the model, even when none of them counts."""
    loss = mean_loss(model, samples).to(torch.float64)
    number = torch.tensor(float(counted), dtype=torch.float64, device=loss.device)
    return torch.stack((loss * number, number))
