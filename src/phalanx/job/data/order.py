"""The order of the data is a function of (seed, epoch, global sample index): nothing is stored, anything can be resumed.

Global sample g of a run is sample `permute(seed, g // num_samples, g % num_samples)` of the split; step s (counted from 0) is
the global samples [s * global_batch, (s + 1) * global_batch), and rank r of w takes the r-th contiguous part of them. World
size therefore decides only who reads a sample, never which samples a step has.

Each epoch is a keyed permutation: a balanced Feistel network (Luby and Rackoff, SIAM J. Computing 17(2), 1988) on the smallest
even number of bits that covers the split, restricted to [0, num_samples) by cycle walking (Black and Rogaway, CT-RSA 2002),
which takes under 4 passes on average. The round function is the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014,
with Stafford's constants "Mix13"). It shuffles; it is not meant to keep secrets.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError

Indices = NDArray[np.int64]
_Words = NDArray[np.uint64]

SAMPLES_MAX: Final = 2**62
_ROUNDS: Final = 8
"""Four make a permutation look random to one who sees no keys; eight leave a margin for the very small domains of tests."""
_GOLDEN: Final = 0x9E3779B97F4A7C15
_WORD: Final = 2**64 - 1


def permuted(seed: int, epoch: int, index: int, size: int) -> int:
    """Where `index` of [0, size) goes in this epoch. O(1)."""
    return int(permute(seed, epoch, np.array([index], dtype=np.int64), size)[0])


def permute(seed: int, epochs: int | Indices, indices: Indices, size: int) -> Indices:
    """`permuted` of many indices at once, all of one epoch or each of its own."""
    if not 1 <= size <= SAMPLES_MAX:
        raise DataError("samples", size, f"a permutation needs 1 to {SAMPLES_MAX} of them")
    if indices.size and not (indices.min() >= 0 and indices.max() < size):
        raise IndexError(f"an index lies outside [0, {size})")
    words = indices.astype(np.uint64)
    keys = _round_keys(seed, np.broadcast_to(np.asarray(epochs, dtype=np.int64), indices.shape).astype(np.uint64))
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    words = _feistel(words, keys, half_bits)
    while (outside := np.flatnonzero(words >= np.uint64(size))).size:
        words[outside] = _feistel(words[outside], [key[outside] for key in keys], half_bits)
    return words.astype(np.int64)


def sample_at(seed: int, epoch: int, global_index: int, num_samples: int) -> int:
    """The sample at position `global_index` of the run, which must lie in `epoch`: both are given so that a wrong cursor shows."""
    if num_samples < 1 or global_index // num_samples != epoch:
        raise DataError("epoch", epoch, f"global sample {global_index} of {num_samples} an epoch does not lie in it")
    return permuted(seed, epoch, global_index % num_samples, num_samples)


def batch_indices(seed: int, step: int, global_batch: int, num_samples: int) -> Indices:
    """Samples of the `step`-th global batch, counted from 0, in order: int64 of shape [global_batch].

    A batch that crosses the end of an epoch continues in the next. Raises DataError when the split has no sample.
    """
    if num_samples < 1:
        raise DataError("samples", num_samples, "the split is shorter than one sequence; prepare more text or shorten `sequence`")
    positions = np.arange(step * global_batch, (step + 1) * global_batch, dtype=np.int64)
    epochs, within = np.divmod(positions, np.int64(num_samples))
    return permute(seed, epochs, within, num_samples)


def rank_slice(batch: Indices, rank: int, world_size: int) -> Indices:
    """The contiguous part of a global batch that `rank` reads; parts differ by at most one sample and make up the batch."""
    if not 0 <= rank < world_size:
        raise IndexError(f"rank {rank} is outside a world of {world_size}")
    return batch[len(batch) * rank // world_size : len(batch) * (rank + 1) // world_size]


def _feistel(words: _Words, keys: list[_Words], half_bits: int) -> _Words:
    bits, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = words >> bits, words & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << bits) | right


def _round_keys(seed: int, epochs: _Words) -> list[_Words]:
    """One key for each round and element; neighbouring seeds and epochs share none."""
    start = _mix(epochs * np.uint64(_GOLDEN) + _mix(np.array([seed & _WORD], dtype=np.uint64)))
    return [_mix(start + np.uint64(number * _GOLDEN & _WORD)) for number in range(1, _ROUNDS + 1)]


def _mix(words: _Words) -> _Words:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
