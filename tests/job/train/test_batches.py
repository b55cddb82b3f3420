"""Which samples a step reads, and which are held out: the same for a gang of any size, each of them once."""

import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from phalanx.core.errors import DataError, SpecError
from phalanx.core.recipe import LlamaRecipe
from phalanx.fabric.layouts import Layout
from phalanx.job.data.open import TokenData
from phalanx.job.data.sources import Sources
from phalanx.job.train.batches import Batch, HeldOut, batch_of_run, first_batch, order_of_run, train_batches
from phalanx.job.train.device import Rank
from phalanx.job.train.feed import Feed
from phalanx.job.train.finish import measured
from phalanx.job.train.loop import run
from phalanx.job.train.measure import measure
from phalanx.job.train.setup import Start

RECIPE = LlamaRecipe(batch_per_rank=2, accumulate=6, sequence=3, eval_batches=5)


class Numbered:
    """Data whose sample n is n in every place."""

    folder = Path("numbered")
    manifest = SimpleNamespace(parameters={})

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes

    def far(self, split: str) -> None:
        return None

    def num_samples(self, split: str, sequence: int) -> int:
        return self.sizes[split]

    def num_tokens(self, split: str) -> int:
        return RECIPE.sequence * self.sizes[split] + 1

    def gather(
        self, split: str, indices: NDArray[np.int64], sequence: int, out: NDArray[np.int64] | None = None, watch: object = None
    ) -> NDArray[np.int64]:
        assert indices.max() < self.sizes[split]
        rows = np.empty((len(indices), sequence + 1), dtype=np.int64) if out is None else out
        rows[:] = indices[:, None]
        return rows


def numbered(train: int, held_out: int) -> Sources:
    return Sources.of(cast(TokenData, Numbered({"train": train, "held_out": held_out})))


DATA = numbered(50, 23)


def rank_of(rank: int, world_size: int) -> Rank:
    return Rank(rank=rank, world_size=world_size, device=torch.device("cpu"), device_name="cpu")


def samples(step: int, world_size: int, batch: Batch) -> list[int]:
    read = []
    for rank in range(world_size):
        with closing(Feed(DATA, order_of_run(DATA, RECIPE, batch), RECIPE.sequence, rank_of(rank, world_size))) as feed:
            read.append(train_batches(feed, RECIPE, batch)(step).clone())
    assert {tuple(one.shape) for one in read} == {(batch.accumulate, 2, 4)}
    return torch.cat([one[:, :, 0].reshape(-1) for one in read]).tolist()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 12])
def test_T01_a_step_is_the_same_samples_in_the_same_order_for_every_world_size(world_size: int) -> None:
    first = first_batch(RECIPE, 2)
    later = batch_of_run(first.samples, RECIPE, world_size)
    assert (later.samples, later.held_out) == (first.samples, first.held_out) == (24, 4)
    for step in range(1, 6):
        assert samples(step, world_size, later) == samples(step, 2, first)


@pytest.mark.parametrize(("world_size", "fits"), [(5, "1, 2, 3, 4, 6, 12"), (24, "1, 2, 3, 4, 6, 12")])
def test_a_world_size_that_does_not_divide_is_told_what_does(world_size: int, fits: str) -> None:
    with pytest.raises(SpecError, match=f"world size.*global batch of 24 samples.*one of {fits} ranks"):
        batch_of_run(24, RECIPE, world_size)


@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
def test_d10_every_held_out_sample_counts_once_whatever_the_world_size(world_size: int) -> None:
    """And every rank runs the model as often as the others, who wait for it."""
    counted: list[int] = []
    runs: set[int] = set()
    for rank in range(world_size):
        held_out = HeldOut(DATA, RECIPE, rank_of(rank, world_size), first_batch(RECIPE, 2))
        assert held_out.num_batches == 5
        with held_out.reading() as batches:
            counts = []
            for read, count in (part for parts in batches for part in parts):
                assert RECIPE.batch_per_rank >= len(read) >= max(count, 1), "no more at once than in training"
                counted += read[:count, 0].tolist()
                counts.append(count)
            runs.add(len(counts))
    assert len(counted) == len(set(counted)) == 20 and len(runs) == 1


def test_ranks_that_share_a_sample_hold_out_the_same() -> None:
    layout, counted = Layout(dp_shard=2, tp=2), list[list[int]]()
    for rank in range(4):
        place = replace(rank_of(rank, 4), layout=layout)
        with HeldOut(DATA, RECIPE, place, first_batch(RECIPE, place.data_size)).reading() as batches:
            counted.append([one for parts in batches for read, count in parts for one in read[:count, 0].tolist()])
    assert counted[0] == counted[1] and counted[2] == counted[3] and len({*counted[0], *counted[2]}) == 20


def test_a_world_size_is_told_in_ranks_also_where_several_share_a_sample() -> None:
    with pytest.raises(SpecError, match="one of 2, 4, 6, 8, 12, 24 ranks") as caught:
        batch_of_run(24, RECIPE, 5, ranks_a_sample=2)
    assert caught.value.value == 10


def test_a_run_may_leave_the_held_out_loss_out() -> None:
    """Also over data of which nothing is held out; then nothing is measured, and nothing said."""
    recipe = replace(RECIPE, eval_batches=0)
    assert recipe.problems() == [] and replace(RECIPE, eval_batches=-1).problems() == [("eval_batches", -1, "write 0 or more")]
    held_out = HeldOut(numbered(50, 0), recipe, rank_of(0, 1), first_batch(recipe, 2))
    training: Any = SimpleNamespace(held_out=held_out, recipe=SimpleNamespace(steps=9))
    assert held_out.num_batches == 0 and math.isnan(measure(training, "val_loss_first", 0))
    saves: Any = SimpleNamespace(finish=lambda: None, newest="d9", failed=0)
    trained = run(training, Start(step=9, val_loss_first=math.nan, checkpoint="d9"), saves)
    assert measured(trained) == {}
    assert measured(replace(trained, val_loss_first=5.0, val_loss_final=4.0)) == {"val_loss_first": 5.0, "val_loss_final": 4.0}


def test_a_held_out_split_shorter_than_a_batch_is_refused() -> None:
    for held_out in (0, 3):
        with pytest.raises(
            DataError, match=r"takes 4 samples of 3 tokens; prepare the data .*`--held-out 0\.\d+`, lower .*`eval_batches: 0`"
        ) as caught:
            HeldOut(numbered(50, held_out), RECIPE, rank_of(0, 1), first_batch(RECIPE, 2))
        assert (caught.value.field, caught.value.value) == ("held-out samples", held_out)
    with pytest.raises(DataError, match="prepare more text, lower `sequence`"):
        HeldOut(numbered(5, 1), RECIPE, rank_of(0, 1), first_batch(RECIPE, 2))
