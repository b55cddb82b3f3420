"""Tokens in the order of the experts that compute them, and back.

Each way is the other's gradient, and both only read at an index: what a token gets is added up in one order, however tokens fall.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Order(NamedTuple):
    """Of n = t x k rows, a token's k one after the other. by_expert: int64 (n), the rows sorted by expert, those of one expert in
    their order. place: int64 (n), where each row is then. count_e: int64, rows of each expert."""

    by_expert: Tensor
    place: Tensor
    count_e: Tensor


@torch.no_grad()
def ordered(expert_n: Tensor, experts: int) -> Order:
    sorted_n, by_expert = expert_n.sort(stable=True)
    places = torch.arange(len(expert_n), device=expert_n.device)
    place = torch.empty_like(by_expert).scatter_(0, by_expert, places)
    end_e = torch.searchsorted(sorted_n, torch.arange(experts, device=expert_n.device), right=True)
    return Order(by_expert, place, torch.diff(end_e, prepend=end_e.new_zeros(1)))


def to_experts(x_td: Tensor, order: Order, per_token: int) -> Tensor:
    """Each token k times, by expert: (n, d)."""
    rows: Tensor = _ToExperts.apply(x_td, order.by_expert, order.place, per_token)  # type: ignore[no-untyped-call]
    return rows


def to_tokens(y_nd: Tensor, order: Order, per_token: int) -> Tensor:
    """What each token's experts say, (t, k, d)."""
    back: Tensor = _ToTokens.apply(y_nd, order.by_expert, order.place, per_token)  # type: ignore[no-untyped-call]
    return back


class _ToExperts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_td: Tensor, by_expert: Tensor, place: Tensor, per_token: int) -> Tensor:
        ctx.save_for_backward(place)
        ctx.per_token = per_token
        return x_td[by_expert // per_token]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None]:
        (place,) = ctx.saved_tensors
        (gradient_nd,) = gradients
        return gradient_nd[place].view(-1, ctx.per_token, gradient_nd.shape[-1]).sum(dim=1), None, None, None


class _ToTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y_nd: Tensor, by_expert: Tensor, place: Tensor, per_token: int) -> Tensor:
        ctx.save_for_backward(by_expert)
        return y_nd[place].view(-1, per_token, y_nd.shape[-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None]:
        (by_expert,) = ctx.saved_tensors
        (gradient_tkd,) = gradients
        return gradient_tkd.flatten(0, 1)[by_expert], None, None, None
