"""Which experts compute a token, and with which weights: the k best scores.

So that experts get equal work a bias is added to the scores, for the choice alone, and follows the measured loads
(arXiv:2408.15664). A small loss over each sequence may be added to it (arXiv:2412.19437, section 2.1.2); of a sequence that lies
over several ranks too, each of which routes its own tokens.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from phalanx.core.moe import MoeShape
from phalanx.job.models.context import WHOLE, Context, mean_over
from phalanx.job.models.parts import wide_part_of


class Router(nn.Module):
    """bias: float32 (e), a part of a model's state. load: int64 (e), tokens that were sent to each expert in passes that train,
    since it was last set to 0. loss_weight: factor on the loss over each sequence, 0 for none. context: of ranks that share a
    sequence and whose gradients' mean counts. adding: ranks that share one and whose gradients are added up (tensor parallel)."""

    bias: Tensor
    load: Tensor

    def __init__(self, dim: int, shape: MoeShape) -> None:
        super().__init__()
        self.shape = shape
        self.loss_weight = 0.0
        self.context: Context = WHOLE
        self.adding: dist.ProcessGroup | None = None
        self.weight = nn.Parameter(torch.empty(shape.experts, dim))
        self.register_buffer("bias", torch.empty(shape.experts, dtype=torch.float32))
        self.register_buffer("load", torch.empty(shape.experts, dtype=torch.int64), persistent=False)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        """As of a router that has sent nothing."""
        self.bias.zero_()
        self.load.zero_()

    def forward(self, x_bsd: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each token, int64 (t, k), and their weights (t, k), float32 at least."""
        scores_bse = self.scores(x_bsd)
        index_bsk = (scores_bse.detach() + self.bias).topk(self.shape.per_token, dim=-1).indices
        weight_bsk = scores_bse.gather(-1, index_bsk)
        if self.shape.normalise:
            weight_bsk = weight_bsk / (weight_bsk.sum(dim=-1, keepdim=True) + torch.finfo(weight_bsk.dtype).tiny)
        if self.loss_weight and self.training and torch.is_grad_enabled():
            sharing = [group for group in (self.context.group, self.adding) if group is not None]
            adding = self.adding.size() if self.adding is not None else 1
            weight_bsk = _with_loss(weight_bsk, self.loss_weight / adding * sequence_loss(scores_bse, index_bsk, sharing))
        return index_bsk.flatten(0, 1), self.shape.scale * weight_bsk.flatten(0, 1)

    def scores(self, x_bsd: Tensor) -> Tensor:
        """Of every expert, without the bias."""
        wide = torch.promote_types(x_bsd.dtype, torch.float32)
        answers_bse = F.linear(x_bsd.to(wide), wide_part_of(self.weight).to(wide))
        return answers_bse.softmax(dim=-1) if self.shape.score == "softmax" else answers_bse.sigmoid()

    @torch.no_grad()
    def count(self, load_e: Tensor) -> None:
        """Notes what was sent where. What is computed again in a backward pass was noted before; compiled code cannot tell: there
        all experts of the layer count twice."""
        if self.training and (torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1):
            self.load += load_e


def sequence_loss(scores_bse: Tensor, index_bsk: Tensor, sharing: Sequence[dist.ProcessGroup] = ()) -> Tensor:
    """1 where in each sequence every expert has an equal part of the choices and of the scores, more where those that are chosen
    often score high: the mean over sequences of sum_e f_e p_e, where f is an expert's part of the choices times the number of
    experts, and p its mean part of the scores.

    sharing: groups of ranks that have each as many tokens of the sequences; the mean of their losses is then that of whole ones,
    and so are gradients, since f has none. A collective of these."""
    experts = scores_bse.shape[-1]
    chosen_bse = (index_bsk.unsqueeze(-1) == torch.arange(experts, device=index_bsk.device)).sum(dim=2)
    f_be = chosen_bse.to(scores_bse.dtype).mean(dim=1) * (experts / index_bsk.shape[-1])
    for group in sharing:
        f_be = mean_over(f_be, group)
    p_be = (scores_bse / scores_bse.sum(dim=-1, keepdim=True)).mean(dim=1)
    return (f_be * p_be).sum(dim=-1).mean()


class _WithLoss(torch.autograd.Function):
    """A loss takes part in the backward pass of a tensor that it does not change, so that whoever has a part of a model alone, as
    a stage of a pipeline, need not hand it on."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, loss: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor]:
        return gradients[0], gradients[0].new_ones(())


def _with_loss(tensor: Tensor, loss: Tensor) -> Tensor:
    found: Tensor = _WithLoss.apply(tensor, loss)  # type: ignore[no-untyped-call]
    return found
