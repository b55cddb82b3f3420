"""Gradients and losses of samples, by a model that each rank runs whole, and by one whose layers lie on the ranks of a pipeline."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from phalanx.job.train.loss import of_whole_rows
from phalanx.job.train.objective import batch_loss, objective_of, sample_losses
from phalanx.job.train.parallel import sync_gradients
from phalanx.job.train.pipeline.stage import RankPart


def gradients(model: nn.Module, microbatches: Tensor) -> Tensor:
    """Accumulates the mean gradient over the microbatches (FSDP takes the mean over ranks); the sum of this rank's losses, which
    ranks of a pipeline share."""
    if isinstance(model, RankPart):
        return model.passes.gradients(microbatches)
    total = torch.zeros((), dtype=torch.float64, device=microbatches.device)
    for index, samples in enumerate(microbatches):
        sync_gradients(model, index == len(microbatches) - 1)
        loss = batch_loss(model, samples)
        (loss / len(microbatches)).backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    return total


@torch.no_grad()
def mean_scores(model: nn.Module, samples: Tensor) -> Mapping[str, Tensor]:
    """See `Objective.scores`. A pipeline has token losses alone."""
    if isinstance(model, RankPart):
        return {"loss": model.passes.sample_losses(samples).mean()}
    return objective_of(model).scores(model, samples)


@torch.no_grad()
def losses_of(model: nn.Module, samples: Tensor) -> Tensor:
    """Of each sample, of whole rows: float64 (b,). A collective of the ranks that get the same samples."""
    found = model.passes.sample_losses(samples) if isinstance(model, RankPart) else sample_losses(model, samples)
    return of_whole_rows(model, found.to(torch.float64))
