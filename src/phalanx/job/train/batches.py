"""Samples of a step as tensors: the data room's order, this rank's part of it, on this rank's device.

Nothing is fetched ahead and nothing is counted: the samples of a step are a function of the step, so a batch that was read and
not trained on is read again after a resume.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from phalanx.core.errors import DataError
from phalanx.core.recipe import LlamaRecipe
from phalanx.job.data.manifest import Split
from phalanx.job.data.open import TokenData
from phalanx.job.data.order import Indices, batch_indices, rank_slice
from phalanx.job.train.device import Rank

_HELD_OUT_SEED: Final = 0
"""Not the run's: the held-out batches are the same whatever is being compared."""


def global_batch(recipe: LlamaRecipe, world_size: int) -> int:
    """Samples of one optimiser step over all ranks. It grows with them, hence no resume on another world size for now."""
    return recipe.batch_per_rank * recipe.accumulate * world_size


def train_batches(data: TokenData, recipe: LlamaRecipe, rank: Rank) -> Callable[[int], Tensor]:
    """A function from step (counted from 1) to this rank's (accumulate, b, s + 1). Raises DataError without any sample."""
    count = _samples(data, "train", recipe.sequence)
    size = global_batch(recipe, rank.world_size)

    def fetch(step: int) -> Tensor:
        whole = batch_indices(recipe.seed, step - 1, size, count)
        flat = _on_device(data, "train", whole, recipe.sequence, rank)
        return flat.view(recipe.accumulate, recipe.batch_per_rank, recipe.sequence + 1)

    return fetch


def held_out_batches(data: TokenData, recipe: LlamaRecipe, rank: Rank) -> tuple[Callable[[int], Tensor], int]:
    """A function from batch (counted from 0) to this rank's (b, s + 1), and how many there are.

    No sample stands twice: a short held-out split gives fewer batches than asked. Raises DataError when it gives none.
    """
    count = _samples(data, "held_out", recipe.sequence)
    size = recipe.batch_per_rank * rank.world_size
    if count < size:
        fix = f"has fewer samples than one held-out batch ({size}); prepare more text or lower batch_per_rank"
        raise DataError("held-out samples", count, fix)

    def fetch(index: int) -> Tensor:
        return _on_device(data, "held_out", batch_indices(_HELD_OUT_SEED, index, size, count), recipe.sequence, rank)

    return fetch, min(recipe.eval_batches, count // size)


def _samples(data: TokenData, split: Split, sequence: int) -> int:
    count = data.num_samples(split, sequence)
    if count == 0:
        raise DataError(f"{split} samples", 0, f"not one sequence of {sequence} tokens; prepare more text or shorten `sequence`")
    return count


def _on_device(data: TokenData, split: Split, whole: Indices, sequence: int, rank: Rank) -> Tensor:
    mine = data.gather(split, rank_slice(whole, rank.rank, rank.world_size), sequence)
    return torch.from_numpy(mine).to(rank.device)
