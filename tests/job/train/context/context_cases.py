"""Context parallelism over four ranks, for `test_context_gang.py`: run by `python -m`, one file for each case that ended well.

Every rank computes the whole row alone too, in float64 by the definition or by the plain model, and compares its own part.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from phalanx.core.errors import SpecError
from phalanx.core.recipe import LlamaRecipe
from phalanx.fabric.context import KINDS, ContextKind
from phalanx.job.models.context import WHOLE, document_mask
from phalanx.job.models.llama import Block, Llama, LlamaShape, initialise, rope_tables
from phalanx.job.train.clip import clip, global_norm
from phalanx.job.train.context.kernels import CPU_FLASH, PLAIN, Gradients, Kept, Kernel
from phalanx.job.train.context.ring import ring_attention
from phalanx.job.train.context.shared import context_of_kind, context_parallel
from phalanx.job.train.device import Rank, gang
from phalanx.job.train.loss import token_loss
from phalanx.job.train.optimizer import make_adamw
from tests.job.train.gang_cases import play

TOKENS: Final = 16
ROWS: Final = 3
HEADS: Final = 4
STEPS: Final = 5
SHAPE: Final = LlamaShape(vocab=31, dim=32, layers=2, heads=HEADS, ffn_dim=24)
TOLERANCE: Final = {torch.float64: 1e-12, torch.float32: 3e-6, torch.bfloat16: 2e-2}
DOCUMENTS: Final = torch.tensor([
    [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 3, -1],  # over chunks, within one, of one token, padding
    [0] * 8 + [1] * 8,  # at the border of chunks of either number of ranks
    [0] * TOKENS,
])  # fmt: skip


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_definition(q: Tensor, k: Tensor, v: Tensor, mask_bss: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("bhsk,bhtk->bhst", q, k) * q.shape[-1] ** -0.5
    found: Tensor = scores.masked_fill(~mask_bss.unsqueeze(1), -torch.inf).softmax(-1) @ v
    return found


class Whole:
    """Rows that nobody shares: tensors of a type, and what comes of them in float64."""

    def __init__(self, kv_heads: int, dtype: torch.dtype, segments: Tensor | None, seed: int = 0) -> None:
        heads = (HEADS, kv_heads, kv_heads, HEADS)
        *self.inputs, self.grad = [drawn(ROWS, num, TOKENS, 8, seed=seed + at).to(dtype) for at, num in enumerate(heads)]
        q, k, v = (x.double().requires_grad_() for x in self.inputs)
        out = by_definition(q, k, v, document_mask(torch.zeros(ROWS, TOKENS) if segments is None else segments))
        self.wanted = [out, *torch.autograd.grad(out, (q, k, v), self.grad.double())]
        self.dtype, self.segments = dtype, segments


class Part:
    """One rank's of it, of which forward and backward are apart."""

    def __init__(self, whole: Whole, kind: ContextKind, group: dist.ProcessGroup, kernel: Kernel | None = None) -> None:
        self.whole, self.context = whole, context_of_kind(kind, group)
        self.inputs = [self.context.cut(x, dim=2).requires_grad_() for x in whole.inputs]
        documents = self.context.documents(TOKENS, whole.segments)
        q, k, v = self.inputs
        if kernel is None:
            self.out = self.context.attend(q, k, v, documents)
        else:
            self.out = ring_attention(q, k, v, documents.rounds, group, kernel)

    def compare(self) -> list[Tensor]:
        grads = torch.autograd.grad(self.out, self.inputs, self.context.cut(self.whole.grad, dim=2))
        found, tolerance = [self.out, *grads], TOLERANCE[self.whole.dtype]
        assert [x.dtype for x in found] == [self.whole.dtype] * 4
        for ours, theirs in zip(found, self.whole.wanted, strict=True):
            torch.testing.assert_close(ours.double(), self.context.cut(theirs, dim=2), atol=tolerance, rtol=tolerance)
        return found


def groups_of(grid: DeviceMesh) -> Iterator[dist.ProcessGroup]:
    """Of two ranks, and of all four."""
    yield grid["cp"].get_group()
    world = dist.group.WORLD
    assert world is not None
    yield world


def case_attention_and_its_gradients_are_those_of_whole_rows(grid: DeviceMesh, rank: Rank) -> None:
    for segments, dtype, kv_heads in product((None, DOCUMENTS), TOLERANCE, (4, 2, 1)):
        whole = Whole(kv_heads, dtype, segments)
        for group in groups_of(grid):
            for kind in KINDS:
                Part(whole, kind, group).compare()
            Part(whole, "ring", group, PLAIN).compare()


def case_the_same_bits_each_time_and_forward_passes_may_be_under_way_at_once(grid: DeviceMesh, rank: Rank) -> None:
    for group, kind in product(groups_of(grid), KINDS):
        one = Whole(2, torch.float32, None)
        other = Whole(2, torch.float32, DOCUMENTS, seed=9)
        found = Part(one, kind, group).compare()
        both = Part(one, kind, group), Part(other, kind, group)
        again, _ = both[0].compare(), both[1].compare()
        assert all(torch.equal(x, y) for x, y in zip(found, again, strict=True))


def case_every_rank_computes_as_many_pairs(grid: DeviceMesh, rank: Rank) -> None:
    """As the kernels are called, forwards and backwards."""
    for group in groups_of(grid):
        pairs = [0, 0]
        Part(Whole(4, torch.float32, None), "ring", group, counted(pairs)).compare()
        assert pairs == [ROWS * TOKENS * (TOKENS + 1) // 2 // group.size()] * 2, pairs


def counted(pairs: list[int]) -> Kernel:
    def forward(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor, Kept]:
        pairs[0] += num_pairs(q, k, causal)
        return CPU_FLASH.forward(q, k, v, causal)

    def backward(*given: Any) -> Gradients:
        _, q, k, *_, causal, _ = given
        pairs[1] += num_pairs(q, k, causal)
        return CPU_FLASH.backward(*given)

    return Kernel("counted", forward, backward)


def num_pairs(q: Tensor, k: Tensor, causal: bool) -> int:
    rows, queries, keys = len(q), q.shape[2], k.shape[2]
    return rows * (queries * (queries + 1) // 2 if causal else queries * keys)


def samples(step: int, packed: bool) -> Tensor:
    """Four of them: (b, s + 1), or (b, 2, s + 1) with documents."""
    generator = np.random.default_rng(step)
    ids = torch.from_numpy(generator.integers(0, SHAPE.vocab, (4, TOKENS + 1)))
    if not packed:
        return ids
    segments = torch.from_numpy(generator.integers(0, 4, (4, TOKENS + 1)) == 0).cumsum(dim=1)
    segments[1, 11:] = -1
    return torch.stack((ids, segments), dim=1)


Steps = list[tuple[float, dict[str, Tensor]]]
"""Of each its loss, and the gradients before they are clipped."""


def filled() -> Llama:
    model = Llama(SHAPE)
    for name, part in model.named_children():
        initialise(part, name, 0, 0.3)
    return model


def trained(model: Llama, packed: bool, rows: slice = slice(4), microbatches: int = 1) -> Steps:
    """On these rows of each step, cut in that many microbatches."""
    optimizer, steps = make_adamw(model, LlamaRecipe(lr=1e-2)), []
    for step in range(STEPS):
        total = 0.0
        for number, one in enumerate(samples(step, packed)[rows].chunk(microbatches), start=1):
            if isinstance(model, FSDPModule):
                model.set_requires_gradient_sync(number == microbatches)
            loss = token_loss(model, one) / microbatches
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        steps.append((total, gradients(model)))
        if isinstance(model, FSDPModule):
            clip(model, float(global_norm(model)), 1.0)
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return steps


def gradients(model: Llama) -> dict[str, Tensor]:
    found = {name.replace("_checkpoint_wrapped_module.", ""): one.grad for name, one in model.named_parameters()}
    return {name: one.full_tensor() if isinstance(one, DTensor) else one.clone() for name, one in found.items() if one is not None}


def shared(kind: ContextKind, ranks: DeviceMesh, again: bool) -> Llama:
    """Sharded over all four ranks, as weights are whatever ranks share rows. again: activations are computed again backwards."""
    world, model = init_device_mesh("cpu", (4,)), filled()
    context_parallel(model, ranks, kind)
    for number, block in enumerate(model.blocks):
        model.blocks[number] = checkpoint_wrapper(block) if again else block
        fully_shard(model.blocks[number], mesh=world)
    fully_shard(model, mesh=world)
    return model


def case_a_model_trains_as_in_one_process(grid: DeviceMesh, rank: Rank) -> None:
    """Five steps: all four ranks share four rows; and two pairs share two rows each, in two microbatches."""
    four = init_device_mesh("cpu", (4,), mesh_dim_names=("cp",))
    replica = grid["dp"].get_local_rank()
    mine = slice(2 * replica, 2 * replica + 2)
    for packed in (False, True):
        wanted = trained(filled(), packed)
        for kind in KINDS:
            compare(trained(shared(kind, four, packed), packed), wanted)
            compare(trained(shared(kind, grid["cp"], not packed), packed, mine, microbatches=2), wanted)


def compare(found: Steps, wanted: Steps) -> None:
    losses = torch.tensor([loss for loss, _ in found], dtype=torch.float64)
    dist.all_reduce(losses)
    torch.testing.assert_close(losses / 4, torch.tensor([loss for loss, _ in wanted], dtype=torch.float64), atol=0, rtol=2e-6)
    for (_, grads), (_, wanted_grads) in zip(found, wanted, strict=True):
        assert grads.keys() == wanted_grads.keys() and len(grads) > 10
        off = {name: float((grads[name] - grad).abs().max() / grad.abs().max()) for name, grad in wanted_grads.items()}
        assert max(off.values()) < 2e-4, off


@torch.no_grad()
def case_a_compiled_block_is_not_compiled_again_for_other_documents(grid: DeviceMesh, rank: Rank) -> None:
    """One pair by ring, the other by heads."""
    compiled, block, frames = CompileCounter(), Block(SHAPE), []
    context_parallel(block, grid["cp"], KINDS[grid["dp"].get_local_rank()])
    block.compile(backend=compiled)
    context = block.attention.context
    tables = [context.cut(table, dim=0) for table in rope_tables(TOKENS, SHAPE.head_dim, rank.device)]
    for step in (0, 1, 2):
        documents = context.documents(TOKENS, samples(step, packed=True)[:, 1, :-1])
        block(context.cut(drawn(4, TOKENS, SHAPE.dim, seed=step).float()), *tables, documents)
        frames.append(compiled.frame_count)
    assert frames[0] == frames[-1] > 0, frames


def case_what_cannot_be_shared_is_refused_on_every_rank(grid: DeviceMesh, rank: Rank) -> None:
    *_, world = groups_of(grid)
    model, odd = filled(), Llama(replace(SHAPE, heads=2, kv_heads=2))
    refused("cp: 4: ulysses shares 2 heads", lambda: context_parallel(odd, world, "ulysses"))
    assert {module.context for module in odd.modules() if hasattr(module, "context")} == {WHOLE}, "as it was"
    refused("context kind: 'star': write one of ring, ulysses", lambda: context_parallel(model, world, "star"))  # type: ignore[arg-type]
    refused("model: 'Linear': asks no `context`", lambda: context_parallel(torch.nn.Linear(1, 1), world, "ring"))
    context_parallel(model, world, "ring")
    refused("sequence: 12: cp 4 by ring cuts it into 8 equal pieces", lambda: model(torch.zeros(1, 12, dtype=torch.int64)))


def refused(said: str, act: Callable[[], Any]) -> None:
    try:
        act()
    except SpecError as error:
        assert str(error).startswith(said), error
        return
    raise AssertionError(f"not refused: {said}")


def main(folder: Path, chosen: Sequence[str]) -> None:
    with gang() as rank:
        grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
        play(globals(), folder, lambda case, _: case(grid, rank), chosen)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
