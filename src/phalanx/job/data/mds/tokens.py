"""MDS to tokens of ours: a column of token ids becomes Megatron shards with a manifest."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError
from phalanx.job.data import manifest as manifests
from phalanx.job.data import megatron, tokens
from phalanx.job.data.manifest import FORMAT, MANIFEST, TOKENIZER, FileEntry, Manifest, Shard, Source, Split, SplitCount
from phalanx.job.data.mds.encodings import array_of
from phalanx.job.data.mds.read import MdsFolder
from phalanx.job.data.order import mixed
from phalanx.job.data.place import building, check_out, move_into_place
from phalanx.job.data.prepare import SHARD_TOKENS_MAX
from phalanx.job.data.shard_writer import ShardWriter
from phalanx.job.data.tars.ingest import Report
from phalanx.storage.atomic import refused, write_atomic
from phalanx.storage.hashes import sha256_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ids = NDArray[np.int64]
Documents = Literal["samples", "end_marks"]
"""What a document is: each sample, which gets an end mark where it has none; or what ends with an end mark, across samples, as in
data that was cut into rows of one length."""

BYTES_TYPES: Final = ("uint16", "int32", "uint32", "int64")
_SEED: Final = 0x4D4453
_RUN: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensAsked:
    """What decides the result, besides the samples. bytes_type: of the ids in a column of plain bytes."""

    column: str
    tokenizer: Path
    end_of_document: str = tokens.END_OF_DOCUMENT
    documents: Documents = "samples"
    bytes_type: str = ""
    held_out: float = 0.05
    shard_tokens_max: int = SHARD_TOKENS_MAX


def import_tokens(mds: Path, out: Path, asked: TokensAsked, progress: Report | None = None, force: bool = False) -> Path:
    """Makes the folder `out` of one column of token ids of an MDS folder, in its order; documents that training never sees are
    chosen by a hash of their numbers.

    Raises DataError, SetupError (no `tokenizers`), StoreUnavailable (disk full), Conflict.
    """
    out = Path(os.path.realpath(out))
    check_out(out, [mds, asked.tokenizer], force)
    if not 0 <= asked.held_out <= 0.5:
        raise DataError("held_out", asked.held_out, "write a share from 0 to 0.5")
    source, tokenizer = MdsFolder(mds), tokens.given(asked.tokenizer)
    end, convert = tokens.end_id(tokenizer, asked.end_of_document), _converter(source, asked)
    try:
        with building(out, fresh=True) as folder:
            writing = _Writing(folder, tokens.vocab_size(tokenizer), end, asked)
            whole = hashlib.sha256()
            rows = _ids(source, asked.column, convert, writing.vocab_size, whole.update, progress or (lambda *_: None))
            writing.write(_documents(rows, end, asked.documents))
            _commit(folder, mds.resolve().name, writing, tokenizer, whole.hexdigest(), asked)
            move_into_place(folder, out)
    except OSError as error:
        raise refused(out, error) from error
    return out


def _converter(source: MdsFolder, asked: TokensAsked) -> Callable[[bytes], NDArray[Any]]:
    encoding = source.columns.get(asked.column)
    if encoding is None:
        raise DataError("column", asked.column, f"{source.folder} has only {', '.join(source.columns)}; name one of these")
    if encoding.split(":")[0] == "ndarray":
        return array_of(encoding)
    if encoding != "bytes":
        raise DataError("column", asked.column, f"is of {encoding}, which holds no token ids; name a column of ndarray or bytes")
    if asked.bytes_type not in BYTES_TYPES:
        fix = f"{asked.column} is of plain bytes; say what its ids are: one of {', '.join(BYTES_TYPES)}"
        raise DataError("bytes_type", asked.bytes_type, fix)
    dtype = np.dtype(asked.bytes_type).newbyteorder("<")
    return lambda data: np.frombuffer(data, dtype)


def _ids(
    source: MdsFolder,
    column: str,
    convert: Callable[[bytes], NDArray[Any]],
    vocab_size: int,
    hashed: Callable[[bytes], None],
    report: Report,
) -> Iterator[Ids]:
    """Of each sample, all of them in the vocabulary."""
    number, done = 0, 0
    for data, rows in source.shards():
        hashed(data)
        for row in rows:
            where = f"sample {number}"
            try:
                found = convert(row[column])
            except ValueError as error:
                raise DataError(f"column {column}", where, f"is not what its encoding says ({error})") from error
            if found.ndim != 1 or found.dtype.kind not in "iu":
                raise DataError(f"column {column}", where, f"is {found.dtype.name}{list(found.shape)}, not one row of token ids")
            if found.size and not 0 <= int(found.min()) <= int(found.max()) < vocab_size:
                odd = int(found.max()) if int(found.min()) >= 0 else int(found.min())
                raise DataError(f"column {column}", odd, f"{where} has this id, outside the tokenizer's {vocab_size}; name its own")
            yield found.astype(np.int64)
            number += 1
        done += len(data)
        report(done, source.size_bytes)


def _documents(rows: Iterable[Ids], end: int, kind: Documents) -> Iterator[Ids]:
    """Each with its end mark."""
    mark = np.array([end], dtype=np.int64)
    parts: list[Ids] = []
    for row in rows:
        if kind == "samples":
            yield row if row.size and row[-1] == end else np.concatenate([row, mark])
            continue
        *whole, rest = np.split(row, np.flatnonzero(row == end) + 1)
        for piece in whole:
            yield np.concatenate([*parts, piece])
            parts = []
        parts += [rest] if rest.size else []
    if parts:
        yield np.concatenate([*parts, mark])


class _Writing:
    """Both splits, as documents come."""

    def __init__(self, folder: Path, vocab_size: int, end: int, asked: TokensAsked) -> None:
        self.vocab_size, self.end = vocab_size, end
        self.dtype = megatron.token_type(vocab_size)
        self.shards: list[Shard] = []
        self._held_out = asked.held_out
        self._folder, self._tokens_max = folder, asked.shard_tokens_max

    def write(self, documents: Iterable[Ids]) -> None:
        with (
            ShardWriter(self._folder, "train", self.dtype, self._tokens_max) as train,
            ShardWriter(self._folder, "held_out", self.dtype, self._tokens_max) as held_out,
        ):
            for number, ids in enumerate(documents):
                writer = held_out if self._is_held_out(number) else train
                writer.add_document(ids.astype(megatron.DTYPES[self.dtype]).tobytes())
            self.shards = [*train.finish(), *held_out.finish()]

    def _is_held_out(self, number: int) -> bool:
        """The first document is trained on, so that there is one."""
        if number % _RUN == 0:
            drawn = mixed(_SEED, np.arange(number, number + _RUN, dtype=np.int64)).view(np.uint64)
            self._run = (drawn < np.uint64(int(self._held_out * 2**63) * 2)) & (np.arange(number, number + _RUN) > 0)
        return bool(self._run[number % _RUN])

    def count(self, split: Split) -> SplitCount:
        of_split = [shard for shard in self.shards if shard.split == split]
        return SplitCount(
            tokens=sum(one.tokens for one in of_split), documents=sum(one.documents for one in of_split), text_bytes=0
        )


def _commit(folder: Path, name: str, writing: _Writing, tokenizer: "Tokenizer", sha256: str, asked: TokensAsked) -> None:
    text = tokenizer.to_str(pretty=True).encode()
    write_atomic(folder / TOKENIZER, text)
    splits: Sequence[Split] = manifests.SPLITS
    counts = {split: writing.count(split) for split in splits}
    none = dict.fromkeys(("text_bytes", "skipped_binary", "skipped_not_utf8", "skipped_unreadable"), 0)
    source = Source(name=name, documents=sum(count.documents for count in counts.values()), sha256=sha256, **none)
    manifest = Manifest(
        format=FORMAT,
        vocab_size=writing.vocab_size,
        dtype=writing.dtype,
        end_of_document=writing.end,
        tokenizer=FileEntry(name=TOKENIZER, size_bytes=len(text), sha256=sha256_bytes(text)),
        splits=counts,
        shards=tuple(writing.shards),
        sources=(source,),
        parameters={
            "made_by": "import-mds",
            "column": asked.column,
            "documents": asked.documents,
            "held_out": asked.held_out,
            "shard_tokens_max": asked.shard_tokens_max,
            "tokenizer": "given",
            "tokenizers": tokens.library_version(),
        },
    )
    write_atomic(folder / MANIFEST, manifests.encode(manifest))
