"""The order of a mixture: global sample g -> which source, which of its epochs, which of its samples. O(1), and nothing stored.

Each source has an endless order of its own: whole epochs, one after the other. Turns are shared out by `shares`, and whoever has a
turn gives its next sample; a change of weights changes who has turns, never where a source goes on. So epochs of each source are
whole whatever the weights do, no source ends before the others, and any stretch of samples has each source's share but for a few.

Within a batch the samples are permuted, so that no rank reads more of one source than another does. A batch is never mixed from two
sets of weights.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np

from phalanx.core import wire
from phalanx.core.errors import DataError
from phalanx.job.data import order
from phalanx.job.data.blocks import Shuffle
from phalanx.job.data.checked import integer
from phalanx.job.data.draws import Draws, check_batch, check_positions, check_samples, digest
from phalanx.job.data.mixture import Mixture
from phalanx.job.data.order import Indices
from phalanx.job.data.shares import Shares, whole_weights

FORMAT: Final = 1
"""Of the order: the same mixture under another one reads other samples."""

_SLOTS: Final = 0x534C4F5453
"""Tells the seed of the places within a batch from those of the sources."""


@dataclass(frozen=True, slots=True)
class _Segment:
    """From one change of weights to the next. active: numbers of the sources that have a share. base: samples of every source that
    were read before."""

    from_step: int
    active: Indices
    shares: Shares
    base: Indices


class MixedOrder:
    """The order of a mixture over sources of known sizes, for one seed and global batch; a run keeps both.

    sizes: samples of each source. cuts: how samples of a source are made of its documents, such as `Packing.name`; a cursor tells
    by it when that was changed. Raises DataError for a source without samples.
    """

    def __init__(
        self, mixture: Mixture, sizes: Mapping[str, int], *, seed: int, global_batch: int, cuts: Mapping[str, str] | None = None
    ) -> None:
        check_batch(global_batch)
        integer("seed", seed)
        self.mixture = mixture
        self.names = tuple(source.name for source in mixture.sources)
        _check_sizes(self.names, sizes)
        self.sizes = np.array([sizes[name] for name in self.names], dtype=np.int64)
        self.seed, self.global_batch, self.cuts = seed, global_batch, dict(cuts or {})
        self._seeds = [_seed(seed, name) for name in self.names]
        self._segments = self._segmented(sizes)
        self._starts = np.array([segment.from_step * global_batch for segment in self._segments], dtype=np.int64)

    def draws(self, positions: Indices) -> Draws:
        """What is read at these global samples. Ask for many at once: a call has a fixed cost of some tenths of a millisecond."""
        check_positions(positions)
        source, turn = np.empty_like(positions), np.empty_like(positions)
        number = np.searchsorted(self._starts, positions, side="right") - 1
        for each in np.unique(number):
            rows = np.flatnonzero(number == each)
            source[rows], turn[rows] = self._turns(self._segments[each], positions[rows])
        epoch, index = np.divmod(turn, self.sizes[source])
        sample = np.empty_like(positions)
        for each, rows in _by_source(source):
            shuffle: Shuffle = self.mixture.sources[each].shuffle
            sample[rows] = shuffle.samples(self._seeds[each], epoch[rows], index[rows], int(self.sizes[each]))
        return Draws(source, epoch, sample)

    def near(self, draws: Draws, turn: int) -> Indices:
        """Another sample for each of these, of the same source."""
        found = np.empty_like(draws.sample)
        for each, rows in _by_source(draws.source):
            shuffle: Shuffle = self.mixture.sources[each].shuffle
            of = (draws.epoch[rows], draws.sample[rows], int(self.sizes[each]))
            found[rows] = shuffle.near(self._seeds[each], *of, turn)
        return found

    def shares(self, step: int) -> dict[str, Fraction]:
        """The exact share of each source at a step; 0 where it has none."""
        segment = self._at(step * self.global_batch)
        given = dict.fromkeys(self.names, Fraction(0))
        return given | {name: Fraction(weight, segment.shares.total) for name, weight in self._weights(segment)}

    def drawn(self, num_steps: int) -> dict[str, int]:
        """How many samples of each source the first `num_steps` batches have."""
        return dict(zip(self.names, self._drawn(self._at(num_steps * self.global_batch), num_steps).tolist(), strict=True))

    def drawn_of(self, name: str, num_steps: int) -> int:
        """How many samples of one source the first `num_steps` batches have, sooner known than those of all."""
        segment, number = self._at(num_steps * self.global_batch), self.names.index(name)
        active = np.flatnonzero(segment.active == number)
        turns = (num_steps - segment.from_step) * self.global_batch
        return int(segment.base[number]) + (segment.shares.taken(int(active[0]), turns) if active.size else 0)

    def fingerprint(self, delivered: int) -> str:
        """Names the order as far as it decided about the first `delivered` global samples: 64 hex digits.

        A change of weights that is declared for later, or a source that is added for later, does not change it; another past does.
        """
        past, read = self._past(delivered), self.sources_read(delivered)
        facts: dict[str, Any] = {
            "format": FORMAT, "seed": self.seed, "global_batch": self.global_batch,
            "weights": [[segment.from_step, *self._weights(segment)] for segment in past],
            "sources": {
                name: [size, self.cuts.get(name, ""), wire.plain(Shuffle, self.mixture.sources[k].shuffle)]
                for k, (name, size) in enumerate(zip(self.names, self.sizes.tolist(), strict=True)) if name in read
            },
        }  # fmt: skip
        return digest(facts)

    def sources_read(self, delivered: int) -> tuple[str, ...]:
        """Those with a share in the first `delivered` global samples."""
        read = {int(k) for segment in self._past(delivered) for k in segment.active}
        return tuple(name for k, name in enumerate(self.names) if k in read)

    def _turns(self, segment: _Segment, positions: Indices) -> tuple[Indices, Indices]:
        """Each sample's source, and how many samples of that source come before it."""
        if len(segment.active) > 1:
            steps, slots = np.divmod(positions, np.int64(self.global_batch))
            slots = order.sample(self.seed ^ _SLOTS, steps, slots, self.global_batch)
            positions = steps * self.global_batch + slots
        takers, turns = segment.shares.takers(positions - segment.from_step * self.global_batch)
        source = segment.active[takers]
        return source, turns + segment.base[source]

    def _weights(self, segment: _Segment) -> list[tuple[str, int]]:
        return [(self.names[k], weight) for k, weight in zip(segment.active, segment.shares.weights, strict=True)]

    def _past(self, delivered: int) -> list[_Segment]:
        return [segment for segment in self._segments if segment.from_step * self.global_batch < delivered]

    def _at(self, position: int) -> _Segment:
        return self._segments[int(np.searchsorted(self._starts, position, side="right")) - 1]

    def _drawn(self, segment: _Segment, num_steps: int) -> Indices:
        drawn = segment.base.copy()
        drawn[segment.active] += segment.shares.counts((num_steps - segment.from_step) * self.global_batch)
        return drawn

    def _segmented(self, sizes: Mapping[str, int]) -> list[_Segment]:
        weights = [(0, self.mixture.weights(sizes))]
        weights += [(change.from_step, self.mixture.changed(change)) for change in self.mixture.changes]
        segments: list[_Segment] = []
        base = np.zeros(len(self.names), dtype=np.int64)
        for from_step, row in weights:
            if segments:
                base = self._drawn(segments[-1], from_step)
            active = [number for number, weight in enumerate(row) if weight]
            shares = Shares(whole_weights([row[number] for number in active]))
            segments.append(_Segment(from_step, np.array(active, dtype=np.int64), shares, base))
        return segments


def _by_source(source: Indices) -> Iterator[tuple[int, Indices]]:
    """Each source that there is, and its rows."""
    return ((int(each), np.flatnonzero(source == each)) for each in np.unique(source))


def _seed(seed: int, name: str) -> int:
    """Of a source's own order, by its name: other sources may come and go beside it."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big")


def _check_sizes(names: tuple[str, ...], sizes: Mapping[str, int]) -> None:
    for name in names:
        if name not in sizes:
            raise DataError("sizes", name, "this source of the mixture has no data; name its folder, or take it out of the mixture")
        check_samples(name, sizes[name])
    if extra := sorted(set(sizes) - set(names)):
        raise DataError("sizes", extra[0], f"is no source of this mixture; it has {', '.join(names)}")
