"""Tensor, sequence and loss parallelism: every matrix is cut over the ranks of an axis, and between matrices the sequence is.

The cuts are those of Megatron-LM (arXiv:1909.08053, arXiv:2205.05198), made by PyTorch's `parallelize_module`: a block's first
matrices give each rank its heads, or its part of the feed-forward, and the last ones sum over ranks while they deal out the
sequence.
The vocabulary is cut too, in the embedding and in the output, and the loss is taken where its logits lie. Products may be of 8-bit
floats: what is sent is not, and scales of whole tensors are of all ranks' parts.

A mixture of experts routes each rank's part of the sequence; its experts are no matter of this axis (`experts`), its shared ones
are cut as any feed-forward.
"""

import contextlib
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.distributed.tensor.placement_types import Placement

from phalanx.core.errors import SpecError
from phalanx.core.recipe import FP8_MULTIPLE
from phalanx.job.checkpoint.rows import Rows, fused, lay_anew, set_rows
from phalanx.job.models.llama import Block, Llama
from phalanx.job.models.lora import AdaptedLinear
from phalanx.job.models.moe.mixture import Mixture
from phalanx.job.models.moe.router import Router
from phalanx.job.train.float8 import has_8_bit_products
from phalanx.job.train.parallel.adapters import AdaptedColumns, AdaptedRows
from phalanx.job.train.parallel.mesh import TENSORS

_QKV: Final = "attention.qkv"
_OUT: Final = "attention.out"
_BY_ROWS: Final = (_OUT, ".down")
"""Ends of the names of matrices whose inputs are cut."""
_always: Final = contextlib.ExitStack()
_is_begun = [False]


class TensorParallel:
    """Cuts the parts of one model over an axis of the mesh, before data parallelism wraps them; nothing where the mesh has none."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh[TENSORS] if TENSORS in (mesh.mesh_dim_names or ()) else None
        self._rows: dict[str, Rows] = {}

    @property
    def cuts(self) -> bool:
        """Whether the mesh has such an axis."""
        return self._mesh is not None

    @torch.no_grad()
    def block(self, block: Block, name: str) -> None:
        """One that has its weights, the same on every rank. Its rows of queries, keys and values lie one below the other, and each
        rank needs all three of its heads. Raises SpecError for one with a matrix of another kind than plain ones and those with
        adapters, and for one of which something is not cut: data parallelism wraps it next, and `whole` could not tell."""
        if self._mesh is None:
            return
        feed = _feed_of(block)
        attention, ranks = block.attention, self._mesh.size()
        for matrix in (_QKV, _OUT, *(f"{feed}.{one}" for one in ("gate", "up", "down") if feed)):
            part = _part(block, matrix)
            if type(part) not in (nn.Linear, AdaptedLinear) and not (part is not None and has_8_bit_products(part)):
                raise SpecError("layout.tp", ranks, f"write 1: nobody can cut {name}.{matrix} of this model yet")
            _check_width(part, f"{name}.{matrix}", ranks)
        rows = fused(attention.widths, ranks)
        for kind, parameter in attention.qkv.named_parameters(recurse=False):
            parameter.copy_(lay_anew(parameter, rows))
            self._rows[f"{name}.{_QKV}.{kind}"] = rows
        queries, keys, values = (width // ranks for width in attention.widths)
        attention.widths = (queries, keys, values)
        attention.heads, attention.kv_heads = attention.heads // ranks, attention.kv_heads // ranks
        self._cut(block, _of_block(block))
        if isinstance(block.feed, Mixture):
            self._share_tokens(block.feed.router)
        self._check_cut(block, f"{name}.")

    def whole(self, model: Llama) -> None:
        """What is no block, after the blocks. Raises SpecError for a model of which something is not cut: what its ranks compute of
        that would be theirs alone."""
        if self._mesh is None:
            return
        self._cut(model, _of_model(model))
        model.embedding.register_forward_hook(_arrived)
        if isinstance(model.output, nn.Identity):  # the embedding is multiplied with, which has its part of the vocabulary
            whole = PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate(), use_local_output=False)
            self._cut(model, {"norm": whole})
        self._check_cut(model)
        set_rows(model, self._rows)
        _cut_losses()

    def _share_tokens(self, router: Router) -> None:
        """Each rank routes tokens of its own, by weights that all have."""
        assert self._mesh is not None
        weight = distribute_tensor(router.weight.detach(), self._mesh, [Replicate()], src_data_rank=None)
        router.weight = nn.Parameter(weight)
        router.adding = self._mesh.get_group()

    def _check_cut(self, module: nn.Module, prefix: str = "") -> None:
        assert self._mesh is not None
        for name, parameter in module.named_parameters():
            if not isinstance(parameter, DTensor):
                raise SpecError("layout.tp", self._mesh.size(), f"write 1: nobody can cut {prefix}{name} of this model yet")

    def _cut(self, module: nn.Module, plan: dict[str, ParallelStyle]) -> None:
        trained = {name: parameter.requires_grad for name, parameter in module.named_parameters()}
        parallelize_module(module, self._mesh, plan, src_data_rank=None)  # every rank has the whole, and takes its part of it
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(trained[name])  # torch forgets it of norms


def _part(block: Block, name: str) -> nn.Module | None:
    return dict(block.named_modules()).get(name)


def _feed_of(block: Block) -> str:
    """Where a block has a feed-forward that every token passes; '' where it has none."""
    if not isinstance(block.feed, Mixture):
        return "feed"
    return "feed.shared" if block.feed.shared is not None else ""


def _of_block(block: Block) -> dict[str, ParallelStyle]:
    along = Shard(1)  # the sequence
    plan: dict[str, ParallelStyle] = {
        "attention_norm": SequenceParallel(),
        _QKV: _columns(block, _QKV, along),
        _OUT: _rows(block, _OUT, along),
        "feed_norm": SequenceParallel(),
    }
    if isinstance(block.feed, Mixture):
        plan["feed"] = PrepareModuleInput(input_layouts=(along,), desired_input_layouts=(along,), use_local_output=True)
    if feed := _feed_of(block):
        plan[feed] = PrepareModuleInput(input_layouts=(along,), desired_input_layouts=(Replicate(),))
        plan |= {name: _columns(block, name, Replicate()) for name in (f"{feed}.gate", f"{feed}.up")}
        plan[f"{feed}.down"] = _rows(block, f"{feed}.down", along)
    if not isinstance(block.attention.q_norm, nn.Identity):  # of (b, s, h, k), whose heads are cut
        for norm in ("q_norm", "k_norm"):
            plan[f"attention.{norm}"] = SequenceParallel(sequence_dim=2, use_local_output=True)
    return plan


def _check_width(part: nn.Module | None, name: str, ranks: int) -> None:
    """Of what a rank has of a matrix with 8-bit products."""
    if not isinstance(part, nn.Linear) or not has_8_bit_products(part):
        return
    width = (part.in_features if name.endswith(_BY_ROWS) else part.out_features) // ranks
    if width % FP8_MULTIPLE:
        fix = f"8-bit products need multiples of {FP8_MULTIPLE}, and a rank would have {width} of {name}; write less, or bf16"
        raise SpecError("layout.tp", ranks, fix)


def _columns(block: Block, name: str, given: Placement) -> ParallelStyle:
    return AdaptedColumns(given) if isinstance(_part(block, name), AdaptedLinear) else ColwiseParallel(input_layouts=given)


def _rows(block: Block, name: str, made: Placement) -> ParallelStyle:
    return AdaptedRows(made) if isinstance(_part(block, name), AdaptedLinear) else RowwiseParallel(output_layouts=made)


def _of_model(model: Llama) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": _Logits(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    has = dict(model.named_children())  # a stage of a pipeline lacks some, as a tied model does its output
    return {name: style for name, style in plan.items() if any(True for _ in has[name].parameters())}


class _Logits(ColwiseParallel):
    """A head goes with the hidden states; what it makes of them is no logits, and cut no more."""

    @staticmethod
    def _prepare_input_fn(input_layouts: Any, desired_layouts: Any, mod: Any, inputs: Any, device_mesh: Any) -> Any:
        gathered = ColwiseParallel._prepare_input_fn
        return gathered(input_layouts, desired_layouts, mod, inputs, device_mesh), *inputs[1:]  # type: ignore[no-untyped-call]

    @staticmethod
    def _prepare_output_fn(output_layouts: Any, use_local_output: Any, mod: Any, outputs: Any, device_mesh: Any) -> Any:
        if not isinstance(outputs, DTensor):
            return outputs
        cut = ColwiseParallel._prepare_output_fn
        return cut(output_layouts, use_local_output, mod, outputs, device_mesh)  # type: ignore[no-untyped-call]


def _arrived(module: nn.Module, given: object, x: Tensor) -> Tensor:
    """What torch has yet to wait for is a kind of tensor of its own, and a compiled block that is given one hands no gradient back:
    the embedding would learn nothing."""
    return x.clone() if isinstance(x, AsyncCollectiveTensor) else x


def _cut_losses() -> None:
    """From here on a cross-entropy of logits that are cut along the vocabulary is taken where they lie. torch makes that a context,
    which forward and backward would have to be in, also of whoever looks at losses; it changes nothing for any other tensor."""
    if not _is_begun[0]:
        _always.enter_context(loss_parallel())
        _is_begun[0] = True
