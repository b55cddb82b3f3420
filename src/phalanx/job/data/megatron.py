"""Megatron-LM's indexed data set: `.bin` is token ids end to end, `.idx` says where each document lies.

Layout of the index, little-endian (megatron/core/datasets/indexed_dataset.py, version 1): the magic, uint64 version, uint8 code
of the token type, uint64 number of sequences, uint64 number of document bounds; then int32 length of each sequence in tokens,
int64 offset of each in bytes, and int64 document bounds as sequence numbers, from 0 to the number of sequences. Here every
document is one sequence.
"""

import struct
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError

MAGIC: Final = b"MMIDIDX\x00\x00"
HEADER: Final = struct.Struct("<QBQQ")
VERSION: Final = 1
UINT16_VOCAB_MAX: Final = 65_500
"""Megatron's own bound: it chooses uint16 below it."""

TokenType = Literal["uint16", "int32"]
_CODES: Final[dict[TokenType, int]] = {"uint16": 8, "int32": 4}
WIDTHS: Final[dict[TokenType, int]] = {"uint16": 2, "int32": 4}
DTYPES: Final[dict[TokenType, np.dtype[np.uint16] | np.dtype[np.int32]]] = {"uint16": np.dtype("<u2"), "int32": np.dtype("<i4")}


def token_type(vocab_size: int) -> TokenType:
    return "uint16" if vocab_size < UINT16_VOCAB_MAX else "int32"


def token_bytes(ids: list[int], dtype: TokenType) -> bytes:
    """Ids as they stand in a `.bin`. Raises DataError for one that the type cannot hold."""
    wide = np.asarray(ids, dtype=np.int64)
    if wide.size and not (wide.min() >= 0 and wide.max() <= np.iinfo(DTYPES[dtype]).max):
        raise DataError("token id", int(wide.max()), f"does not fit into {dtype}; the vocabulary needs a wider type of token")
    return wide.astype(DTYPES[dtype]).tobytes()


def index_bytes(lengths: list[int], dtype: TokenType) -> bytes:
    """The `.idx` of documents with these lengths in tokens. Raises DataError for one of 2^31 tokens or more."""
    if max(lengths, default=0) >= 2**31:
        raise DataError("paths", max(lengths), "a document has 2^31 tokens or more; split it into several files")
    sizes = np.asarray(lengths, dtype="<i4")
    pointers = np.zeros(len(lengths), dtype="<i8")
    np.cumsum(sizes[:-1], dtype=np.int64, out=pointers[1:])
    pointers *= DTYPES[dtype].itemsize
    bounds = np.arange(len(lengths) + 1, dtype="<i8")
    header = MAGIC + HEADER.pack(VERSION, _CODES[dtype], len(lengths), len(bounds))
    return header + sizes.tobytes() + pointers.tobytes() + bounds.tobytes()


def index_lengths(data: bytes) -> NDArray[np.int32]:
    """The lengths of the documents of an `.idx` that `index_bytes` made, in tokens."""
    _, _, count, _ = HEADER.unpack_from(data, len(MAGIC))
    return np.frombuffer(data, dtype="<i4", count=count, offset=len(MAGIC) + HEADER.size)
