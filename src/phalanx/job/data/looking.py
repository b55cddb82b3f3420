"""The first reading, as each process does it: facts of pieces and of the documents in them, and no text."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.job.data.file_pieces import Piece
from phalanx.job.data.texts import Reading, Texts, Unfit, read

_ASCII: Final = bytes(range(128))


@dataclass(frozen=True, slots=True)
class Batch:
    """A task: pieces one after the other."""

    pieces: Sequence[Piece]
    reading: Reading


@dataclass(frozen=True, slots=True)
class Looked:
    """What a batch holds, end to end: the numbers of documents and digests of its pieces, then of each document the first 8 bytes
    of the SHA-256 of its name, its digest and its size.

    skipped: of the pieces where anything was, by their number in the batch, with the first trouble. alphabet: the code points
    beyond ASCII that occur.
    """

    documents: NDArray[np.int64]
    piece_digests: bytes
    keys: bytes
    digests: bytes
    sizes: NDArray[np.int64]
    skipped: Sequence[tuple[int, Counter[Unfit], str]]
    alphabet: NDArray[np.uint32]


def look(batch: Batch) -> Looked:
    """Raises DataError for what is too long to be read at all."""
    numbers: list[int] = []
    piece_digests, keys, digests, beyond_ascii = bytearray(), bytearray(), bytearray(), bytearray()
    sizes: list[int] = []
    skipped = []
    for number, piece in enumerate(batch.pieces):
        texts = read(piece, batch.reading)
        numbers.append(len(texts.documents))
        piece_digests += texts.digest
        keys += _keys(texts)
        digests += texts.digests()
        sizes += map(len, texts.documents)
        for document in texts.documents:
            if not document.isascii():
                beyond_ascii += document.translate(None, _ASCII)
        if texts.skipped:
            skipped.append((number, texts.skipped, texts.trouble))
    return Looked(
        documents=np.asarray(numbers, dtype=np.int64),
        piece_digests=bytes(piece_digests),
        keys=bytes(keys),
        digests=bytes(digests),
        sizes=np.asarray(sizes, dtype=np.int64),
        skipped=skipped,
        alphabet=code_points([bytes(beyond_ascii)]),
    )


def _keys(texts: Texts) -> bytes:
    return b"".join([hashlib.sha256(name.encode()).digest()[:8] for name in texts.names])


def code_points(texts: Iterable[bytes]) -> NDArray[np.uint32]:
    """Those that occur in texts of UTF-8."""
    occurs = np.zeros(0x110000, dtype=bool)
    for text in texts:
        occurs[np.frombuffer(text.decode().encode("utf-32-le"), dtype="<u4")] = True
    return np.flatnonzero(occurs).astype(np.uint32)
