"""Files cut into pieces: what one process reads at a time, in an order and at borders that no number of processes changes."""

import os
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal, NamedTuple

from phalanx.core.errors import DataError, SetupError

Kind = Literal["text", "jsonl", "parquet"]
PIECE_BYTES: Final = 10**6
"""Of a JSONL file."""

TASK_PIECES: Final = 2
"""So many times PIECE_BYTES. Handing over a task costs a thousandth of it, and some for each process take little memory."""

DOCUMENT_BYTES_MAX: Final = 2**30
"""A document is tokenized whole, in one process, which needs some ten times its size for it."""

_KINDS: Final[dict[str, Kind]] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


class File(NamedTuple):
    """name: relative to the path that the user gave. path: as text, since there may be millions. size_bytes None: this user cannot
    read it, or it is no file."""

    name: str
    path: str
    size_bytes: int | None


class Piece(NamedTuple):
    """A text file as one document; the lines of a JSONL file that begin in bytes [start, end); or one row group of a Parquet file.

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


def kind_of(name: str) -> Kind:
    """By the ending of a file's name."""
    return _KINDS.get(os.path.splitext(name)[1].lower(), "text")  # noqa: PTH122  # ten times as fast as Path's


def cut(file: File) -> list[Piece] | None:
    """The pieces of a file, or None for one that this user cannot read. Raises DataError for a text that is too large for one
    document, SetupError for Parquet without pyarrow."""
    if file.size_bytes is None:
        return None
    kind, size = kind_of(file.name), file.size_bytes
    if kind == "parquet":
        return _row_groups(file)
    if kind == "jsonl":
        borders = range(0, size, PIECE_BYTES)
        return [Piece(file.path, file.name, kind, at, min(size, at + PIECE_BYTES), PIECE_BYTES) for at in borders]
    if size > DOCUMENT_BYTES_MAX:
        raise DataError("paths", file.name, f"is one document of {size} bytes; split it into files, or JSONL lines, {_AT_MOST}")
    return [Piece(file.path, file.name, kind, 0, size, size)]


_AT_MOST: Final = f"of at most {DOCUMENT_BYTES_MAX} bytes each"


def too_long(name: str, at: int) -> DataError:
    """For a line of JSONL that ends nowhere near."""
    return DataError("paths", f"{name}, byte {at}", f"a line is longer than {DOCUMENT_BYTES_MAX} bytes; write documents {_AT_MOST}")


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


def _row_groups(file: File) -> list[Piece] | None:
    library = arrow()
    try:
        metadata = library.parquet.read_metadata(file.path)
    except (OSError, ValueError):  # ArrowInvalid is a ValueError
        return None
    found, row = [], 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        found.append(Piece(file.path, file.name, "parquet", number, row, group.total_byte_size))
        row += group.num_rows
    return found
