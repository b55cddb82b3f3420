"""Losses of held-out samples through a pipeline: forwards alone, one batch after another."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.fabric.pipeline.layout import PipelineLayout
from phalanx.job.train.loss import sample_losses
from phalanx.job.train.parallel import let_go
from phalanx.job.train.pipeline.stage import Stage


def relayed(
    layout: PipelineLayout, stages: Mapping[int, Stage], samples: Tensor, hidden: Tensor, group: dist.ProcessGroup
) -> Tensor | None:
    """The loss of each sample, where the last stage is. hidden: like what goes between stages.

    A rank goes through its own stages in their order, in which the samples also come by, so that nobody waits in vain.
    """
    given: Tensor = samples
    for number, stage in sorted(stages.items()):
        before, after = number - 1, number + 1
        if number > 0 and before not in stages:
            given = torch.empty_like(hidden, device=samples.device)
            dist.recv(given, group=group, group_src=layout.rank_of(before))
        given = stage(given, samples, sample_losses)
        let_go(stage)  # they would stay gathered for a backward pass
        if after < layout.num_stages and after not in stages:
            dist.send(given.contiguous(), group=group, group_dst=layout.rank_of(after))
    return given if layout.num_stages - 1 in stages else None
