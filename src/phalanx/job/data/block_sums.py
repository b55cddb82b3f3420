"""Checksums of the blocks of a file: XXH3 in 64 bits (xxhash.com) of each MiB, the last one shorter, as little-endian uint64.

They keep up with memory, so every block can be checked when it is first read. They find damage, not malice: the SHA-256 of the
manifest is what nobody can forge.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64, xxh3_64_intdigest

BLOCK_BYTES: Final = 2**20
_SUM: Final = np.dtype("<u8")


class BlockSums:
    """Sums up blocks while their file is being written."""

    def __init__(self) -> None:
        self._sums: list[int] = []
        self._hash = xxh3_64()
        self._filled = 0

    def update(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            piece = view[: BLOCK_BYTES - self._filled]
            self._hash.update(piece)
            self._filled += len(piece)
            view = view[len(piece) :]
            if self._filled == BLOCK_BYTES:
                self._end_block()

    def to_bytes(self) -> bytes:
        """The sums of all that came, which ends the last block."""
        if self._filled:
            self._end_block()
        return np.asarray(self._sums, dtype=_SUM).tobytes()

    def _end_block(self) -> None:
        self._sums.append(self._hash.intdigest())
        self._hash.reset()
        self._filled = 0


def num_blocks(size_bytes: int) -> int:
    """Blocks of a file of this size."""
    return -(-size_bytes // BLOCK_BYTES)


def sums_bytes(size_bytes: int) -> int:
    """Bytes of the checksums of a file of this size."""
    return num_blocks(size_bytes) * _SUM.itemsize


def read_sums(data: bytes) -> NDArray[np.uint64]:
    """The reverse of `to_bytes`."""
    return np.frombuffer(data, dtype=_SUM)


def block_sum(block: memoryview) -> int:
    """Of one block. Lets other threads run meanwhile."""
    return xxh3_64_intdigest(block)
