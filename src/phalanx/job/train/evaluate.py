"""The held-out loss, and whatever else a model is scored by, always on the same samples."""

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from phalanx.job.train.batches import HeldOut
from phalanx.job.train.parallel import let_go
from phalanx.job.train.passes import mean_scores


@torch.no_grad()
def held_out_scores(model: nn.Module, held_out: HeldOut, moved: Callable[[int], None] = lambda index: None) -> Mapping[str, float]:
    """By name, the `loss` first; each is the mean over the samples of all held-out batches, of which each counts the same. `moved`
    hears of each batch before it is read. A collective of all ranks."""
    model.eval()
    names: tuple[str, ...] = ()
    found = []
    with held_out.reading() as batches:
        for index in range(held_out.num_batches):
            moved(index)
            for part in next(batches):
                names, sums = _sums(model, *part)
                found.append(sums)
    model.train()
    let_go(model)
    total = torch.stack(found).sum(dim=0)
    dist.all_reduce(total)
    *found_sums, number = total.tolist()
    return {name: one / number for name, one in zip(names, found_sums, strict=True)}


def held_out_loss(model: nn.Module, held_out: HeldOut, moved: Callable[[int], None] = lambda index: None) -> float:
    """See `held_out_scores`."""
    return held_out_scores(model, held_out, moved)["loss"]


def _sums(model: nn.Module, samples: Tensor, counted: int) -> tuple[tuple[str, ...], Tensor]:
    """Sums of the samples' scores, and their number. One run of the model, even when none of them counts."""
    scores = mean_scores(model, samples)
    means = [one.to(torch.float64) for one in scores.values()]
    number = torch.tensor(float(counted), dtype=torch.float64, device=samples.device)
    return tuple(scores), torch.stack([*(mean * number for mean in means), number])
