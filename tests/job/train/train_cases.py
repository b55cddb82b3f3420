"""The trainer's arithmetic over a gang, for `test_train_gang.py`: run by `python -m` on two ranks, answers as JSON from rank 0."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from phalanx.core.recipe import LlamaRecipe
from phalanx.job.data.open import open_data
from phalanx.job.data.sources import Sources
from phalanx.job.models.llama import Llama, LlamaShape, initialise
from phalanx.job.train.batches import Batch, HeldOut, first_batch, order_of_run, train_batches
from phalanx.job.train.device import Rank, gang
from phalanx.job.train.evaluate import held_out_loss
from phalanx.job.train.feed import Feed
from phalanx.job.train.loss import token_loss
from phalanx.job.train.optimizer import lr_at, make_adamw, set_lr
from phalanx.job.train.parallel import make_mesh, sharded_llama
from phalanx.job.train.step import train_step

RECIPE = LlamaRecipe(dim=16, layers=2, heads=2, ffn_dim=24, sequence=16, batch_per_rank=4, steps=8, warmup_steps=2, eval_batches=2)
LESS = replace(RECIPE, activation_checkpointing="selective", reshard_after_forward=False, prefetch_blocks=1)
Numbers = list[tuple[float, float]]


def shape_of(data: Sources) -> LlamaShape:
    return LlamaShape(vocab=data.vocab_size, dim=RECIPE.dim, layers=RECIPE.layers, heads=RECIPE.heads, ffn_dim=RECIPE.ffn_dim)


def read(data: Sources, recipe: LlamaRecipe, rank: Rank, batch: Batch) -> Callable[[int], Tensor]:
    return train_batches(Feed(data, order_of_run(data, recipe, batch), recipe.sequence, rank), recipe, batch)


def sharded(data: Sources, rank: Rank, recipe: LlamaRecipe) -> tuple[Numbers, float]:
    """(loss, gradient norm) of each step over the gang, and the held-out loss after them."""
    model = sharded_llama(shape_of(data), recipe, rank, make_mesh(rank), "fp32")
    batch = first_batch(recipe, rank.world_size)
    optimizer, fetch = make_adamw(model, recipe), read(data, recipe, rank, batch)
    facts = [train_step(model, optimizer, fetch, recipe, step, lambda: 0.0) for step in range(1, recipe.steps + 1)]
    return [(fact.loss, fact.grad_norm) for fact in facts], held_out_loss(model, HeldOut(data, recipe, rank, batch))


def plain(data: Sources) -> Numbers:
    """The same without sharding, mesh or gang: one process, the whole batch."""
    alone = Rank(rank=0, world_size=1, device=torch.device("cpu"), device_name="cpu")
    recipe = replace(RECIPE, batch_per_rank=2 * RECIPE.batch_per_rank)
    model = Llama(shape_of(data))
    for name, part in model.named_children():
        initialise(part, name, recipe.seed, recipe.init_std)
    optimizer, fetch = make_adamw(model, recipe), read(data, recipe, alone, first_batch(recipe, 1))
    numbers = []
    for step in range(1, recipe.steps + 1):
        set_lr(optimizer, lr_at(step, recipe))
        loss = token_loss(model, fetch(step)[0])
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        optimizer.zero_grad()
        numbers.append((float(loss.item()), float(norm.item())))
    return numbers


def main(out: Path, data_folder: Path) -> None:
    data = Sources.of(open_data(data_folder))
    with gang() as rank:
        whole, held_out = sharded(data, rank, RECIPE)
        halves, _ = sharded(data, rank, replace(RECIPE, batch_per_rank=2, accumulate=2))
        again, held_out_again = sharded(data, rank, RECIPE)
        fused, held_out_fused = sharded(data, rank, replace(RECIPE, fused_loss=True))
        less, _ = sharded(data, rank, LESS)
    if rank.rank == 0:
        answer = {
            "whole": whole, "halves": halves, "again": again, "plain": plain(data),
            "held_out": [held_out, held_out_again, held_out_fused], "vocab": data.vocab_size, "fused": fused, "less": less,
        }  # fmt: skip
        out.write_text(json.dumps(answer))
    os._exit(0)  # as the trainer does


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
