"""An order in which nobody reads damaged blocks: each of their samples is replaced by another one.

What stands in for a sample is a function of the order, of the blocks that are set aside, and of the global sample: another sample
of the same source from the same stretch of its epoch, found by keyed permutations, whose own place in the epoch stays what it was.
So no turn is shifted, and every rank, resume and world size that knows the blocks reads the same. Blocks are set aside as of a step
that nobody has trained on; what came before it stays as it was read.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from phalanx.core.errors import DataError
from phalanx.job.data.bad_block import Block
from phalanx.job.data.draws import DataOrder, Draws, digest
from phalanx.job.data.order import Indices

Touching = Mapping[str, Sequence[tuple[int, int]]]
"""By source, the stretches [first, stop) of its samples that need a block."""

SHARE_MAX: Final = 0.01
"""Of the samples of a source. What has lost more than this is another data set, and somebody should look at its disk."""

BLOCKS_MAX: Final = 100
"""They go along with every checkpoint and snapshot, at 200 bytes each."""

ANY_SHARE: Final = 1 - 2**-30
"""For what was set aside already: whoever did that was asked."""

_SHOWN: Final = 12
_TURNS: Final = 64
"""Of permutations that are asked for a sample that is whole; then the next one that is will do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """A damaged block, and what is not read because of it.

    source: name. shard, block: see `Block`. samples: stretches [first, stop) of the source's samples that need the block. since:
    the global sample from which on none of them is read, the first of a step.
    """

    source: str
    shard: str
    block: int
    samples: tuple[tuple[int, int], ...]
    since: int


@dataclass(frozen=True, slots=True)
class _Stretches:
    """Disjoint stretches of samples of one source, ascending."""

    begins: Indices
    ends: Indices

    @classmethod
    def over(cls, stretches: Iterable[tuple[int, int]]) -> "_Stretches":
        begins: list[int] = []
        ends: list[int] = []
        for begin, end in sorted(stretches):
            if ends and begin <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            else:
                begins.append(begin)
                ends.append(end)
        return cls(np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64))

    @property
    def num_samples(self) -> int:
        return int((self.ends - self.begins).sum())

    def hold(self, samples: Indices) -> Indices:
        """Which rows of `samples` lie in a stretch."""
        at = np.searchsorted(self.begins, samples, side="right") - 1
        return np.flatnonzero((at >= 0) & (samples < self.ends[at]))

    def next_outside(self, samples: Indices, num_samples: int) -> Indices:
        """For samples that lie in a stretch, the first one behind it, from the end of the source on to its beginning."""
        after = self.ends[np.searchsorted(self.begins, samples, side="right") - 1]
        first = int(self.ends[0]) if self.begins.size and self.begins[0] == 0 else 0
        return np.where(after < num_samples, after, first)


class Quarantined:
    """`order` without what is set aside; itself an order. Raises DataError for what cannot be set aside in this order, and where
    more than `share_max` of a source would be."""

    def __init__(self, order: DataOrder, set_aside: Iterable[SetAside], share_max: float = SHARE_MAX) -> None:
        if not 0 <= share_max < 1:
            raise DataError("share_max", share_max, "write a number from 0 up to, but not, 1")
        self.order: DataOrder = order.order if isinstance(order, Quarantined) else order
        self.share_max = share_max
        self.set_aside = tuple(sorted(set(set_aside), key=lambda one: (one.since, one.source, one.shard, one.block)))
        self._sinces = sorted({one.since for one in self.set_aside})
        self._numbers = {name: number for number, name in enumerate(order.names)}
        self._check()
        self._levels = [self._level(since) for since in self._sinces]
        for level in self._levels[-1:]:
            self._check_shares(level)
        if len(self.set_aside) > BLOCKS_MAX:
            fix = f"at most {BLOCKS_MAX} damaged blocks are set aside; restore the shards (`phalanx data verify DIR` names them)"
            raise DataError("quarantine", f"{len(self.set_aside)} blocks", fix)

    @property
    def names(self) -> tuple[str, ...]:
        return self.order.names

    @property
    def global_batch(self) -> int:
        return self.order.global_batch

    @property
    def sizes(self) -> Indices:
        return self.order.sizes

    def draws(self, positions: Indices) -> Draws:
        """What is read at these global samples."""
        found = self.order.draws(positions)
        if not self._sinces or not positions.size or int(positions.max()) < self._sinces[0]:
            return found
        sample, level = found.sample.copy(), np.searchsorted(self._sinces, positions, side="right")
        for each in np.unique(level[level > 0]).tolist():
            for source, bad in self._levels[each - 1].items():
                rows = np.flatnonzero((level == each) & (found.source == source))
                held = rows[bad.hold(found.sample[rows])]
                if held.size:
                    sample[held] = self._instead(found.take(held), bad)
        return Draws(found.source, found.epoch, sample)

    def near(self, draws: Draws, turn: int) -> Indices:
        return self.order.near(draws, turn)

    def fingerprint(self, delivered: int) -> str:
        """Names the order as far as it decided about the first `delivered` global samples: while nothing was set aside, the one
        that it is made over."""
        past = [[one.source, one.shard, one.block, one.samples, one.since] for one in self.set_aside if one.since < delivered]
        base = self.order.fingerprint(delivered)
        return digest({"quarantine": 1, "order": base, "set_aside": past}) if past else base

    def sources_read(self, delivered: int) -> tuple[str, ...]:
        return self.order.sources_read(delivered)

    def also(self, blocks: Mapping[Block, Touching], step: int) -> "Quarantined":
        """With these blocks set aside too, as of a step, counted from 0, that no rank has trained on. What is set aside already
        stays as it is. Raises DataError where that is too much."""
        known = {(one.source, one.shard, one.block) for one in self.set_aside}
        since = step * self.global_batch
        new = [
            SetAside(source=source, shard=block.shard, block=block.block, samples=tuple(samples), since=since)
            for block, touching in sorted(blocks.items())
            for source, samples in touching.items()
            if samples and (source, block.shard, block.block) not in known
        ]
        return Quarantined(self.order, [*self.set_aside, *new], self.share_max)

    def _instead(self, draws: Draws, bad: _Stretches) -> Indices:
        """Of one source, what is read instead of these."""
        found, open_ = draws.sample.copy(), np.arange(len(draws))
        for turn in range(_TURNS):
            found[open_] = self.order.near(draws.take(open_), turn)
            open_ = open_[bad.hold(found[open_])]
            if not open_.size:
                return found
        found[open_] = bad.next_outside(found[open_], int(self.sizes[draws.source[0]]))
        return found

    def _level(self, since: int) -> Mapping[int, _Stretches]:
        """What is set aside from a global sample on, by number of its source."""
        stretches: dict[int, list[tuple[int, int]]] = {}
        for one in self.set_aside:
            if one.since <= since:
                stretches.setdefault(self._numbers[one.source], []).extend(one.samples)
        return {number: _Stretches.over(each) for number, each in stretches.items()}

    def _check(self) -> None:
        for one in self.set_aside:
            named = f"block {one.block} of shard {one.shard[:_SHOWN]}"
            if one.source not in self._numbers:
                fix = f"this order has no such source; it has {', '.join(self.names)}"
                raise DataError(f"source of {named}", one.source, fix)
            if one.since < 0 or one.since % self.global_batch:
                fix = f"blocks are set aside as of a step's first sample, and a step has {self.global_batch}; keep the global batch"
                raise DataError(f"since of {named}", one.since, fix)
            size = int(self.sizes[self._numbers[one.source]])
            if not one.samples or any(not 0 <= begin < end <= size for begin, end in one.samples):
                fix = f"{one.source} has {size} samples; go on with the data, sequence and packing that the run began with"
                raise DataError(f"samples of {named}", list(one.samples), fix)

    def _check_shares(self, level: Mapping[int, _Stretches]) -> None:
        for number, bad in level.items():
            size, lost = int(self.sizes[number]), bad.num_samples
            if lost > self.share_max * size:
                fix = (
                    f"{lost} of {size} samples lie in damaged blocks, and {100 * self.share_max:g} % may be replaced; restore its "
                    f"shards (`phalanx data verify DIR` names them){_or_else(lost, size)}"
                )
                raise DataError(f"quarantine of {self.names[number]}", f"{100 * lost / size:.3g} %", fix)


def _or_else(lost: int, size: int) -> str:
    """What else would do: a block is a MiB, which may be all of a small data set."""
    if lost == size:
        return "; not one of its samples is whole, so nothing could stand in for them"
    enough = math.ceil(1000 * (lost + 1) / size) / 1000
    return (
        f", or raise `bad_data_max` of the job's data, or `share_max` of `BadData` from Python, to {enough:g}" if enough < 1 else ""
    )


def num_samples(set_aside: Iterable[SetAside]) -> int:
    """Of one source, that need any of these."""
    return _Stretches.over(stretch for one in set_aside for stretch in one.samples).num_samples


def set_aside_of(order: DataOrder) -> tuple[SetAside, ...]:
    """What an order does not read."""
    return order.set_aside if isinstance(order, Quarantined) else ()


def quarantined(order: DataOrder, set_aside: Iterable[SetAside], share_max: float = SHARE_MAX) -> DataOrder:
    """The order without these; as it is where there are none."""
    found = Quarantined(order, set_aside, share_max)
    return found if found.set_aside else order
