"""Ring attention (arXiv:2310.01889): queries stay, keys and values go round the ranks while each computes with those that it has.

What a query gets from the blocks it saw is merged by their logarithms of sums, so nothing of the size of queries x keys is ever
held. Backwards keys and values go round again, and with them their gradients, to which each rank adds its part. Sums over blocks
are float32, of float64 float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from phalanx.fabric.context import Block, Round
from phalanx.job.train.context.kernels import Gradients, Kept, Kernel, kernel_for, widened


def ring_attention(
    q_bhsk: Tensor, k_bgsk: Tensor, v_bgsk: Tensor, rounds: Sequence[Round], group: dist.ProcessGroup, kernel: Kernel | None = None
) -> Tensor:
    """(b, h, s, k): of this rank's queries with the keys and values of all ranks of the group, of which each gives as many.

    rounds: this rank's, as `fabric.context.rounds` gives them. kernel: the one for these tensors. A collective of the group, and
    so is its gradient.
    """
    attended = _Ring.apply(q_bhsk, k_bgsk, v_bgsk, tuple(rounds), group, kernel or kernel_for(q_bhsk))  # type: ignore[no-untyped-call]
    return cast(Tensor, attended)


@dataclass(frozen=True, slots=True)
class _Passing:
    """A tensor on its way to the next rank, and the one on its way here. Both are held until they have arrived."""

    mine: Tensor
    theirs: Tensor
    works: tuple[dist.Work, ...]

    def wait(self) -> Tensor:
        for work in self.works:
            work.wait()
        return self.theirs


def _pass_on(mine: Tensor, group: dist.ProcessGroup) -> _Passing:
    """Begins to send a contiguous tensor to the next rank, and to receive the one before's."""
    size, rank = group.size(), group.rank()
    if size == 1:
        return _Passing(mine, mine, ())
    theirs = torch.empty_like(mine)
    works = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, mine, group=group, group_peer=(rank + 1) % size),
        dist.P2POp(dist.irecv, theirs, group=group, group_peer=(rank - 1) % size),
    ])  # fmt: skip
    return _Passing(mine, theirs, tuple(works))


class _Merged:
    """What queries got from the blocks so far. The memory is in the order (b, s, h, k), in which the next layer reads it."""

    def __init__(self, q_bhsk: Tensor) -> None:
        batch, heads, queries, width = q_bhsk.shape
        wide = widened(q_bhsk.dtype)
        self.out_bhsk = q_bhsk.new_zeros((batch, queries, heads, width), dtype=wide).transpose(1, 2)
        self.lse_bhs = q_bhsk.new_full((batch, heads, queries), -torch.inf, dtype=wide)

    def add(self, block: Block, out_bhsk: Tensor, lse_bhs: Tensor) -> None:
        merged, total = _part(self.out_bhsk, block.row, block.queries), _part(self.lse_bhs, block.row, block.queries)
        merged.lerp_(out_bhsk.to(merged.dtype), torch.sigmoid(lse_bhs - total).unsqueeze(-1))
        total.copy_(torch.logaddexp(total, lse_bhs))


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, rounds: tuple[Round, ...], group: dist.ProcessGroup, kernel: Kernel
    ) -> Tensor:
        q, merged, kept = _dense(q), _Merged(q), ()
        kv = torch.stack((k, v))
        for number, this in enumerate(rounds, start=1):
            passing = _pass_on(kv, group) if number < len(rounds) else None
            for block in this.blocks:
                out, lse, kept = kernel.forward(*_inputs(block, q, kv), block.causal)
                merged.add(block, out, lse)
            kv = passing.wait() if passing else kv
        attended = merged.out_bhsk.to(q.dtype)
        ctx.save_for_backward(q, k, v, attended, merged.lse_bhs)
        ctx.rest = (rounds, group, kernel, kept)
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        rounds, group, kernel, kept = ctx.rest
        whole = _Whole(q=q, out=out, lse=lse, grad=_dense(grad))
        grad_q = torch.zeros_like(q, dtype=widened(q.dtype))
        kv, coming = torch.stack((k, v)), None
        for number, this in enumerate(rounds, start=1):
            passing = _pass_on(kv, group) if number < len(rounds) else None
            grad_kv = torch.zeros_like(kv, dtype=grad_q.dtype)
            for block in this.blocks:
                _add(block, grad_q, grad_kv, whole.gradients(block, kv, kernel, kept))
            if coming is not None:
                grad_kv += coming.wait()
            coming = _pass_on(grad_kv, group)
            kv = passing.wait() if passing else kv
        grad_k, grad_v = coming.wait().to(k.dtype) if coming else (None, None)
        return grad_q.to(q.dtype), grad_k, grad_v, None, None, None


@dataclass(frozen=True, slots=True)
class _Whole:
    """Of all queries of a rank, after all rounds."""

    q: Tensor
    out: Tensor
    lse: Tensor
    grad: Tensor

    def gradients(self, block: Block, kv: Tensor, kernel: Kernel, kept: Kept) -> Gradients:
        grad, out, lse = (_part(x, block.row, block.queries) for x in (self.grad, self.out, self.lse))
        return kernel.backward(grad, *_inputs(block, self.q, kv), out, lse.contiguous(), block.causal, kept)


def _inputs(block: Block, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _part(q, block.row, block.queries), _part(kv[0], block.row, block.keys), _part(kv[1], block.row, block.keys)


def _add(block: Block, grad_q: Tensor, grad_kv: Tensor, found: Gradients) -> None:
    _part(grad_q, block.row, block.queries).add_(found[0])
    _part(grad_kv[0], block.row, block.keys).add_(found[1])
    _part(grad_kv[1], block.row, block.keys).add_(found[2])


def _part(x: Tensor, row: int | None, run: tuple[int, int]) -> Tensor:
    """A view of the tokens of a block, where dimension 0 is rows and 2 tokens."""
    rows = x if row is None else x.narrow(0, row, 1)
    return rows.narrow(2, run[0], run[1] - run[0])


def _dense(x: Tensor) -> Tensor:
    """Fused operators want the numbers of a head side by side; a gradient may be one number, repeated."""
    return x if x.stride(-1) == 1 and 0 not in x.stride() else x.contiguous()
