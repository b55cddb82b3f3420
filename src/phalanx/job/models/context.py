"""Which tokens of its rows a rank has, and how they attend. A model asks this in three places, so that the same model runs on ranks
that share a row (`job.train.context`)."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn


class Context:
    """All tokens, which attend to each other: a rank alone with its rows. Others share them; each has as many tokens of a row.

    Shapes: b batch, s sequence, h heads, g heads of keys and values (h is a multiple), k head width.
    """

    ranks = 1
    """That share a row."""
    group: Any = None
    """Of these ranks; None for one alone."""

    def cut(self, x: Tensor, dim: int = 1) -> Tensor:
        """Of something for each token of whole rows, along `dim`: this rank's tokens."""
        return x

    def documents(self, tokens: int, segments_bs: Tensor | None) -> Any:
        """What `attend` has to know of rows with so many tokens, once for all layers. segments_bs: for each token of whole rows the
        number of its document in its row; None: each row is one document."""
        return None if segments_bs is None else document_mask(segments_bs).unsqueeze(1)

    def attend(self, q_bhsk: Tensor, k_bgsk: Tensor, v_bgsk: Tensor, documents: Any) -> Tensor:
        """(b, h, s, k): what each of this rank's tokens gets from its document up to itself."""
        return attention(q_bhsk, k_bgsk, v_bgsk, documents)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # what waits for other ranks is no part of a graph
@torch.no_grad()
def mean_over(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Of tensors that each rank of a group has, without a gradient. A collective of these ranks."""
    total = x.detach().clone()
    dist.all_reduce(total, group=group)
    return total / group.size()


def attention(q_bhsk: Tensor, k_bgsk: Tensor, v_bgsk: Tensor, mask_b1ss: Tensor | None = None) -> Tensor:
    """torch's own; causal where no mask says more."""
    grouped = q_bhsk.shape[1] != k_bgsk.shape[1]
    return F.scaled_dot_product_attention(q_bhsk, k_bgsk, v_bgsk, mask_b1ss, is_causal=mask_b1ss is None, enable_gqa=grouped)


def document_mask(segments_bs: Tensor) -> Tensor:
    """(b, s, s): whether a token may see another one, of its own document and not after it."""
    same_bss = segments_bs[:, :, None] == segments_bs[:, None, :]
    return same_bss.tril()


def context_of(model: nn.Module) -> Context:
    """A model without one has whole rows."""
    context = getattr(model, "context", None)
    return context if isinstance(context, Context) else WHOLE


WHOLE = Context()
