"""Files cut into pieces: what one process reads at a time, in an order and at borders that no number of processes changes."""

import io
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, Final, Literal, NamedTuple

from phalanx.core.errors import DataError, SetupError
from phalanx.job.data.left_out import reason
from phalanx.job.data.object_files import ObjectFile, Version, is_stored
from phalanx.job.data.unpacked import Packing, packing_of

Kind = Literal["text", "jsonl", "parquet"]
PIECE_BYTES: Final = 10**6
"""Of a JSONL file."""

TASK_PIECES: Final = 2
"""So many times PIECE_BYTES. Handing over a task costs a thousandth of it, and some for each process take little memory."""

DOCUMENT_BYTES_MAX: Final = 2**30
"""A document is tokenized whole, in one process, which needs some ten times its size for it."""

_KINDS: Final[dict[str, Kind]] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


class File(NamedTuple):
    """name: relative to the path that the user gave. path: as text, since there may be millions, or the URL of an object.
    size_bytes None: this user cannot read it, or it is no file. etag: of an object."""

    name: str
    path: str
    size_bytes: int | None
    etag: str = ""


class Piece(NamedTuple):
    """A text file as one document; the lines of a JSONL file that begin in bytes [start, end), or all of a compressed one; or one
    row group of a Parquet file.

    A tuple, and its path text: it travels to processes, and a corpus may have millions. name: of the file, relative to the path
    that the user named. start: of Parquet, the number of the row group, and `end` the number of its first row in the file.
    size_bytes: for the progress and to weigh tasks.
    """

    file: str
    name: str
    kind: Kind
    start: int
    end: int
    size_bytes: int
    packing: Packing = ""
    file_bytes: int = 0
    etag: str = ""


def kind_of(name: str) -> tuple[Kind, Packing]:
    """By the ending of a file's name."""
    stem, ending = os.path.splitext(name)  # noqa: PTH122  # ten times as fast as Path's
    packing = packing_of(ending.lower())
    if packing:
        ending = os.path.splitext(stem)[1]  # noqa: PTH122
    return _KINDS.get(ending.lower(), "text"), packing


def cut(file: File) -> list[Piece] | str:
    """The pieces of a file, or why it cannot be read. Raises DataError for a text that is too large for one document, SetupError
    for Parquet without pyarrow."""
    if file.size_bytes is None:
        return _why_not(file.path)
    (kind, packing), size = kind_of(file.name), file.size_bytes
    if kind == "parquet":
        return "is Parquet inside another compression; unpack it" if packing else _row_groups(file)
    if packing and size:
        return [Piece(file.path, file.name, kind, 0, size, size, packing, size, file.etag)]
    if kind == "jsonl" or not size:
        borders = range(0, size, PIECE_BYTES)
        return [
            Piece(file.path, file.name, kind, at, min(size, at + PIECE_BYTES), PIECE_BYTES, "", size, file.etag) for at in borders
        ]
    if size > DOCUMENT_BYTES_MAX:
        raise DataError("paths", file.name, f"is one document of {size} bytes; split it into files, or JSONL lines, {_AT_MOST}")
    return [Piece(file.path, file.name, kind, 0, size, size, "", size, file.etag)]


def _why_not(path: str) -> str:
    """Of a file without a size."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116  # the path is text
            return "is a pipe, a socket or a device, and no file"
        with open(path, "rb", buffering=0):  # noqa: PTH123
            return "is made by the kernel while it is read"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def opened_file(path: str, size_bytes: int, etag: str) -> IO[bytes]:
    """A file, or an object as one. Raises OSError."""
    if is_stored(path):
        return io.BufferedReader(ObjectFile(Version(path, size_bytes, etag)))
    return open(path, "rb", buffering=0)  # noqa: PTH123  # a Path would take as long as reading


_AT_MOST: Final = f"of at most {DOCUMENT_BYTES_MAX} bytes each"


def too_long(name: str, at: int) -> DataError:
    """For a line of JSONL that ends nowhere near."""
    return DataError("paths", f"{name}, byte {at}", f"a line is longer than {DOCUMENT_BYTES_MAX} bytes; write documents {_AT_MOST}")


def is_short(pieces: Sequence[Piece]) -> bool:
    """Whether they take about as long as other tasks: what is packed has any size."""
    return not any(piece.packing for piece in pieces) and sum(piece.size_bytes for piece in pieces) < _SHORT_BYTES


_SHORT_BYTES: Final = 16 * 10**6


def batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Runs of pieces of about TASK_PIECES times PIECE_BYTES together: one task each."""
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += piece.size_bytes
        if size >= TASK_PIECES * PIECE_BYTES or len(batch) >= _PIECES_MAX:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


_PIECES_MAX: Final = 2000
"""Of one task: an empty file costs time too."""


def arrow() -> Any:
    """pyarrow, with its Parquet. Raises SetupError where it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise SetupError("pyarrow", "not installed", "Parquet files need it; run: pip install pyarrow") from error
    return pyarrow


def columns_of(path: str, size_bytes: int, etag: str) -> Any:
    """A Parquet file, open. Raises OSError and ValueError."""
    source = opened_file(path, size_bytes, etag) if is_stored(path) else path
    return arrow().parquet.ParquetFile(source, pre_buffer=True)


def no_parquet(error: Exception) -> str:
    """What is wrong with a file, or a row group of it, that its library refuses."""
    return f"is no Parquet, or damaged ({reason(error)})"


def _row_groups(file: File) -> list[Piece] | str:
    size = file.size_bytes or 0
    try:
        with columns_of(file.path, size, file.etag) as opened:
            metadata = opened.metadata
    except OSError as error:
        return f"cannot be read ({reason(error.strerror)})" if error.strerror else no_parquet(error)
    except ValueError as error:  # as ArrowInvalid is
        return no_parquet(error)
    found, row = [], 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        found.append(Piece(file.path, file.name, "parquet", number, row, group.total_byte_size, "", size, file.etag))
        row += group.num_rows
    return found
