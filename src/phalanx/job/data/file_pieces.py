"""Files cut into pieces: what one process reads at a time, in an order and at borders that no number of processes changes."""

import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from phalanx.core.errors import DataError, SetupError

Kind = Literal["text", "jsonl", "parquet"]
PIECE_BYTES: Final = 10**6
"""Of a JSONL file, and of a task. Handing over a task costs a thousandth of it, and some for each process take little memory."""

DOCUMENT_BYTES_MAX: Final = 2**30
"""A document is tokenized whole, in one process, which needs some ten times its size for it."""

_KINDS: Final[dict[str, Kind]] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


@dataclass(frozen=True, slots=True)
class Piece:
    """A text file as one document; the lines of a JSONL file that begin in bytes [start, end); or one row group of a Parquet file.

    file: a path as text, which travels to processes faster. name: of the file, relative to the path that the user named.
    start: of Parquet, the number of the row group, and `end` the number of its first row in the file. size_bytes: for the progress
    and to weigh tasks.
    """

    file: str
    name: str
    kind: Kind
    start: int
    end: int
    size_bytes: int


def kind_of(name: str) -> Kind:
    """By the ending of a file's name."""
    return _KINDS.get(Path(name).suffix.lower(), "text")


def cut(file: Path, name: str) -> list[Piece] | None:
    """The pieces of a file, or None for one that this user cannot read. Raises DataError for a text that is too large for one
    document, SetupError for Parquet without pyarrow."""
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            return None
    except OSError:
        return None
    kind, size = kind_of(name), status.st_size
    if kind == "parquet":
        return _row_groups(file, name)
    if kind == "jsonl":
        return [Piece(str(file), name, kind, at, min(size, at + PIECE_BYTES), PIECE_BYTES) for at in range(0, size, PIECE_BYTES)]
    if size > DOCUMENT_BYTES_MAX:
        raise DataError("paths", name, f"is one document of {size} bytes; split it into files, or JSONL lines, {_AT_MOST}")
    return [Piece(str(file), name, kind, 0, size, size)]


_AT_MOST: Final = f"of at most {DOCUMENT_BYTES_MAX} bytes each"


def too_long(name: str, at: int) -> DataError:
    """For a line of JSONL that ends nowhere near."""
    return DataError("paths", f"{name}, byte {at}", f"a line is longer than {DOCUMENT_BYTES_MAX} bytes; write documents {_AT_MOST}")


def batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Runs of pieces of about PIECE_BYTES together: one task each."""
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += piece.size_bytes
        if size >= PIECE_BYTES or len(batch) >= _PIECES_MAX:
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


def _row_groups(file: Path, name: str) -> list[Piece] | None:
    library = arrow()
    try:
        metadata = library.parquet.read_metadata(file)
    except (OSError, ValueError):  # ArrowInvalid is a ValueError
        return None
    found, row = [], 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        found.append(Piece(str(file), name, "parquet", number, row, group.total_byte_size))
        row += group.num_rows
    return found
