"""The order of the data: each epoch a permutation, O(1) to enter, the same at any world size. Case ids: shared/CASES.md."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import DataError
from phalanx.job.data.order import SAMPLES_MAX, batch_indices, rank_slice, sample

SEEDS = st.integers(-(2**63), 2**64)
SIZES = st.one_of(st.integers(1, 40), st.integers(1, 3000))
EPOCHS = st.integers(0, 10**6)


@given(seed=SEEDS, epoch=EPOCHS, size=SIZES)
def test_an_epoch_is_a_bijection(seed: int, epoch: int, size: int) -> None:
    assert sorted(sample(seed, epoch, np.arange(size), size).tolist()) == list(range(size))


@given(seed=SEEDS, epoch=EPOCHS, size=st.integers(1, SAMPLES_MAX), data=st.data())
def test_a_place_gives_the_same_sample_whatever_is_asked_beside_it(seed: int, epoch: int, size: int, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=5, unique=True))
    found = sample(seed, epoch, np.array(indices), size)
    assert found.tolist() == [int(sample(seed, epoch, np.array([index]), size)[0]) for index in indices]
    assert len(set(found.tolist())) == len(indices)
    assert found.min() >= 0
    assert found.max() < size


@given(seed=SEEDS, size=st.integers(1, 60), global_batch=st.integers(1, 25), epochs=st.integers(1, 3))
def test_t09_every_epoch_visits_each_sample_exactly_once(seed: int, size: int, global_batch: int, epochs: int) -> None:
    steps = -(-size * epochs // global_batch)
    run = np.concatenate([batch_indices(seed, step, global_batch, size) for step in range(steps)])
    for epoch in range(epochs):
        assert sorted(run[epoch * size : (epoch + 1) * size].tolist()) == list(range(size))


@given(
    seed=SEEDS,
    size=st.integers(1, 500),
    batch=st.integers(1, 64),
    step=st.integers(0, 200),
    worlds=st.tuples(*[st.integers(1, 9)] * 2),
)
def test_t01_world_size_decides_who_reads_a_sample_never_which(
    seed: int, size: int, batch: int, step: int, worlds: tuple[int, int]
) -> None:
    def read_by(world_size: int) -> list[int]:
        return [int(i) for rank in range(world_size) for i in rank_slice(batch_indices(seed, step, batch, size), rank, world_size)]

    assert read_by(worlds[0]) == read_by(worlds[1]) == batch_indices(seed, step, batch, size).tolist()


@given(batch=st.integers(0, 100), world_size=st.integers(1, 40))
def test_ranks_share_a_batch_evenly(batch: int, world_size: int) -> None:
    sizes = [len(rank_slice(np.arange(batch), rank, world_size)) for rank in range(world_size)]
    assert max(sizes) - min(sizes) <= 1


@given(seed=SEEDS, size=st.integers(1, 300), position=st.integers(0, 1000))
def test_d01_seeking_equals_iterating(seed: int, size: int, position: int) -> None:
    epoch = position // size
    walked = sample(seed, epoch, np.arange(size), size)[position % size]
    assert sample(seed, epoch, np.array([position % size]), size)[0] == walked == batch_indices(seed, position, 1, size)[0]


@given(seed=SEEDS, size=st.integers(1, 200), batch=st.integers(1, 16), cuts=st.tuples(*[st.integers(0, 40)] * 2))
def test_t08_three_legs_equal_one_run(seed: int, size: int, batch: int, cuts: tuple[int, int]) -> None:
    first, second = sorted(cuts)
    whole = [batch_indices(seed, step, batch, size).tolist() for step in range(40)]
    legs = [range(first), range(first, second), range(second, 40)]
    assert [batch_indices(seed, step, batch, size).tolist() for leg in legs for step in leg] == whole


def test_seeds_and_epochs_give_unlike_orders_that_look_random() -> None:
    size = 10_000
    orders = [sample(seed, epoch, np.arange(size), size) for seed in (0, 1) for epoch in (0, 1)]
    for number, order in enumerate(orders):
        assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < 0.05
        assert all(np.mean(order == other) < 0.01 for other in orders[number + 1 :])
    halves = np.histogram2d(orders[0], np.arange(size), bins=10)[0]
    assert halves.min() > 60, "samples of each tenth of the data reach each tenth of the epoch"
    assert halves.max() < 140


def test_small_permutations_are_spread_over_all_of_them() -> None:
    seen: dict[tuple[int, ...], int] = {}
    for seed in range(2400):
        order = tuple(sample(seed, 0, np.arange(4), 4).tolist())
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) >= 12, "a balanced network reaches the even permutations of so small a domain at least"
    assert max(seen.values()) < 4 * 2400 / len(seen)


def test_the_order_is_fixed_for_ever() -> None:
    """Golden: a change here would silently change what every resumed run reads."""
    assert sample(0, 0, np.arange(10), 10).tolist() == GOLDEN_EPOCH_0
    assert batch_indices(1234, 7, 8, 1000).tolist() == GOLDEN_BATCH


def test_D14_identical_runs_read_in_the_same_order() -> None:
    """Two processes of their own, with unlike hash seeds."""
    program = "from phalanx.job.data.order import batch_indices\nprint([batch_indices(7, s, 8, 1000).tolist() for s in range(300)])"
    runs = [
        subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True)
        for seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout
    assert runs[0].stdout.decode().strip() == str([batch_indices(7, step, 8, 1000).tolist() for step in range(300)])


GOLDEN_EPOCH_0 = [1, 0, 9, 3, 5, 6, 2, 8, 7, 4]
GOLDEN_BATCH = [736, 980, 94, 772, 166, 783, 432, 292]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(DataError, match="shorter than one sequence"):
        batch_indices(0, 0, 8, 0)
    with pytest.raises(DataError):
        sample(0, 0, np.array([0]), SAMPLES_MAX + 1)
    with pytest.raises(IndexError):
        sample(0, 0, np.array([10]), 10)
    with pytest.raises(IndexError):
        rank_slice(np.arange(4), 2, 2)
