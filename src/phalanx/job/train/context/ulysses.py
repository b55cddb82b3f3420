"""Ulysses (arXiv:2309.14509): for the attention ranks exchange tokens for heads, so that each has all tokens of some heads.

One all-to-all there, with queries, keys and values in it, and one back; each is its own gradient. The attention between is torch's.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from phalanx.fabric.context import Block
from phalanx.job.models.context import attention


def ulysses_attention(q_bhsk: Tensor, k_bgsk: Tensor, v_bgsk: Tensor, blocks: Sequence[Block], group: dist.ProcessGroup) -> Tensor:
    """(b, h, s, k): of this rank's tokens with those of all ranks of the group, each of which has the next s tokens of a row.

    blocks: of whole rows, as `fabric.context.whole_rows` gives them. The heads are as `check_heads` wants them. A collective of the
    group, and so is its gradient.
    """
    ranks = group.size()
    shared = max(1, ranks // k_bgsk.shape[1])  # ranks that need the same head of keys
    k_bgsk, v_bgsk = (x.repeat_interleave(shared, dim=1) if shared > 1 else x for x in (k_bgsk, v_bgsk))
    q, k, v = _heads_for_tokens((q_bhsk, k_bgsk, v_bgsk), ranks, group)
    return _tokens_for_heads(attend(q, k, v, blocks), ranks, group)


def attend(q_bhsk: Tensor, k_bgsk: Tensor, v_bgsk: Tensor, blocks: Sequence[Block]) -> Tensor:
    """Of whole rows, block after block: documents cost what they would alone, and no mask of s x s is made."""
    rows = [[stop - start for start, stop in (block.queries for block in of_row)] for _, of_row in groupby(blocks, _row)]
    if len(rows) == 1:
        return _attend_row(q_bhsk, k_bgsk, v_bgsk, rows[0])
    parts = zip(*(x.split_with_sizes([1] * len(rows)) for x in (q_bhsk, k_bgsk, v_bgsk)), rows, strict=True)
    return torch.cat([_attend_row(*part) for part in parts])


def _row(block: Block) -> int | None:
    return block.row


def _attend_row(q: Tensor, k: Tensor, v: Tensor, lengths: list[int]) -> Tensor:
    """Documents of these lengths fill the row. Split and joined once: slices would each have a gradient of the whole row's size."""
    if len(lengths) == 1:
        return attention(q, k, v)
    documents = zip(*(x.split_with_sizes(lengths, dim=2) for x in (q, k, v)), strict=True)
    return torch.cat([attention(*document) for document in documents], dim=2)


def _heads_for_tokens(parts_bhsk: Sequence[Tensor], ranks: int, group: dist.ProcessGroup) -> tuple[Tensor, ...]:
    """Each (b, h, s / ranks, k) to (b, h / ranks, s, k), all in one exchange."""
    batch, _, local, width = parts_bhsk[0].shape
    sizes = [x.shape[1] // ranks for x in parts_bhsk]
    of_ranks = zip(*(x.chunk(ranks, dim=1) for x in parts_bhsk), strict=True)
    packed = torch.cat([part for of_rank in of_ranks for part in of_rank], dim=1).view(batch, ranks, sum(sizes), local, width)
    whole = _exchange(packed.movedim(1, 0), group).permute(1, 2, 0, 3, 4).flatten(2, 3)
    return whole.split_with_sizes(sizes, dim=1)


def _tokens_for_heads(x_bhsk: Tensor, ranks: int, group: dist.ProcessGroup) -> Tensor:
    """The other way: (b, h / ranks, s, k) to (b, h, s / ranks, k)."""
    by_rank = torch.stack(x_bhsk.chunk(ranks, dim=2))
    return _exchange(by_rank, group).movedim(0, 1).flatten(1, 2)


def _exchange(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Part i goes to rank i, and part j of what comes is of rank j."""
    return cast(Tensor, _Exchange.apply(x, group))  # type: ignore[no-untyped-call]


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _all_to_all(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _all_to_all(grad, ctx.group), None


def _all_to_all(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    mine = x.contiguous()
    theirs = torch.empty_like(mine)
    dist.all_to_all_single(theirs, mine, group=group)
    return theirs
