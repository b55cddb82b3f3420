"""MDS to tokens of ours: a column of token ids becomes Megatron shards with a manifest."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError
from phalanx.job.data.checked import path_of, unknown
from phalanx.job.data.imported import Ids, ImportAsked, Imported, check_ids, marked, write_folder
from phalanx.job.data.mds.encodings import array_of
from phalanx.job.data.mds.read import MdsFolder
from phalanx.job.data.tars.ingest import Report

Documents = Literal["samples", "end_marks"]
"""What a document is: each sample, which gets an end mark where it has none; or what ends with an end mark, across samples, as in
data that was cut into rows of one length."""

DOCUMENTS: Final[tuple[Documents, ...]] = ("samples", "end_marks")
BYTES_TYPES: Final = ("uint16", "int32", "uint32", "int64")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensAsked(ImportAsked):
    """What decides the result, besides the samples. bytes_type: of the ids in a column of plain bytes."""

    column: str
    documents: Documents = "samples"
    bytes_type: str = ""


def import_tokens(
    mds: Path,
    out: Path,
    asked: TokensAsked,
    progress: Report | None = None,
    force: bool = False,
    noted: Callable[[str], None] | None = None,
) -> Path:
    """Makes the folder `out` of one column of token ids of an MDS folder, in its order; documents that training never sees are
    chosen by a hash of their numbers. noted: told, in a sentence, where samples that are taken for documents look like none.

    Raises DataError, SetupError (no `tokenizers`), StoreUnavailable (disk full), Conflict.
    """
    if asked.documents not in DOCUMENTS:
        raise unknown("documents", asked.documents, DOCUMENTS)
    mds, out = path_of("mds", mds), path_of("out", out)
    source = MdsFolder(mds)
    convert, whole, shape = _converter(source, asked), hashlib.sha256(), _Shape()

    def read(vocab_size: int, end: int) -> Iterator[Ids]:
        rows = _ids(source, asked.column, convert, vocab_size, whole.update, progress or (lambda *_: None))
        return _documents(shape.seen(rows, end), end, asked.documents)

    made_by = {"made_by": "import-mds", "column": asked.column, "documents": asked.documents}
    what = Imported(name=mds.resolve().name, made_by=made_by, sha256=whole.hexdigest)
    made = write_folder(out, read, what, asked, [mds], force)
    if noted is not None and asked.documents == "samples" and shape.is_cut:
        noted(shape.sentence())
    return made


class _Shape:
    """Whether samples are text that was cut into rows of one length, by their lengths; the last may be shorter."""

    def __init__(self) -> None:
        self._rows, self._length, self._inner_ends = 0, 0, 0
        self._all_alike, self._last_is_shorter = True, False

    def seen(self, rows: Iterable[Ids], end: int) -> Iterator[Ids]:
        for row in rows:
            self._all_alike &= not self._last_is_shorter and row.size <= (self._length or row.size)
            self._last_is_shorter = row.size < self._length
            self._length = self._length or row.size
            self._rows += 1
            self._inner_ends += int(np.count_nonzero(row[:-1] == end))
            yield row

    @property
    def is_cut(self) -> bool:
        return self._rows > 1 and self._length > 1 and self._all_alike

    def sentence(self) -> str:
        last = " (the last one fewer)" if self._last_is_shorter else ""
        return (
            f"all {self._rows:,} samples have {self._length:,} tokens{last}, with {self._inner_ends:,} end marks inside them, as "
            "text has that was cut into rows, and each was taken for a document; --documents end_marks joins them and takes what "
            "ends with an end mark for one (with --force, as the folder is there), --documents samples says that they are documents"
        )


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
            check_ids(found, vocab_size, f"column {column}", where)
            yield found.astype(np.int64)
            number += 1
        done += len(data)
        report(done, source.size_bytes)


def _documents(rows: Iterable[Ids], end: int, kind: Documents) -> Iterator[Ids]:
    """Each with its end mark."""
    parts: list[Ids] = []
    for row in rows:
        if kind == "samples":
            yield marked(row, end)
            continue
        *whole, rest = np.split(row, np.flatnonzero(row == end) + 1)
        for piece in whole:
            yield np.concatenate([*parts, piece])
            parts = []
        parts += [rest] if rest.size else []
    if parts:
        yield marked(np.concatenate(parts), end)
