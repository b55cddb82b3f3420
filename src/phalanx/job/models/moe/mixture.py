"""The mixture itself: route, compute, add up."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from phalanx.core.moe import MoeShape
from phalanx.job.models.moe.exchange import Exchange
from phalanx.job.models.moe.grouped import grouped
from phalanx.job.models.moe.parted import grouped_in_parts
from phalanx.job.models.moe.router import Router
from phalanx.job.models.moe.rows import ordered, to_experts, to_tokens
from phalanx.job.models.parts import part_of

Gated = Callable[[Tensor], Tensor]


def gated(gate_up_nf: Tensor) -> Tensor:
    """Of both products, the gate's first: (n, 2f) to (n, f)."""
    gate_nf, up_nf = gate_up_nf.chunk(2, dim=-1)
    return F.silu(gate_nf) * up_nf


Summed = Callable[[Tensor, Tensor], Tensor]


def summed(y_tkd: Tensor, weight_tk: Tensor) -> Tensor:
    """What the experts of each token say, by their weights: (t, d) in y's dtype, added up in that of the weights."""
    return (y_tkd * weight_tk.unsqueeze(-1)).sum(dim=1).to(y_tkd.dtype)


class Experts(nn.Module):
    """SwiGLU of each expert, weights stacked: gate_up (e, d, 2f), the gate's first, and down (e, f, d). exchange: where the experts
    lie on several ranks, how rows get to theirs; None where all lie here. gated: `gated`, or the same made faster.

    mean_over: by what their gradients are divided here; 1 where whoever reduces these over ranks does it. parted: whether those of
    weights are wanted by themselves, after those of rows."""

    def __init__(self, dim: int, shape: MoeShape) -> None:
        super().__init__()
        self.exchange: Exchange | None = None
        self.mean_over = 1
        self.parted = False
        self.gated: Gated = gated
        self.gate_up = nn.Parameter(torch.empty(shape.experts, dim, 2 * shape.ffn_dim))
        self.down = nn.Parameter(torch.empty(shape.experts, shape.ffn_dim, dim))

    def forward(self, x_nd: Tensor, count_e: Tensor) -> Tensor:
        """Rows in the order of their experts, count_e of each; the answers in the same order."""
        gate_up, down = part_of(self.gate_up), part_of(self.down)
        if self.exchange is None:
            return self._fed(gate_up, down, self.mean_over, x_nd, count_e)
        if (replicas := self.exchange.replicas) is None:
            return self.exchange(x_nd, count_e, partial(self._fed, gate_up, down, self.mean_over))
        how = self.exchange.group, x_nd.dtype, self.mean_over
        (gate_up, gate_up_copies), (down, down_copies) = (replicas.copied(one, *how) for one in (gate_up, down))
        feed_copies = partial(self._fed, gate_up_copies, down_copies, 1) if len(down_copies) else None
        return self.exchange(x_nd, count_e, partial(self._fed, gate_up, down, self.mean_over), feed_copies)

    def _fed(self, gate_up: Tensor, down: Tensor, mean_over: int, x_nd: Tensor, count_e: Tensor, all_used: bool = False) -> Tensor:
        count_e = count_e[: len(down)]  # further places may be empty
        product = grouped_in_parts if self.parted else grouped
        return product(self.gated(product(x_nd, gate_up, count_e, all_used, mean_over)), down, count_e, all_used, mean_over)


class Mixture(nn.Module):
    """slots: int64 (e), the place of each expert among the stacked weights: they lie in their order until they are placed by their
    loads. A part of the model's state, as the weights are. summed: `summed`, or the same made faster."""

    slots: Tensor

    def __init__(self, dim: int, shape: MoeShape, feed: Callable[[int], nn.Module]) -> None:
        """feed: makes a plain feed-forward of that inner width."""
        super().__init__()
        self.shape = shape
        self.summed: Summed = summed
        self.router = Router(dim, shape)
        self.experts = Experts(dim, shape)
        self.shared = feed(shape.shared * shape.ffn_dim) if shape.shared else None
        self.register_buffer("slots", torch.empty(shape.experts, dtype=torch.int64))
        self.reset_buffers()

    def reset_buffers(self) -> None:
        self.slots.copy_(torch.arange(self.shape.experts))

    def forward(self, x_bsd: Tensor) -> Tensor:
        x_td = x_bsd.flatten(0, 1)
        index_tk, weight_tk = self.router(x_bsd)
        order = ordered(self.slots[index_tk].flatten(), self.shape.experts)
        self.router.count(order.count_e[self.slots])
        if self.experts.exchange is not None and self.experts.exchange.replicas is not None:
            order = self.experts.exchange.replicas.parted(order)
        y_nd = self.experts(to_experts(x_td, order, self.shape.per_token), order.count_e)
        y_bsd = self.summed(to_tokens(y_nd, order, self.shape.per_token), weight_tk).to(x_bsd.dtype).view_as(x_bsd)
        if self.shared is not None:
            y_bsd = y_bsd + self.shared(x_bsd)
        return y_bsd


def mixtures(model: nn.Module) -> Iterator[Mixture]:
    """In the order of layers."""
    return (part for part in model.modules() if isinstance(part, Mixture))


def are_places(slots: Tensor) -> bool:
    """Whether these are `Mixture.slots`: each place once. Others would be read outside of the weights, or from another expert."""
    return slots.dtype == torch.int64 and torch.equal(slots.sort().values, torch.arange(len(slots), device=slots.device))


def reset_buffers(model: nn.Module) -> None:
    """Fills what is no parameter, in a model whose memory was just taken."""
    for part in model.modules():
        if isinstance(part, Mixture | Router):
            part.reset_buffers()
