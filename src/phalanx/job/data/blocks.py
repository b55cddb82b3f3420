"""How an epoch is shuffled: not at all, wholly, or by blocks, so that what is read together lies together in the store.

A shuffle by blocks takes two keyed permutations. Blocks of `block_samples` neighbouring samples are permuted as wholes; then, in
each window of `window_blocks` blocks that became neighbours, the samples. At any moment a reader needs one window of blocks, and
no block is needed in two windows of an epoch, so each is read once. A window of 512 to 1,024 blocks is reported near parity with a
full shuffle.

The last block may be short. It is short at whatever place of the block order it comes to, which the inverse of the permutation
says, so that every place, window and sample is still found by a few divisions: O(1) a sample in both directions, nothing stored.
"""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import Field

from phalanx.core.errors import DataError
from phalanx.job.data import order
from phalanx.job.data.checked import check_within
from phalanx.job.data.order import Indices

_WINDOW: Final = 0x57494E444F57
"""Tells the seed of what is permuted in windows from that of the blocks."""

_NEAR: Final = 0x4E454152
"""Tells the seeds of what stands in for a sample from those of the epoch itself."""

_NEAR_TURNS: Final = 16
"""That stay in the window: only where nearly all of it is damaged does none of them find a sample that is not."""


@dataclass(frozen=True, slots=True)
class InOrder:
    """Every epoch as the samples lie in the data: for evaluation, and for data that is shuffled already."""

    kind: Literal["in_order"] = "in_order"

    def samples(self, seed: int, epoch: int | Indices, index: Indices, num_samples: int) -> Indices:
        """The samples at these places of an epoch."""
        return index.copy()

    def places(self, seed: int, epoch: int | Indices, samples: Indices, num_samples: int) -> Indices:
        """The reverse of `samples`."""
        return samples.copy()

    def near(self, seed: int, epoch: int | Indices, samples: Indices, num_samples: int, turn: int) -> Indices:
        """Other samples of the epoch, one for each of these: any."""
        return order.sample(seed ^ (_NEAR + turn), epoch, samples, num_samples)


@dataclass(frozen=True, slots=True)
class FullShuffle:
    """Any sample anywhere in an epoch: for data in memory, on a local disk, or in a cache that holds all of it."""

    kind: Literal["full"] = "full"

    def samples(self, seed: int, epoch: int | Indices, index: Indices, num_samples: int) -> Indices:
        """The samples at these places of an epoch."""
        return order.sample(seed, epoch, index, num_samples)

    def places(self, seed: int, epoch: int | Indices, samples: Indices, num_samples: int) -> Indices:
        """The reverse of `samples`."""
        return order.place(seed, epoch, samples, num_samples)

    def near(self, seed: int, epoch: int | Indices, samples: Indices, num_samples: int, turn: int) -> Indices:
        """Other samples of the epoch, one for each of these: any."""
        return order.sample(seed ^ (_NEAR + turn), epoch, samples, num_samples)


@dataclass(frozen=True, slots=True)
class BlockShuffle:
    """Blocks permuted, then samples within windows of blocks: for data that is read from a store.

    block_samples: neighbouring samples of one block; as many as one read should fetch. window_blocks: blocks whose samples are
    mixed with one another; a reader holds about two windows. With a window over all blocks it mixes as a full shuffle does.
    """

    block_samples: int
    window_blocks: int
    kind: Literal["blocks"] = "blocks"

    def __post_init__(self) -> None:
        for field, value in (("block_samples", self.block_samples), ("window_blocks", self.window_blocks)):
            if not 1 <= value <= order.SAMPLES_MAX:
                raise DataError(field, value, f"write a whole number from 1 to {order.SAMPLES_MAX}")

    def num_blocks(self, num_samples: int) -> int:
        return -(-num_samples // self.block_samples)

    def num_windows(self, num_samples: int) -> int:
        return -(-self.num_blocks(num_samples) // self.window_blocks)

    def samples(self, seed: int, epoch: int | Indices, index: Indices, num_samples: int) -> Indices:
        """The samples at these places of an epoch."""
        epochs, laid = self._laid(seed, epoch, index, num_samples)
        mixed_index = laid.windowed(order.sample, seed, epochs, index, laid.place_of(index) // self.window_blocks)
        places = laid.place_of(mixed_index)
        return _blocks_at(seed, epochs, places, laid.num_blocks) * self.block_samples + mixed_index - laid.start(places)

    def places(self, seed: int, epoch: int | Indices, samples: Indices, num_samples: int) -> Indices:
        """The reverse of `samples`."""
        epochs, laid = self._laid(seed, epoch, samples, num_samples)
        blocks, offset = np.divmod(samples, np.int64(self.block_samples))
        places = order.place(seed, epochs, blocks, laid.num_blocks)
        return laid.windowed(order.place, seed, epochs, laid.start(places) + offset, places // self.window_blocks)

    def near(self, seed: int, epoch: int | Indices, samples: Indices, num_samples: int, turn: int) -> Indices:
        """Other samples of the epoch, one each: of the same window, whose blocks are read anyway; late turns give any."""
        if turn >= _NEAR_TURNS:
            return FULL.near(seed, epoch, samples, num_samples, turn)
        index = self.places(seed, epoch, samples, num_samples)
        epochs, laid = self._laid(seed, epoch, index, num_samples)
        windows = laid.place_of(index) // self.window_blocks
        other = laid.windowed(order.sample, seed ^ (_NEAR + turn), epochs, index, windows)
        return self.samples(seed, epoch, other, num_samples)

    def windows(self, seed: int, epoch: int | Indices, index: Indices, num_samples: int) -> Indices:
        """The number of the window in which each of these places of an epoch lies."""
        return self._laid(seed, epoch, index, num_samples)[1].place_of(index) // self.window_blocks

    def blocks_of(self, seed: int, epoch: int, window: int, num_samples: int) -> Indices:
        """The blocks that a window of an epoch is mixed from: all that its samples need, and nothing that another window needs."""
        first = window * self.window_blocks
        places = np.arange(first, min(first + self.window_blocks, self.num_blocks(num_samples)), dtype=np.int64)
        return order.sample(seed, epoch, places, self.num_blocks(num_samples))

    def _laid(self, seed: int, epoch: int | Indices, index: Indices, num_samples: int) -> tuple[Indices, "_Laid"]:
        if not 1 <= num_samples <= order.SAMPLES_MAX:
            raise DataError("samples", num_samples, f"a permutation needs 1 to {order.SAMPLES_MAX} of them")
        check_within("index", index, num_samples)
        epochs = np.broadcast_to(np.asarray(epoch, dtype=np.int64), index.shape)
        block = min(self.block_samples, num_samples)
        num_blocks = -(-num_samples // block)
        each, at = (epochs[:1], np.zeros(1, dtype=np.intp)) if _alike(epochs) else np.unique(epochs, return_inverse=True)
        last = np.full(each.shape, num_blocks - 1, dtype=np.int64)
        short = order.place(seed, each, last, num_blocks)[at]  # many samples, few epochs
        return epochs, _Laid(block, self.window_blocks, num_blocks, num_blocks * block - num_samples, short)


Shuffle = Annotated[InOrder | FullShuffle | BlockShuffle, Field(discriminator="kind")]
FULL: Final = FullShuffle()


def _alike(numbers: Indices) -> bool:
    return bool((numbers == numbers[0]).all()) if numbers.size else False


def _blocks_at(seed: int, epochs: Indices, places: Indices, num_blocks: int) -> Indices:
    """The blocks at these places of the block order. A run of samples touches few blocks, so each is looked for once."""
    if _alike(epochs) and (count := int(places.max()) - (first := int(places.min())) + 1) < places.size:
        return order.sample(seed, int(epochs[0]), np.arange(first, first + count, dtype=np.int64), num_blocks)[places - first]
    return order.sample(seed, epochs, places, num_blocks)


@dataclass(frozen=True, slots=True)
class _Laid:
    """The blocks of an epoch end to end in their permuted order. missing: what the short block lacks. short: its place, for each of
    the elements that are asked about."""

    block: int
    window: int
    num_blocks: int
    missing: int
    short: Indices

    def start(self, places: Indices) -> Indices:
        """Where the block at each place begins."""
        return places * self.block - self.missing * (places > self.short)

    def place_of(self, index: Indices) -> Indices:
        """The place of the block in which each index lies."""
        behind = index >= (self.short + 1) * self.block - self.missing
        return (index + self.missing * behind) // self.block

    def windowed(self, permute: order.Permutation, seed: int, epochs: Indices, index: Indices, windows: Indices) -> Indices:
        """Each index permuted within its window. Windows have at most four sizes: the last may have fewer blocks, and one of them
        holds the short block."""
        first = self.start(windows * self.window)
        sizes = self.start(np.minimum((windows + 1) * self.window, self.num_blocks)) - first
        keys = order.mixed(epochs, windows)
        found = np.empty_like(index)
        for size in np.unique(sizes):
            at = np.flatnonzero(sizes == size)
            found[at] = first[at] + permute(seed ^ _WINDOW, keys[at], index[at] - first[at], int(size))
        return found
