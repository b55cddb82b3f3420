"""The order by blocks: a bijection whatever the sizes, entered anywhere, and local: a window needs its own blocks only."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.errors import DataError
from phalanx.job.data import order
from phalanx.job.data.blocks import BlockShuffle, FullShuffle, InOrder, Shuffle
from tests.drawn import examples

SEEDS = st.integers(-(2**63), 2**64)
SIZES = st.one_of(st.integers(1, 40), st.integers(1, 2000))
SHUFFLES = st.one_of(
    st.builds(InOrder), st.builds(FullShuffle), st.builds(BlockShuffle, st.integers(1, 70), st.integers(1, 12))
)  # fmt: skip
BY_BLOCKS = st.builds(BlockShuffle, st.integers(1, 70), st.integers(1, 12))


@given(seed=SEEDS, epoch=st.integers(0, 10**6), size=SIZES, shuffle=SHUFFLES)
def test_an_epoch_of_any_shuffle_is_a_bijection_and_has_a_reverse(seed: int, epoch: int, size: int, shuffle: Shuffle) -> None:
    index = np.arange(size)
    found = shuffle.samples(seed, epoch, index, size)
    assert sorted(found.tolist()) == index.tolist()
    assert shuffle.places(seed, epoch, found, size).tolist() == index.tolist()


@given(seed=SEEDS, size=SIZES, shuffle=SHUFFLES, data=st.data())
def test_places_of_several_epochs_at_once_are_those_of_each_alone(
    seed: int, size: int, shuffle: Shuffle, data: st.DataObject
) -> None:
    pairs = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, size - 1)), min_size=1, max_size=6))
    epochs, index = (np.array(column) for column in zip(*pairs, strict=True))
    alone = [int(shuffle.samples(seed, epoch, np.array([at]), size)[0]) for epoch, at in pairs]
    assert shuffle.samples(seed, epochs, index, size).tolist() == alone


@given(seed=SEEDS, shuffle=BY_BLOCKS, size=st.integers(2**40, order.SAMPLES_MAX), data=st.data())
def test_a_seek_needs_no_walk_however_large_the_data(seed: int, shuffle: BlockShuffle, size: int, data: st.DataObject) -> None:
    index = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=5, unique=True)))
    found = shuffle.samples(seed, 3, index, size)
    assert found.min() >= 0
    assert found.max() < size
    assert shuffle.places(seed, 3, found, size).tolist() == index.tolist()


@settings(max_examples=examples(50))
@given(seed=SEEDS, size=SIZES, shuffle=BY_BLOCKS, epoch=st.integers(0, 9))
def test_the_windows_of_an_epoch_share_the_blocks_among_them(seed: int, size: int, shuffle: BlockShuffle, epoch: int) -> None:
    index = np.arange(size)
    windows = shuffle.windows(seed, epoch, index, size)
    blocks = shuffle.samples(seed, epoch, index, size) // shuffle.block_samples
    assert windows.tolist() == sorted(windows.tolist())
    assert int(windows[-1]) + 1 == shuffle.num_windows(size)
    named = [shuffle.blocks_of(seed, epoch, window, size) for window in range(shuffle.num_windows(size))]
    for window, wanted in enumerate(named):
        assert sorted(set(blocks[windows == window].tolist())) == sorted(wanted.tolist())
        assert len(wanted) <= shuffle.window_blocks
    assert sorted(np.concatenate(named).tolist()) == list(range(shuffle.num_blocks(size)))


@given(seed=SEEDS, size=SIZES, epoch=st.integers(0, 10**6))
def test_the_full_shuffle_is_the_order_that_runs_have_had_so_far(seed: int, size: int, epoch: int) -> None:
    index = np.arange(size)
    assert FullShuffle().samples(seed, epoch, index, size).tolist() == order.sample(seed, epoch, index, size).tolist()


def test_the_short_block_comes_at_any_place_and_samples_spread_over_their_window() -> None:
    shuffle, size = BlockShuffle(100, 20), 9_950
    short = [int(np.flatnonzero(shuffle.samples(seed, 0, np.arange(size), size) >= 9_900)[0]) // 2000 for seed in range(60)]
    assert set(short) == set(range(5)), "in each of the five windows for some seed"
    found = shuffle.samples(1, 0, np.arange(size), size)
    blocks = shuffle.blocks_of(1, 0, 0, size)
    halves = np.histogram2d(np.searchsorted(np.sort(blocks), found[:1900] // 100) // 5, np.arange(1900) // 475, bins=4)[0]
    assert halves.min() > 80, "samples of each quarter of a window's blocks come in each quarter of it"
    assert abs(np.corrcoef(blocks, np.arange(len(blocks)))[0, 1]) < 0.6


def test_orders_by_blocks_are_fixed_for_ever_and_unlike() -> None:
    """Golden: a change here would silently change what every resumed run reads."""
    shuffle = BlockShuffle(4, 2)
    assert shuffle.samples(0, 0, np.arange(14), 14).tolist() == GOLDEN
    assert shuffle.samples(0, 1, np.arange(14), 14).tolist() != GOLDEN
    assert shuffle.samples(1, 0, np.arange(14), 14).tolist() != GOLDEN


GOLDEN = [9, 12, 11, 10, 8, 13, 2, 3, 5, 1, 7, 4, 0, 6]


@pytest.mark.parametrize(("block", "window", "field"), [(0, 1, "block_samples"), (1, 0, "window_blocks"), (-1, 1, "block_samples")])
def test_a_shuffle_that_cannot_be_is_refused(block: int, window: int, field: str) -> None:
    with pytest.raises(DataError, match=field):
        BlockShuffle(block, window)


def test_what_lies_outside_the_data_is_refused() -> None:
    with pytest.raises(IndexError):
        BlockShuffle(4, 2).samples(0, 0, np.array([14]), 14)
    with pytest.raises(DataError, match="samples"):
        BlockShuffle(4, 2).samples(0, 0, np.array([0]), 0)
