"""The first reading, as each process does it: facts of pieces and of the documents in them, and no text."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.job.data.file_pieces import Piece
from phalanx.job.data.left_out import Firsts, Unfit
from phalanx.job.data.texts import DIGEST_BYTES, Reading, Texts, begun, parts

_ASCII: Final = bytes(range(128))
_GATHERED_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class Batch:
    """A task: pieces one after the other."""

    pieces: Sequence[Piece]
    reading: Reading


@dataclass(frozen=True, slots=True)
class Looked:
    """What a batch holds, end to end: the numbers of documents and digests of its pieces, then of each document the first 8 bytes
    of the SHA-256 of its name, its digest and its size.

    skipped: of the pieces where anything was, by their number in the batch, with the first ones. alphabet: the code points beyond
    ASCII that occur.
    """

    documents: NDArray[np.int64]
    piece_digests: bytes
    keys: bytes
    digests: bytes
    sizes: NDArray[np.int64]
    skipped: Sequence[tuple[int, Counter[Unfit], Firsts]]
    alphabet: NDArray[np.uint32]


def look(batch: Batch) -> Looked:
    """Raises what `parts` does."""
    numbers = [0] * len(batch.pieces)
    piece_digests, keys, digests, beyond_ascii = bytearray(), bytearray(), bytearray(), bytearray()
    sizes: list[int] = []
    skipped = []
    occurs: set[str] = set()
    for number, (piece, first) in enumerate(zip(batch.pieces, begun(batch.pieces), strict=True)):
        digest = b""
        for texts in parts(piece, batch.reading, first):
            digest = texts.digest
            numbers[number] += len(texts.documents)
            keys += _keys(texts)
            digests += texts.digests()
            sizes += map(len, texts.documents)
            beyond_ascii += b"".join([one.translate(None, _ASCII) for one in texts.documents if not one.isascii()])
            if len(beyond_ascii) > _GATHERED_BYTES:
                occurs.update(beyond_ascii.decode())
                beyond_ascii.clear()
            if texts.skipped:
                skipped.append((number, texts.skipped, texts.firsts))
        piece_digests += digest.ljust(DIGEST_BYTES, b"\0")
    return Looked(
        documents=np.asarray(numbers, dtype=np.int64),
        piece_digests=bytes(piece_digests),
        keys=bytes(keys),
        digests=bytes(digests),
        sizes=np.asarray(sizes, dtype=np.int64),
        skipped=skipped,
        alphabet=np.asarray(sorted(map(ord, occurs.union(beyond_ascii.decode()))), dtype=np.uint32),
    )


def _keys(texts: Texts) -> bytes:
    return b"".join([hashlib.sha256(name.encode()).digest()[:8] for name in texts.names])
