"""The second reading, as each process does it: documents to tokens."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError
from phalanx.job.data import megatron
from phalanx.job.data.encoder import Encoder
from phalanx.job.data.file_pieces import Piece
from phalanx.job.data.kinds import CUT, HELD_OUT, OUT, TRAIN, Kinds, halves
from phalanx.job.data.parity import Choice
from phalanx.job.data.texts import DIGEST_BYTES, Reading, read

_PARTS: Final = (TRAIN, HELD_OUT)


@dataclass(frozen=True, slots=True)
class Plan:
    """What every process must know. tokenizer: its file, of which each process keeps what it has loaded by `tokenizer_sha256`."""

    tokenizer: Path
    tokenizer_sha256: str
    choice: Choice
    end_of_document: int
    dtype: megatron.TokenType
    reading: Reading
    held_out: float


@dataclass(frozen=True, slots=True)
class Task:
    """Pieces with the digests that they had in the first reading, end to end, the number of documents of each, and what becomes of
    each document."""

    plan: Plan
    pieces: Sequence[Piece]
    digests: bytes
    documents: Sequence[int]
    kinds: Kinds


@dataclass(frozen=True, slots=True)
class Run:
    """Documents of a split end to end, each with its end mark: the bytes of a `.bin`, and the tokens of each."""

    data: bytes
    lengths: NDArray[np.int64]


def encode(task: Task) -> dict[int, Run]:
    """A run of each split that has any of it, by TRAIN and HELD_OUT. Raises DataError when a file is not what was looked at."""
    documents: dict[int, list[bytes]] = {}
    at = 0
    for number, (piece, count) in enumerate(zip(task.pieces, task.documents, strict=True)):
        texts = read(piece, task.plan.reading)
        if texts.digest != task.digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES] or len(texts.documents) != count:
            raise DataError("paths", piece.file, "changed while it was being prepared; run it again when it is at rest")
        for kind, document in _wanted(texts.documents, task.kinds[at : at + count], task.plan.held_out):
            documents.setdefault(kind, []).append(document)
        at += count
    encoder = _loaded(task.plan.tokenizer, task.plan.tokenizer_sha256, task.plan.choice)
    return {kind: _run(encoder.encode(found), task.plan) for kind, found in documents.items()}


def _wanted(documents: Sequence[bytes], kinds: Kinds, held_out: float) -> Iterator[tuple[int, bytes]]:
    for document, kind in zip(documents, kinds.tolist(), strict=True):
        if kind == CUT:
            yield from zip(_PARTS, halves(document, held_out), strict=True)
        elif kind != OUT:
            yield kind, document


@lru_cache(maxsize=1)
def _loaded(tokenizer: Path, sha256: str, choice: Choice) -> Encoder:
    data = tokenizer.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DataError("tokenizer", str(tokenizer), "changed while data was being prepared; run it again")
    return Encoder(data.decode(), choice)


def _run(found: Sequence[NDArray[np.uint32]], plan: Plan) -> Run:
    lengths = np.fromiter((len(ids) + 1 for ids in found), dtype=np.int64, count=len(found))
    tokens = np.empty(int(lengths.sum()), dtype=megatron.DTYPES[plan.dtype])
    at = 0
    for ids in found:
        end = at + len(ids)
        tokens[at:end] = ids
        tokens[end] = plan.end_of_document
        at = end + 1
    return Run(tokens.tobytes(), lengths)
