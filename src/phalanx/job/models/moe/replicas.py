"""Replicas of experts whose ranks have too much to do: another rank computes a part of their tokens, with a copy of their weights
that is made in each pass and is gone after it. An expert's weights, moments and gradient stay its owner's alone.

A rank computes its own experts in its first places and copies in those after them. Every rank has as many places.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.fabric.experts import Replica
from phalanx.fabric.experts.replicas import PARTS
from phalanx.job.models.moe.exchange import all_to_all
from phalanx.job.models.moe.rows import Order, ordered


@dataclass(frozen=True, slots=True)
class Replicas:
    """Of one mixture, as one rank has them. found: all, by slots. own: experts of which a rank is the owner. spare: its further
    places.

    place_f, upto_em: the places of each slot's tokens one after the other, (e x m), and up to which of PARTS of them each takes.
    sends, gets: copies to and from each rank. lent, lent_n: which of this rank's own, in the order in which they are sent.
    """

    found: tuple[Replica, ...]
    own: int
    spare: int
    ranks: int
    place_f: Tensor
    upto_em: Tensor
    sends: list[int]
    gets: list[int]
    lent: list[int]
    lent_n: Tensor

    def parted(self, order: Order) -> Order:
        """From the order of slots to that of places: the first rows of an expert are its owner's, the next the first replica's, so
        that who computes a row depends on nothing but the rows of this rank."""
        begin_e = order.count_e.cumsum(0) - order.count_e
        end_f = (begin_e[:, None] + order.count_e[:, None] * self.upto_em // PARTS).flatten()
        row_n = torch.arange(len(order.by_expert), device=end_f.device)
        place_n = self.place_f[torch.searchsorted(end_f, row_n, right=True)]
        again = ordered(place_n, self.ranks * (self.own + self.spare))
        return Order(order.by_expert[again.by_expert], again.place[order.place], again.count_e)

    def copied(self, weight_edf: Tensor, group: dist.ProcessGroup, dtype: torch.dtype, mean_over: int) -> tuple[Tensor, Tensor]:
        """A rank's own weights as they are, and in `dtype` the copies that it computes with. Their gradients become the owner's,
        divided by `mean_over` and added to its own, which is divided where it is made, in the order of ranks. Both ways are
        collectives."""
        own, copies = _Copied.apply(weight_edf, self, group, dtype, mean_over)  # type: ignore[no-untyped-call]
        return own, copies


def replicas_of(found: Sequence[Replica], experts: int, ranks: int, me: int, spare: int, device: torch.device) -> Replicas:
    """found: of slots, the same on every rank. ranks, me: of the group that shares the experts."""
    own = experts // ranks
    there = [sorted((one for one in found if one.gpu == rank), key=lambda one: one.expert) for rank in range(ranks)]  # by owner
    takes: list[list[tuple[int, int]]] = [[] for _ in range(experts)]
    for rank, ones in enumerate(there):
        for at, one in enumerate(ones):
            takes[one.expert].append((rank * (own + spare) + own + at, one.parts))
    most = 1 + max(map(len, takes))
    place_f, upto_em = list[int](), list[list[int]]()
    for slot, replicas in enumerate(takes):
        home = slot // own * (own + spare) + slot % own
        all_of = [(home, PARTS - sum(parts for _, parts in replicas)), *replicas]
        all_of += [(home, 0)] * (most - len(all_of))
        place_f += [place for place, _ in all_of]
        upto_em.append([sum(parts for _, parts in all_of[: last + 1]) for last in range(most)])
    lent_r = [[one.expert % own for one in ones if one.expert // own == me] for ones in there]
    lent = [slot for slots in lent_r for slot in slots]
    return Replicas(
        found=tuple(found), own=own, spare=spare, ranks=ranks,
        place_f=torch.tensor(place_f, device=device), upto_em=torch.tensor(upto_em, device=device),
        sends=[len(slots) for slots in lent_r], lent=lent, lent_n=torch.tensor(lent, dtype=torch.int64, device=device),
        gets=[sum(one.expert // own == rank for one in there[me]) for rank in range(ranks)],
    )  # fmt: skip


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight_edf: Tensor, replicas: Replicas, group: dist.ProcessGroup, dtype: torch.dtype, mean_over: int
    ) -> tuple[Tensor, Tensor]:
        ctx.replicas, ctx.group, ctx.mean_over = replicas, group, mean_over
        lent = weight_edf[replicas.lent_n].to(dtype)  # these alone: a cast of all would be kept until the backward pass
        return weight_edf.view_as(weight_edf), all_to_all(lent, replicas.sends, replicas.gets, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None, None]:
        own, copies = gradients
        replicas = ctx.replicas
        came = all_to_all(copies, replicas.gets, replicas.sends, ctx.group)
        own = own.clone() if replicas.lent else own
        for slot in sorted(set(replicas.lent)):
            total = own[slot].to(torch.promote_types(own.dtype, torch.float32))  # rounded once
            for row in (row for row, of in enumerate(replicas.lent) if of == slot):
                total = total + came[row].to(total.dtype) / ctx.mean_over
            own[slot] = total
        return own, None, None, None, None
