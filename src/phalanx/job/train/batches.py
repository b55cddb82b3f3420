"""Samples of a step as tensors: the data room's order, this rank's part of it, on this rank's device.

A sample is (s + 1) token ids, or (2, s + 1) where documents are told apart, or the words of an image; below, a row. Nothing is
counted: the samples of a step are a function of the step, so a batch that was read and not trained on is read again after a resume.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from phalanx.core.errors import SpecError
from phalanx.core.recipe import AnyRecipe
from phalanx.job.data.draws import DataOrder, Draws
from phalanx.job.data.draws import batch as global_batch
from phalanx.job.data.order import Indices, batch_indices, rank_slice
from phalanx.job.data.samples import Rows
from phalanx.job.data.stream import BatchStream
from phalanx.job.train.device import Rank
from phalanx.job.train.feed import Feed, RunData

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


def first_batch(recipe: AnyRecipe, data_size: int, whole_size: int | None = None) -> Batch:
    """Of a run that begins with this gang, whose ranks cut the samples into `data_size` parts. whole_size: into how many they would
    have been cut if all ranks had lived."""
    samples = recipe.batch_per_rank * recipe.accumulate * (whole_size or data_size)
    return batch_of_run(samples, recipe, data_size)


def batch_of_run(samples: int, recipe: AnyRecipe, data_size: int, ranks_a_sample: int = 1) -> Batch:
    """Of a gang that goes on with a run of `samples` in each step. ranks_a_sample: ranks that get the same ones. Raises SpecError
    when its ranks cannot share them evenly."""
    microbatches = samples // recipe.batch_per_rank
    if microbatches % data_size:
        fits = ", ".join(str(size * ranks_a_sample) for size in range(1, microbatches + 1) if microbatches % size == 0)
        fix = (
            f"does not divide this run's global batch of {samples} samples into whole microbatches of batch_per_rank "
            f"{recipe.batch_per_rank}; go on with one of {fits} ranks"
        )
        raise SpecError("world size", data_size * ranks_a_sample, fix)
    return Batch(samples=samples, held_out=samples // recipe.accumulate, accumulate=microbatches // data_size)


def order_of_run(data: RunData, recipe: AnyRecipe, batch: Batch) -> DataOrder:
    """The same for a gang of any size. Raises DataError for a source without any sample."""
    return data.order(recipe.sequence, seed=recipe.seed, global_batch=batch.samples)


def train_draws(order: DataOrder, step: int) -> Draws:
    """The samples of the global batch of `step`, counted from 1; each rank reads its part of them in order."""
    return global_batch(order, step - 1)


def train_batches(feed: Feed, recipe: AnyRecipe, batch: Batch) -> Callable[[int], Tensor]:
    """A function from step (counted from 1) to this rank's (accumulate, b, *row)."""

    def fetch(step: int) -> Tensor:
        samples = feed(step)
        return samples.view(batch.accumulate, recipe.batch_per_rank, *samples.shape[1:])

    return fetch


def shared_batches(feed: Feed, recipe: AnyRecipe) -> Callable[[int], Tensor]:
    """A function from step to the first microbatch (b, *row) of its global batch, the same samples on every rank."""
    return lambda step: feed.shared(step, recipe.batch_per_rank)


Parts = list[tuple[Tensor, int]]
"""This rank's samples of a held-out batch in microbatches (b, *row), each with how many of them count, from the first on: none,
where the rank has fewer than others, so that every rank runs the model as often."""


class HeldOut:
    """The held-out batches: the same samples for a gang of any size, each once. Of several sources all are drawn from alike,
    whatever the mixture. num_batches: a short held-out split gives fewer than asked. Raises DataError when it gives none,
    and some are asked for."""

    def __init__(self, data: RunData, recipe: AnyRecipe, rank: Rank, batch: Batch) -> None:
        self._data, self._rank, self._samples = data, rank, batch.held_out
        self._sequence, self._size = recipe.sequence, recipe.batch_per_rank
        self._count = data.num_samples("held_out", recipe.sequence) if recipe.eval_batches else 0
        if recipe.eval_batches:
            data.check_held_out(recipe.sequence, batch.held_out)
        self.num_batches = min(recipe.eval_batches, self._count // batch.held_out)

    @contextmanager
    def reading(self) -> Iterator[Iterator[Parts]]:
        """All of them in turn, read ahead by threads as those of training are. What one gave lasts until the next is asked for."""
        rows = lambda index: np.concatenate([read for read, _ in self._parts(index)])  # noqa: E731
        with BatchStream(self._data, "held_out", self._sequence, rows, 0, self.num_batches) as stream:
            yield (self._on_device(index, read) for index, read in enumerate(stream))

    def _on_device(self, index: int, rows: Rows) -> Parts:
        parts = self._parts(index)
        ends = np.cumsum([len(read) for read, _ in parts])
        samples = torch.from_numpy(rows).to(self._rank.device)
        return [(part, counted) for part, (_, counted) in zip(samples.tensor_split(ends[:-1].tolist()), parts, strict=True)]

    def _parts(self, index: int) -> list[tuple[Indices, int]]:
        """The samples of each microbatch, and how many of them count."""
        whole = batch_indices(_HELD_OUT_SEED, index, self._samples, self._count)
        mine = rank_slice(whole, self._rank.data_rank, self._rank.data_size)
        most = -(-self._samples // self._rank.data_size)  # of a rank: in a smaller gang more than one microbatch has
        parts = [mine[at : at + self._size] for at in range(0, most, self._size)]
        return [(part if part.size else whole[:1], part.size) for part in parts]
