"""The order of the data is a function of (seed, epoch, global sample index): nothing is stored, anything can be resumed.

Global sample g of a run is sample `sample(seed, g // num_samples, g % num_samples, num_samples)` of the split, whatever the world
size; step s (counted from 0) is the global samples [s * global_batch, (s + 1) * global_batch), and rank r of w takes the r-th
contiguous part of them. For one global batch the world size therefore decides only who reads a sample. A run
keeps its global batch when its world size changes.

Each epoch is a keyed permutation: a balanced Feistel network (Luby and Rackoff, SIAM J. Computing 17(2), 1988) on the smallest
even number of bits that covers the split, restricted to [0, num_samples) by cycle walking (Black and Rogaway, CT-RSA 2002),
which takes under 4 passes on average. The round function is the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014,
with Stafford's constants "Mix13"). It shuffles; it is not meant to keep secrets.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError

Indices = NDArray[np.int64]
_Words = NDArray[np.uint64]
Permutation = Callable[[int, int | Indices, Indices, int], Indices]
"""`sample` or `place`."""

SAMPLES_MAX: Final = 2**62
_ROUNDS: Final = 8
"""Four make a permutation look random to one who sees no keys; eight leave a margin for the very small domains of tests."""
_GOLDEN: Final = 0x9E3779B97F4A7C15
_WORD: Final = 2**64 - 1
_STEPS: Final = np.array([number * _GOLDEN & _WORD for number in range(1, _ROUNDS + 1)], dtype=np.uint64)
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))
_FACTORS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def sample(seed: int, epoch: int | Indices, index: Indices, num_samples: int) -> Indices:
    """The samples at these places of [0, num_samples) of an epoch, or each of its own. O(1) a sample."""
    return _walked(_feistel, seed, epoch, index, num_samples)


def place(seed: int, epoch: int | Indices, samples: Indices, num_samples: int) -> Indices:
    """The reverse of `sample`: where in an epoch these samples come. O(1) a sample."""
    return _walked(_unfeistel, seed, epoch, samples, num_samples)


def mixed(*numbers: int | Indices) -> Indices:
    """One 64-bit number for each row of these, which looks random: a key of its own for what two or more numbers name."""
    words = np.zeros(1, dtype=np.uint64)
    for number in numbers:
        rows = np.array([number & _WORD], dtype=np.uint64) if isinstance(number, int) else number.astype(np.uint64)
        words = _mix(words + rows + np.uint64(_GOLDEN))
    return words.astype(np.int64)


def batch_indices(seed: int, step: int, global_batch: int, num_samples: int) -> Indices:
    """Samples of the `step`-th global batch, counted from 0, in order: int64 of shape [global_batch].

    A batch that crosses the end of an epoch continues in the next. Raises DataError when the split has no sample.
    """
    if num_samples < 1:
        raise DataError("samples", num_samples, "the split is shorter than one sequence; prepare more text or shorten `sequence`")
    positions = np.arange(step * global_batch, (step + 1) * global_batch, dtype=np.int64)
    epochs, within = np.divmod(positions, np.int64(num_samples))
    return sample(seed, epochs, within, num_samples)


def rank_slice(batch: Indices, rank: int, world_size: int) -> Indices:
    """The contiguous part of a global batch that `rank` reads; parts differ by at most one sample and make up the batch."""
    if not 0 <= rank < world_size:
        raise IndexError(f"rank {rank} is outside a world of {world_size}")
    return batch[len(batch) * rank // world_size : len(batch) * (rank + 1) // world_size]


_Network = Callable[[_Words, list[_Words], int], _Words]


def _walked(network: _Network, seed: int, epoch: int | Indices, index: Indices, num_samples: int) -> Indices:
    """Restricting a permutation by walking its cycle works alike in both directions."""
    if not 1 <= num_samples <= SAMPLES_MAX:
        raise DataError("samples", num_samples, f"a permutation needs 1 to {SAMPLES_MAX} of them")
    if index.size and not (index.min() >= 0 and index.max() < num_samples):
        raise IndexError(f"an index lies outside [0, {num_samples})")
    epochs = np.asarray(epoch, dtype=np.int64).reshape(-1)
    one = epochs.size > 0 and bool((epochs == epochs[0]).all())  # mostly so, and then each round has one key for all
    keys = _round_keys(seed, (epochs[:1] if one else epochs).astype(np.uint64))
    words = index.astype(np.uint64)
    half_bits = max(1, ((num_samples - 1).bit_length() + 1) // 2)
    words = network(words, keys, half_bits)
    while (outside := np.flatnonzero(words >= np.uint64(num_samples))).size:
        words[outside] = network(words[outside], keys if one else [key[outside] for key in keys], half_bits)
    return words.astype(np.int64)


def _feistel(words: _Words, keys: list[_Words], half_bits: int) -> _Words:
    bits, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = words >> bits, words & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << bits) | right


def _unfeistel(words: _Words, keys: list[_Words], half_bits: int) -> _Words:
    bits, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = words >> bits, words & mask
    for key in reversed(keys):
        left, right = right ^ (_mix(left ^ key) & mask), left
    return (left << bits) | right


def _round_keys(seed: int, epochs: _Words) -> list[_Words]:
    """One key for each round and element; neighbouring seeds and epochs share none."""
    start = _mix(epochs * np.uint64(_GOLDEN) + _mix(np.array([seed & _WORD], dtype=np.uint64)))
    return list(_mix(start + _STEPS[:, None]))


def _mix(words: _Words) -> _Words:
    words = words ^ (words >> _SHIFTS[0])
    words *= _FACTORS[0]
    words ^= words >> _SHIFTS[1]
    words *= _FACTORS[1]
    words ^= words >> _SHIFTS[2]
    return words
