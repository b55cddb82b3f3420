"""Samples of a step as tensors: the data room's order, this rank's part of it, on this rank's device.

A sample is (s + 1) token ids, or (2, s + 1) where documents are told apart; below, a row. Nothing is counted: the samples of a step
are a function of the step, so a batch that was read and not trained on is read again after a resume.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from phalanx.core.errors import SpecError
from phalanx.core.recipe import LlamaRecipe
from phalanx.job.data.draws import DataOrder, Draws
from phalanx.job.data.draws import batch as global_batch
from phalanx.job.data.enough import check_held_out
from phalanx.job.data.manifest import Split
from phalanx.job.data.order import Indices, batch_indices, rank_slice
from phalanx.job.data.sources import Sources
from phalanx.job.train.device import Rank
from phalanx.job.train.feed import Feed

_HELD_OUT_SEED: Final = 0
"""Not the run's: the held-out batches are the same whatever is being compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """How a gang reads the samples of one optimiser step. The first gang of a run fixes their number; every later one keeps it by
    other microbatches, so that each step stays the same samples.

    samples: of one step over all ranks. held_out: of one held-out batch over the ranks of the run's first gang. accumulate:
    microbatches of this gang in one step.
    """

    samples: int
    held_out: int
    accumulate: int


def first_batch(recipe: LlamaRecipe, world_size: int, whole_size: int | None = None) -> Batch:
    """Of a run that begins with this gang of `world_size` ranks. whole_size: with how many it would have begun if all had lived."""
    samples = recipe.batch_per_rank * recipe.accumulate * (whole_size or world_size)
    return batch_of_run(samples, recipe, world_size)


def batch_of_run(samples: int, recipe: LlamaRecipe, world_size: int) -> Batch:
    """Of a gang that goes on with a run of `samples` in each step. Raises SpecError when its ranks cannot share them evenly."""
    microbatches = samples // recipe.batch_per_rank
    if microbatches % world_size:
        fits = ", ".join(str(size) for size in range(1, microbatches + 1) if microbatches % size == 0)
        fix = (
            f"does not divide this run's global batch of {samples} samples into whole microbatches of batch_per_rank "
            f"{recipe.batch_per_rank}; go on with one of {fits} ranks"
        )
        raise SpecError("world size", world_size, fix)
    return Batch(samples=samples, held_out=samples // recipe.accumulate, accumulate=microbatches // world_size)


def order_of_run(data: Sources, recipe: LlamaRecipe, batch: Batch) -> DataOrder:
    """The same for a gang of any size. Raises DataError for a source without any sample."""
    return data.order(recipe.sequence, seed=recipe.seed, global_batch=batch.samples)


def train_draws(order: DataOrder, step: int) -> Draws:
    """The samples of the global batch of `step`, counted from 1; each rank reads its part of them in order."""
    return global_batch(order, step - 1)


def train_batches(feed: Feed, recipe: LlamaRecipe, batch: Batch) -> Callable[[int], Tensor]:
    """A function from step (counted from 1) to this rank's (accumulate, b, *row)."""

    def fetch(step: int) -> Tensor:
        samples = feed(step)
        return samples.view(batch.accumulate, recipe.batch_per_rank, *samples.shape[1:])

    return fetch


def shared_batches(feed: Feed, recipe: LlamaRecipe) -> Callable[[int], Tensor]:
    """A function from step to the first microbatch (b, *row) of its global batch, the same samples on every rank."""
    return lambda step: feed.shared(step, recipe.batch_per_rank)


HeldOut = Callable[[int], list[tuple[Tensor, int]]]
"""From a batch, counted from 0, to this rank's samples in microbatches (b, *row), each with how many of them count, from the first
on: none, where the rank has fewer than others, so that every rank runs the model as often."""


def held_out_batches(data: Sources, recipe: LlamaRecipe, rank: Rank, batch: Batch) -> tuple[HeldOut, int]:
    """The function, and how many batches there are: the same samples for a gang of any size, each once. Of several sources all
    samples are drawn from alike, whatever the mixture.

    A short held-out split gives fewer than asked. Raises DataError when it gives none.
    """
    count = data.num_samples("held_out", recipe.sequence)
    check_held_out(data.num_tokens("held_out"), count, recipe.sequence, batch.held_out)
    num_batches = min(recipe.eval_batches, count // batch.held_out)
    most = -(-batch.held_out // rank.world_size)  # samples of a rank: in a smaller gang more than one microbatch has

    def fetch(index: int) -> list[tuple[Tensor, int]]:
        whole = batch_indices(_HELD_OUT_SEED, index, batch.held_out, count)
        mine, size = rank_slice(whole, rank.rank, rank.world_size), recipe.batch_per_rank
        parts = [mine[at : at + size] for at in range(0, most, size)]
        read: list[Indices] = [part if part.size else np.asarray(whole[:1]) for part in parts]
        return [
            (_on_device(data, "held_out", rows, recipe.sequence, rank), part.size) for rows, part in zip(read, parts, strict=True)
        ]

    return fetch, num_batches


def _on_device(data: Sources, split: Split, mine: Indices, sequence: int, rank: Rank) -> Tensor:
    return torch.from_numpy(data.gather(split, mine, sequence)).to(rank.device)
