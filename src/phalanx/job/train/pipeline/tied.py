"""A model whose output is its embedding, over a pipeline: the last stage multiplies by a copy of it.

The weight is the first stage's: that is clipped, updated and saved, and its moments are the only ones. Before the stages run the
copy becomes equal to it bit by bit, and after a step the copy's gradient is added to the weight's. Both are cut alike by all axes,
so each rank of the last stage has the same piece as one of the first.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from phalanx.fabric.pipeline.layout import PipelineLayout
from phalanx.job.checkpoint.local import local_of
from phalanx.job.train.pipeline.stage import Stage


class TiedOutput:
    """Of one rank, which may have both stages, or neither. stages: this rank's, by number. group: of the pipeline."""

    def __init__(self, layout: PipelineLayout, stages: Mapping[int, Stage], group: dist.ProcessGroup) -> None:
        self._first, self._last = stages.get(0), stages.get(layout.num_stages - 1)
        self._of_first, self._of_last = layout.rank_of(0), layout.rank_of(layout.num_stages - 1)
        self._group = group

    @torch.no_grad()
    def refresh(self) -> None:
        """The copy becomes the weight. A collective of the ranks of both stages, when nothing of them is gathered."""
        weight, copy = self._weight(), self._copy()
        if _is_frozen(weight) or _is_frozen(copy):
            return  # who made them gave both the same values
        self._moved(None if weight is None else local_of(weight), None if copy is None else local_of(copy))

    @torch.no_grad()
    def add_gradients(self) -> None:
        """The copy's to the weight's, which are there. A collective as `refresh`."""
        weight, copy = self._weight(), self._copy()
        if _is_frozen(weight) or _is_frozen(copy):
            return
        own = None if weight is None or weight.grad is None else local_of(weight.grad)
        its = None if copy is None or copy.grad is None else local_of(copy.grad)
        came = None if own is None else torch.empty_like(own)
        self._moved(its, came, back=True)
        if own is not None and came is not None:
            own.add_(came)
        if copy is not None:
            copy.grad = None

    def _weight(self) -> nn.Parameter | None:
        return None if self._first is None else self._first.embedding.weight  # type: ignore[return-value]

    def _copy(self) -> nn.Parameter | None:
        return None if self._last is None else self._last.output.weight  # type: ignore[return-value]

    def _moved(self, source: Tensor | None, to: Tensor | None, back: bool = False) -> None:
        """From the ranks of the first stage to those of the last one, or back. source, to: where this rank has them."""
        if source is not None and to is not None:
            to.copy_(source)
        elif source is not None and source.numel():
            dist.send(source.contiguous(), group=self._group, group_dst=self._of_first if back else self._of_last)
        elif to is not None and to.numel():
            came = torch.empty_like(to, memory_format=torch.contiguous_format)
            dist.recv(came, group=self._group, group_src=self._of_last if back else self._of_first)
            to.copy_(came)


def _is_frozen(weight: nn.Parameter | None) -> bool:
    return weight is not None and not weight.requires_grad
