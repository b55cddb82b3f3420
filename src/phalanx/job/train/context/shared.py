"""A model's rows, shared by the ranks of a group: `context_parallel` is all that a layout calls."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from phalanx.core.errors import SpecError
from phalanx.fabric.context import KINDS, Block, ContextCut, ContextKind, Round, bounds_of, check_heads, rounds, whole_rows
from phalanx.fabric.context.cut import Ints
from phalanx.job.models.context import Context
from phalanx.job.train.context.ring import ring_attention
from phalanx.job.train.context.ulysses import ulysses_attention


def context_parallel(model: nn.Module, ranks: DeviceMesh | dist.ProcessGroup, kind: ContextKind) -> None:
    """From now on these ranks share the rows that they give to the model: a mesh of one axis, or its group.

    All of them have to give the same rows. A rank's gradients are then of its own tokens: with the losses of `job.train.loss` the
    mean over ranks is that of the rows, so whoever takes the mean over replicas (FSDP, DDP) takes it over these ranks too.
    Raises SpecError where that many ranks cannot share the heads, and changes nothing; the model does for a row that cannot be cut.
    """
    group = ranks.get_group() if isinstance(ranks, DeviceMesh) else ranks
    context = context_of_kind(kind, group)
    asking = [module for module in model.modules() if isinstance(getattr(module, "context", None), Context)]
    if not asking:
        raise SpecError("model", type(model).__name__, "asks no `context` which tokens it has; let its attention ask one")
    for module in asking:
        if isinstance(heads := getattr(module, "heads", None), int):
            check_heads(kind, heads, getattr(module, "kv_heads", heads), group.size())
    for module in asking:
        module.context = context  # type: ignore[assignment]  # a module's attributes are not typed


def context_of_kind(kind: ContextKind, group: dist.ProcessGroup) -> Context:
    """Of the ranks of a group. Raises SpecError for a kind that is none."""
    match kind:
        case "ring":
            return _Ring(group)
        case "ulysses":
            return _Ulysses(group)
        case _:
            raise SpecError("context kind", kind, f"write one of {', '.join(KINDS)}")


@dataclass(slots=True)
class RingPlan:
    """Of a batch. Neither frozen nor a bare tuple: of those a compiled block compares what is in them, and is compiled anew."""

    rounds: tuple[Round, ...]


@dataclass(slots=True)
class RowPlan:
    """As a ring's."""

    blocks: tuple[Block, ...]


class _Shared(Context):
    """One group's. Instances hold nothing of a batch: forward passes may be under way at once."""

    kind: ContextKind

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.ranks = group.size()

    def cut(self, x: Tensor, dim: int = 1) -> Tensor:
        spans = self._cut_of(x.shape[dim]).spans(self.group.rank())
        return torch.cat([x.narrow(dim, start, stop - start) for start, stop in spans], dim)

    def _cut_of(self, tokens: int) -> ContextCut:
        cut = ContextCut(self.kind, tokens, self.ranks)
        cut.check()
        return cut


class _Ring(_Shared):
    kind = "ring"

    def documents(self, tokens: int, segments_bs: Tensor | None) -> RingPlan:
        return RingPlan(rounds(self._cut_of(tokens), self.group.rank(), _bounds(tokens, segments_bs)))

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # what it waits for is no part of a graph
    def attend(self, q_bhsk: Tensor, k_bgsk: Tensor, v_bgsk: Tensor, documents: RingPlan) -> Tensor:
        return ring_attention(q_bhsk, k_bgsk, v_bgsk, documents.rounds, self.group)


class _Ulysses(_Shared):
    kind = "ulysses"

    def documents(self, tokens: int, segments_bs: Tensor | None) -> RowPlan:
        return RowPlan(whole_rows(_bounds(tokens, segments_bs)))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def attend(self, q_bhsk: Tensor, k_bgsk: Tensor, v_bgsk: Tensor, documents: RowPlan) -> Tensor:
        return ulysses_attention(q_bhsk, k_bgsk, v_bgsk, documents.blocks, self.group)


def _bounds(tokens: int, segments_bs: Tensor | None) -> tuple[Ints, ...]:
    """On the host, where the next kernels are chosen by them: once a forward pass, not once a layer."""
    return (np.array([0, tokens]),) if segments_bs is None else bounds_of(segments_bs.cpu().numpy())
