"""The texts of one row group of a Parquet file, in bounded memory: few bytes of a dictionary, or of pages that pack well, may stand
for any number of them."""

import importlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from phalanx.core.errors import DataError
from phalanx.job.data.file_pieces import Piece, arrow, columns_of, opened_file
from phalanx.job.data.object_files import is_stored
from phalanx.job.data.unpacked import FREE_BYTES, RATIO_MAX

ROWS_AT_ONCE: Final = 256
"""More are hardly faster where a text has some hundred bytes."""

_AT_ONCE_BYTES: Final = 64 * 2**20
_PROBED_BYTES: Final = 2**16


class NoColumn(Exception):
    """names: of the columns that there are."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names


def values(piece: Piece, column: str) -> Iterator[bytes | None]:
    """One a row, in order. Raises DataError where they are far more than the bytes that they are made of, or where a later row is
    damaged; NoColumn; what pyarrow does where the column is none of text, and where the first ones cannot be read."""
    library, given = arrow(), 0
    with columns_of(piece.file, piece.file_bytes, piece.etag) as file:
        if column not in (names := file.schema_arrow.names):
            raise NoColumn(names)
        chunk = _chunk(file, piece.start, column)
        bytes_max = RATIO_MAX * min(chunk.total_compressed_size, piece.file_bytes or chunk.total_compressed_size) + FREE_BYTES
        if chunk.total_uncompressed_size > bytes_max:
            raise _too_many(piece)
        longest = _longest_in_dictionary(piece, file.metadata, column) if chunk.has_dictionary_page else 1
        at_once = max(1, min(ROWS_AT_ONCE, _AT_ONCE_BYTES // max(1, longest)))
        row, batches = piece.end, file.iter_batches(batch_size=at_once, row_groups=[piece.start], columns=[column])
        while (batch := _next(batches, piece, row, library)) is not None:
            found: list[bytes | None] = batch.column(0).cast(library.large_binary()).to_pylist()
            given += sum(1 if one is None else len(one) + 1 for one in found)
            if given > bytes_max:
                raise _too_many(piece)
            yield from found
            row += len(found)


def text_columns(piece: Piece) -> list[str]:
    """Those whose values may be texts."""
    types = arrow().types
    with columns_of(piece.file, piece.file_bytes, piece.etag) as file:
        schema = file.schema_arrow
        return [one.name for one in schema if types.is_string(one.type) or types.is_large_string(one.type)]


def _next(batches: Any, piece: Piece, row: int, library: Any) -> Any:
    """The next batch, if any. Behind rows that are taken already damage is no reason to leave out the rest without a word."""
    try:
        return next(batches, None)
    except (library.ArrowException, OSError) as error:
        if row == piece.end:
            raise
        fix = f"is damaged in row group {piece.start} ({error}); its rows before row {row} are good; fetch it or write it again"
        raise DataError("paths", piece.name, fix) from error


def _chunk(file: Any, group: int, column: str) -> Any:
    """The facts of the column in a row group. Raises ArrowNotImplementedError for one of several, as a list or struct is."""
    found = file.metadata.row_group(group)
    mine = [one for one in map(found.column, range(found.num_columns)) if one.path_in_schema == column]
    if not mine:
        raise arrow().ArrowNotImplementedError("nested")
    return mine[0]


def _longest_in_dictionary(piece: Piece, metadata: Any, column: str) -> int:
    """Of its texts, by the first row alone, which brings all of the dictionary and not what is made of it."""
    library = arrow()
    source = opened_file(piece.file, piece.file_bytes, piece.etag) if is_stored(piece.file) else piece.file
    options = {"metadata": metadata, "read_dictionary": [column], "buffer_size": _PROBED_BYTES, "pre_buffer": False}
    with library.parquet.ParquetFile(source, **options) as file:
        first = next(file.iter_batches(batch_size=1, row_groups=[piece.start], columns=[column]), None)
    if first is None or not library.types.is_dictionary(first.column(0).type):
        return 0
    compute: Any = importlib.import_module("pyarrow.compute")
    longest: int | None = compute.max(compute.binary_length(first.column(0).dictionary)).as_py()
    return longest or 0


def _too_many(piece: Piece) -> DataError:
    what = f"row group {piece.start} grows to over {RATIO_MAX} times its size"
    return DataError("paths", piece.name, f"{what}; if it is no bomb, write its texts as JSONL or plain text")
