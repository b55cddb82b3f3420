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
from phalanx.job.data.object_files import changed
from phalanx.job.data.parity import Choice
from phalanx.job.data.texts import DIGEST_BYTES, Reading, begun, parts

_PARTS: Final = (TRAIN, HELD_OUT)
_SPOOL: Final = "spool-"
ENCODED_BYTES: Final = 4 * 10**6
"""Of text: the documents that are encoded in one call."""

SPOOLED_BYTES: Final = 32 * 10**6
"""Of tokens that a task keeps in memory: a compressed file of any size is a single task."""


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
    each document. number: of the task, for the names of files."""

    number: int
    plan: Plan
    pieces: Sequence[Piece]
    digests: bytes
    documents: Sequence[int]
    kinds: Kinds


@dataclass(frozen=True, slots=True)
class Run:
    """Documents of a split end to end, each with its end mark: the bytes of a `.bin`, or the file that holds them, and the tokens
    of each document."""

    data: bytes | Path
    lengths: NDArray[np.int64]


def encode(task: Task) -> dict[int, Run]:
    """A run of each split that has any of it, by TRAIN and HELD_OUT. Raises DataError when a file is not what was looked at."""
    runs = {kind: _Growing(task, kind) for kind in _PARTS}
    at = 0
    for number, (piece, first) in enumerate(zip(task.pieces, begun(task.pieces), strict=True)):
        digest, end = b"", at + task.documents[number]
        for texts in parts(piece, task.plan.reading, first):
            digest = texts.digest
            if at + len(texts.documents) > end:
                raise changed(piece.file)
            for kind, document in _wanted(texts.documents, task.kinds[at : at + len(texts.documents)], task.plan.held_out):
                runs[kind].add(document)
            at += len(texts.documents)
        if digest != task.digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES] or at != end:
            raise changed(piece.file)
    return {kind: run.run() for kind, run in runs.items() if run.documents}


class _Growing:
    """A run of a task, encoded as it grows; beyond some memory it goes on in a file."""

    def __init__(self, task: Task, kind: int) -> None:
        self.documents = 0
        self._plan = task.plan
        self._path = task.plan.tokenizer.parent / f"{_SPOOL}{task.number}.{kind}"
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._lengths: list[NDArray[np.int64]] = []

    def add(self, document: bytes) -> None:
        self.documents += 1
        self._waiting.append(document)
        self._waiting_bytes += len(document)
        if self._waiting_bytes >= ENCODED_BYTES:
            self._encode()

    def _encode(self) -> None:
        plan = self._plan
        ids = _loaded(plan.tokenizer, plan.tokenizer_sha256, plan.choice).encode(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        data, lengths = _joined(ids, plan)
        self._data.append(data)
        self._data_bytes += len(data)
        self._lengths.append(lengths)
        if self._data_bytes >= SPOOLED_BYTES:
            with self._path.open("ab") as file:
                file.writelines(self._data)
            self._data, self._data_bytes = [], 0

    def run(self) -> Run:
        self._encode()
        lengths = np.concatenate(self._lengths)
        if not self._path.exists():
            return Run(b"".join(self._data), lengths)
        with self._path.open("ab") as file:
            file.writelines(self._data)
        return Run(self._path, lengths)


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


def _joined(found: Sequence[NDArray[np.uint32]], plan: Plan) -> tuple[bytes, NDArray[np.int64]]:
    lengths = np.fromiter((len(ids) + 1 for ids in found), dtype=np.int64, count=len(found))
    tokens = np.empty(int(lengths.sum()), dtype=megatron.DTYPES[plan.dtype])
    at = 0
    for ids in found:
        end = at + len(ids)
        tokens[at:end] = ids
        tokens[end] = plan.end_of_document
        at = end + 1
    return tokens.tobytes(), lengths
