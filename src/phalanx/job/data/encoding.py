"""The second reading of all text: documents to tokens, in every process, and to shards in this one."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError
from phalanx.job.data import megatron
from phalanx.job.data.crew import Crew
from phalanx.job.data.encoder import Encoder
from phalanx.job.data.file_pieces import Piece, batches
from phalanx.job.data.journal import Journal
from phalanx.job.data.manifest import SPLITS, Shard, Split
from phalanx.job.data.parity import Choice
from phalanx.job.data.shard_writer import ShardWriter
from phalanx.job.data.survey import CUT, KINDS, OUT, Kinds, Survey, halves
from phalanx.job.data.texts import Reading, read


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
    """Pieces with what becomes of each document of theirs, and the digests that they had in the survey."""

    plan: Plan
    pieces: Sequence[Piece]
    digests: Sequence[bytes]
    kinds: Sequence[Kinds]


@dataclass(frozen=True, slots=True)
class Run:
    """Documents of a split end to end, each with its end mark: the bytes of a `.bin`, and the tokens of each."""

    data: bytes
    lengths: NDArray[np.int64]


def encode(task: Task) -> dict[Split, Run]:
    """Raises DataError when a file is not what was surveyed."""
    documents: dict[Split, list[bytes]] = {split: [] for split in SPLITS}
    for piece, digest, kinds in zip(task.pieces, task.digests, task.kinds, strict=True):
        texts = read(piece, task.plan.reading)
        if texts.digest != digest or len(texts.documents) != len(kinds):
            raise DataError("paths", piece.file, "changed while it was being prepared; run it again when it is at rest")
        for split, document in _wanted(texts.documents, kinds, task.plan.held_out):
            documents[split].append(document)
    encoder = _loaded(task.plan.tokenizer, task.plan.tokenizer_sha256, task.plan.choice)
    return {split: _run(encoder.encode(found), task.plan) for split, found in documents.items()}


def _wanted(documents: Sequence[bytes], kinds: Kinds, held_out: float) -> Iterator[tuple[Split, bytes]]:
    for document, kind in zip(documents, kinds.tolist(), strict=True):
        if kind == CUT:
            yield from zip(SPLITS, halves(document, held_out), strict=True)
        elif kind != OUT:
            yield "train" if kind == KINDS["train"] else "held_out", document


@lru_cache(maxsize=1)
def _loaded(tokenizer: Path, sha256: str, choice: Choice) -> Encoder:
    data = tokenizer.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DataError("tokenizer", str(tokenizer), "changed while data was being prepared; run it again")
    return Encoder(data.decode(), choice)


def _run(found: Sequence[NDArray[np.uint32]], plan: Plan) -> Run:
    lengths = np.asarray([len(ids) + 1 for ids in found], dtype=np.int64)
    end = np.asarray([plan.end_of_document], dtype=np.uint32)
    parts = [part for ids in found for part in (ids, end)]
    joined = np.concatenate(parts) if parts else end[:0]
    return Run(joined.astype(megatron.DTYPES[plan.dtype]).tobytes(), lengths)


def write_shards(
    survey: Survey, plan: Plan, tokens_max: int, journal: Journal, crew: Crew, seen: Callable[[int, int], None]
) -> list[Shard]:
    """All shards of all splits, those that the journal has among them. seen(bytes of text done, bytes in all)."""
    total, kinds = int(survey.sizes[survey.kinds != OUT].sum()), survey.kinds.copy()
    for split in SPLITS:
        kinds[survey.of(split)[: sum(shard.documents for shard in journal.shards[split])]] = OUT
    done = total - int(survey.sizes[kinds != OUT].sum())
    tasks = list(_tasks(survey, kinds, plan))
    with ExitStack() as stack:
        writers = {
            split: stack.enter_context(
                ShardWriter(plan.tokenizer.parent, split, plan.dtype, tokens_max, journal.shards[split], journal.add)
            )
            for split in SPLITS
        }
        for (size, _), runs in zip(tasks, crew.map(encode, (task for _, task in tasks)), strict=True):
            for split, run in runs.items():
                writers[split].add_run(run.data, run.lengths.tolist())
            done += size
            seen(done, total)
        return [shard for split in SPLITS for shard in writers[split].finish()]


def _tasks(survey: Survey, kinds: Kinds, plan: Plan) -> Iterator[tuple[int, Task]]:
    """Batches of the pieces of which something is wanted, each with the bytes of text that it is about."""
    number = 0
    for batch in batches(survey.pieces):
        numbers = range(number, number + len(batch))
        number += len(batch)
        wanted = {one: kinds[survey.first[one] : survey.first[one + 1]] for one in numbers}
        left = [one for one in numbers if wanted[one].any()]
        size = sum(int(survey.sizes[survey.first[one] : survey.first[one + 1]][wanted[one] != OUT].sum()) for one in left)
        if left:
            pieces, digests = [survey.pieces[one] for one in left], [survey.piece_digests[one] for one in left]
            yield size, Task(plan, pieces, digests, [wanted[one] for one in left])
