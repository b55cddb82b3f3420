"""What an order gives, whatever it is made of, and the plain order of one data set."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from phalanx.core import wire
from phalanx.core.errors import DataError
from phalanx.job.data.blocks import FULL, Shuffle
from phalanx.job.data.checked import integer, order_of, rank_of, shown, whole
from phalanx.job.data.order import SAMPLES_MAX, Indices, rank_slice


@dataclass(frozen=True, slots=True)
class Draws:
    """Samples in the order in which they are read, a row each. source: number of the source. epoch: of the source."""

    source: Indices
    epoch: Indices
    sample: Indices

    def __len__(self) -> int:
        return len(self.sample)

    def take(self, rows: Indices) -> "Draws":
        """These rows, in this order."""
        return Draws(self.source[rows], self.epoch[rows], self.sample[rows])


class DataOrder(Protocol):
    """From the number of a global sample to what it is; a run keeps its order and its global batch."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the sources, by number."""

    @property
    def global_batch(self) -> int:
        """Samples of one step over all ranks."""

    @property
    def sizes(self) -> Indices:
        """Samples of each source, by its number."""

    def draws(self, positions: Indices) -> Draws:
        """What is read at these global samples."""

    def near(self, draws: Draws, turn: int) -> Indices:
        """Another sample for each of these, of the same source, out of what is read at about that time of its epoch anyway: by a
        permutation of its own for each turn."""

    def fingerprint(self, delivered: int) -> str:
        """Names the order as far as it decided about the first `delivered` global samples."""

    def sources_read(self, delivered: int) -> tuple[str, ...]:
        """Those that may have samples among the first `delivered`."""


def positions(order: DataOrder, step: int, num_steps: int = 1) -> Indices:
    """The global samples of `num_steps` batches from `step` on, counted from 0. `rank_slice` gives a rank its part of one."""
    return np.arange(step * order.global_batch, (step + num_steps) * order.global_batch, dtype=np.int64)


def batch(order: DataOrder, step: int) -> Draws:
    """The global batch of a step, counted from 0, in order."""
    return order.draws(positions(order, step))


def part_of(order: DataOrder, rank: int, world_size: int) -> tuple[int, int]:
    """The rank and the world as they were given. Raises DataError for what is no order, for a rank outside its world, and for more
    ranks than a batch has rows: those without one would get empty batches."""
    order_of(order)
    rank, world_size = rank_of(rank, world_size)
    if order.global_batch < world_size:
        fix = f"has fewer rows than its {world_size} ranks; make the order with a global batch of {world_size} or more rows"
        raise DataError("global_batch", order.global_batch, f"{fix}, or read by {order.global_batch} ranks at most")
    return rank, world_size


def rows_of_rank(order: DataOrder, rank: int = 0, world_size: int = 1) -> Callable[[int], Indices]:
    """From a step, counted from 0, to the samples of its batch that `rank` reads, in order. Raises DataError for an order over
    several sources, whose samples are not of one data set, and as `part_of` does."""
    rank, world_size = part_of(order, rank, world_size)
    if len(order.names) != 1:
        raise DataError("order", ", ".join(order.names), "is over several sources; a reader of one data set takes an order over it")
    return lambda step: rank_slice(batch(order, step).sample, rank, world_size)


def blocks_needed(draws: Draws, block_samples: Sequence[int]) -> tuple[Indices, Indices, Indices]:
    """Which blocks these samples lie in, in the order in which they are first needed: source, block, and the row of the first need.

    block_samples: of each source. Asked for the steps ahead, it says what to fetch next, and which of what is held is needed last.
    """
    blocks = draws.sample // np.asarray(block_samples, dtype=np.int64)[draws.source]
    _, rows = np.unique(np.stack([draws.source, blocks]), axis=1, return_index=True)
    rows = np.sort(rows).astype(np.int64)
    return draws.source[rows], blocks[rows], rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainOrder:
    """One data set, epoch after epoch: with the full shuffle what `batch_indices` has always given.

    name: of the data set, for errors and records; it does not decide the order. cut: how samples are made of documents, such as
    `Packing.name`; a cursor tells by it when that was changed.
    """

    num_samples: int
    seed: int
    global_batch: int
    shuffle: Shuffle = FULL
    name: str = "data"
    cut: str = ""

    def __post_init__(self) -> None:
        check_batch(self.global_batch)
        check_samples(self.name, self.num_samples)
        integer("seed", self.seed)
        check_shuffle(self.shuffle)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def sizes(self) -> Indices:
        return np.array([self.num_samples], dtype=np.int64)

    def near(self, draws: Draws, turn: int) -> Indices:
        """Another sample for each of these."""
        return self.shuffle.near(self.seed, draws.epoch, draws.sample, self.num_samples, turn)

    def draws(self, positions: Indices) -> Draws:
        """What is read at these global samples. Ask for many at once: a call has a fixed cost of a tenth of a millisecond or
        two."""
        check_positions(positions)
        epoch, index = np.divmod(positions, np.int64(self.num_samples))
        sample = self.shuffle.samples(self.seed, epoch, index, self.num_samples)
        return Draws(np.zeros_like(positions), epoch, sample)

    def fingerprint(self, delivered: int) -> str:
        """Names the order: 64 hex digits."""
        facts = {"seed": self.seed, "global_batch": self.global_batch, "cut": self.cut, "samples": self.num_samples}
        return digest({"plain": 1, **facts, "shuffle": wire.plain(Shuffle, self.shuffle)})

    def sources_read(self, delivered: int) -> tuple[str, ...]:
        """The one, once anything was read."""
        return self.names if delivered else ()


def digest(facts: dict[str, Any]) -> str:
    """A name for a configuration: 64 hex digits."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def check_batch(global_batch: int) -> None:
    """Raises DataError for one without samples."""
    whole("global_batch", global_batch)


def check_samples(name: str, num_samples: int) -> None:
    """Raises DataError for a source that has none."""
    if not 1 <= whole(f"samples of {name}", num_samples, 0) <= SAMPLES_MAX:
        raise DataError(f"samples of {name}", num_samples, f"a source needs 1 to {SAMPLES_MAX}; prepare more text for it")


def check_shuffle(shuffle: Shuffle) -> None:
    """Raises DataError for what is none, such as the word that a job spec has for one."""
    if not hasattr(shuffle, "samples"):
        raise DataError("shuffle", shown(shuffle), "give FULL, InOrder() or BlockShuffle(...) of `job.data.blocks`")


def check_positions(positions: Indices) -> None:
    """Raises IndexError for global samples that no run can have."""
    if positions.size and not (positions.min() >= 0 and positions.max() < SAMPLES_MAX):
        raise IndexError(f"a global sample lies outside [0, {SAMPLES_MAX})")
