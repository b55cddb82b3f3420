"""In which passes of a pipeline tokens travel."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch import Tensor

from phalanx.fabric.pipeline.actions import Action
from phalanx.job.models.moe import exchange
from phalanx.job.models.moe.exchange import all_to_all
from phalanx.job.train.pipeline.pipeline import Pipeline
from phalanx.job.train.pipeline.timed import Recorder


class _Noting(Recorder):
    now: Action

    @contextmanager
    def during(self, action: Action) -> Iterator[None]:
        self.now = action
        yield


def sends_of(passes: Pipeline, microbatches: Tensor, group: dist.ProcessGroup) -> list[Action]:
    """The pass in which this rank made each exchange of rows of a step, in their order. group: of the pipeline. A collective."""
    recorder, found = _Noting(microbatches.device, group, lambda: 0.0), list[Action]()

    def noted(*given: Any) -> Tensor:
        found.append(recorder.now)
        return all_to_all(*given)

    with patch.object(exchange, "all_to_all", noted):
        passes.gradients(microbatches, recorder)
    return found
