"""Rows to the ranks that have their experts, and the answers back (expert parallel): uneven all-to-alls, both ways differentiable.

Each rank has as many experts as the others, in the order of slots, and with replicas as many further places beside them. A rank may
get no row at all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.job.models.moe.rows import ordered

if TYPE_CHECKING:
    from phalanx.job.models.moe.replicas import Replicas

Feed = Callable[[Tensor, Tensor, bool], Tensor]
"""From rows in the order of experts, the count of each expert's, and whether each is known to have some, to their answers."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Over the ranks of one group. replicas: None where each expert is computed by its owner alone."""

    group: dist.ProcessGroup
    replicas: "Replicas | None" = None

    def __call__(self, x_nd: Tensor, count_e: Tensor, feed: Feed, feed_copies: Feed | None = None) -> Tensor:
        """The answers to this rank's rows, in their order. count_e: of all experts, or with replicas of all places. feed: of this
        rank's. feed_copies: of replicas that it has. A collective."""
        ranks = self.group.size()
        sent_re = count_e.view(ranks, -1)
        got_re = torch.empty_like(sent_re)
        dist.all_to_all_single(got_re, sent_re, group=self.group)
        own = self.replicas.own if self.replicas is not None else got_re.shape[1]
        sent, got, owned, all_used = _known(sent_re, got_re, own)
        rows_md = exchanged(x_nd, sent, got, self.group)
        by_expert, place = _by_expert(got_re, len(rows_md))
        rows_md = _Permuted.apply(rows_md, by_expert, place)  # type: ignore[no-untyped-call]
        own_md, copies_md = torch.split(rows_md, [owned, len(rows_md) - owned]) if feed_copies is not None else (rows_md, rows_md)
        got_e = got_re.sum(dim=0)
        fed_md = feed(own_md, got_e[:own], all_used)
        if feed_copies is not None:
            fed_md = torch.cat((fed_md, feed_copies(copies_md, got_e[own:], False)))
        back: Tensor = _Permuted.apply(fed_md, place, by_expert)  # type: ignore[no-untyped-call]
        return exchanged(back, got, sent, self.group)


def _known(sent_re: Tensor, got_re: Tensor, own: int) -> tuple[list[int], list[int], int, bool]:
    """By one wait for the device: rows to each rank and from each; of those that came how many are for the first `own` experts, and
    whether each of these got some."""
    of_own_re = got_re[:, :own]
    every = torch.cat((sent_re.sum(dim=1), got_re.sum(dim=1), of_own_re.sum().view(1), of_own_re.sum(dim=0).min().view(1)))
    *rows, owned, fewest = every.tolist()
    ranks = len(sent_re)
    return rows[:ranks], rows[ranks:], owned, fewest > 0


def exchanged(x_nd: Tensor, sent: list[int], got: list[int], group: dist.ProcessGroup) -> Tensor:
    """Sends the first sent[0] rows to the group's rank 0, and so on; what came, rank 0's first. Its gradient is a collective
    too."""
    came: Tensor = _Exchanged.apply(x_nd, sent, got, group)  # type: ignore[no-untyped-call]
    return came


@torch.no_grad()
def _by_expert(got_re: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Rows come by rank, and of each rank by expert; their order by expert, and of each by rank, and where each is then."""
    ranks, experts = got_re.shape
    expert_m = torch.arange(experts, device=got_re.device).repeat(ranks).repeat_interleave(got_re.flatten(), output_size=rows)
    order = ordered(expert_m, experts)
    return order.by_expert, order.place


class _Permuted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_nd: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return x_nd[order]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return gradients[0][back], None, None


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_nd: Tensor, sent: list[int], got: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.sent, ctx.got, ctx.group = sent, got, group
        return all_to_all(x_nd, sent, got, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None]:
        return all_to_all(gradients[0], ctx.got, ctx.sent, ctx.group), None, None, None


def all_to_all(x_nd: Tensor, sent: list[int], got: list[int], group: dist.ProcessGroup) -> Tensor:
    """As `exchanged`, without a gradient."""
    came = x_nd.new_empty(sum(got), *x_nd.shape[1:])
    dist.all_to_all_single(came, x_nd.contiguous(), got, sent, group=group)
    return came
