"""Rows of a trace's file, plain or gzip, each with its line; and its numbers, checked."""

import csv
import difflib
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Final

from phalanx.core.errors import NotFound
from phalanx.operate.sim.traces.errors import TraceError

NUMBER_MAX: Final = 10**15
"""Nothing in a trace is larger: 31,000 years in milliseconds."""

LINE_CHARS_MAX: Final = 100_000

NUMBER: Final = re.compile(r"\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
"""Python reads more: 1_000, and the digits of every script."""


@contextmanager
def opened(file: Path) -> Iterator[IO[str]]:
    """As text, unpacked where its name ends in .gz. Raises NotFound, and TraceError for what is no such file."""
    try:
        raw = gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb")  # noqa: SIM115 (closed with `text` below)
    except FileNotFoundError:
        raise NotFound("trace", str(file), "no such file; name one, or say with --trace-dir where the traces are") from None
    except IsADirectoryError:
        raise TraceError(
            "trace", str(file), "is a folder; name a file in it, or say with --trace-dir that traces are there"
        ) from None
    except OSError as error:
        raise TraceError("trace", str(file), f"cannot be read: {error.strerror or error}") from None
    try:
        with TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
            yield text
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise TraceError(file.name, None, "is not a whole gzip file; copy it again") from None
    except UnicodeDecodeError:
        raise TraceError(file.name, None, "is not UTF-8 text; name a text file, or one packed with gzip") from None
    except OSError as error:
        raise TraceError(file.name, None, f"cannot be read: {error.strerror or error}") from None


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a CSV file with a head."""

    file: Path
    line: int
    cells: dict[str, str]

    def text(self, column: str) -> str:
        return self.cells[column]

    def whole(self, column: str, least: int = 0, scale: int = 1) -> int:
        """A number times `scale`, rounded. Raises TraceError unless it is `least` or more after that."""
        return whole(self.file, self.line, column, self.cells[column], least, scale)

    def count(self, column: str, least: int = 0) -> int:
        """A whole number of things: a fraction is refused, not rounded. Raises TraceError."""
        number = self.whole(column, least)
        if not self.cells[column].isdecimal() and number != float(self.cells[column]):
            raise self.error(column, "write a whole number")
        return number

    def error(self, column: str, fix: str) -> TraceError:
        return TraceError.at(self.file, self.line, self.cells[column], f"{column}: {fix}")


def whole(file: Path, line: int, column: str, text: str, least: int, scale: int = 1) -> int:
    """A cell as a whole number. Raises TraceError that names file, line and column."""
    if NUMBER.fullmatch(text) is None:
        raise TraceError.at(file, line, text, f"{column}: write a number")
    try:
        number = int(text) * scale if text.isdecimal() else round(float(text) * scale)
    except (OverflowError, ValueError):  # infinity; thousands of digits
        number = NUMBER_MAX + 1
    if number < least:
        raise TraceError.at(file, line, text, f"{column}: write {_bound(least, scale)}")
    if number > NUMBER_MAX:
        raise TraceError.at(file, line, text, f"{column}: is absurdly large; write {NUMBER_MAX // scale} or less")
    return number


def _bound(least: int, scale: int) -> str:
    return "a number above 0" if 0 < least < scale else f"{least // scale} or more"


def rows(file: Path, columns: Sequence[str], optional: Sequence[str] | None = None) -> Iterator[Row]:
    """Every row, with at least these columns; with `optional`, no others than those. Raises TraceError for a head that lacks one,
    has one twice or one that is not known, and for a row of another length."""
    with opened(file) as text:
        reader = csv.reader(text)
        line = 1
        try:
            head = next(reader, [])
            _check_head(file, head, columns, optional)
            line = reader.line_num + 1
            for cells in reader:
                if cells:
                    yield _row(file, line, head, cells)
                line = reader.line_num + 1
        except csv.Error as error:
            raise TraceError.at(file, line, None, f"is not a row of CSV: {error}") from None


def meant_by(head: Sequence[str], missing: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """Missing columns, with the cell of the head that probably was to be it: one that is not `known` otherwise, for one column."""
    left = [cell for cell in head if cell not in known]
    meant: dict[str, str] = {}
    for column in missing:
        if near := difflib.get_close_matches(column, left, n=1, cutoff=0.5):
            meant[column] = near[0]
            left.remove(near[0])
    return meant


def likeness(head: Sequence[str], columns: Sequence[str]) -> float:
    """From 0 to 1, how much of these columns a head has; one that is mistyped counts half."""
    missing = [column for column in columns if column not in head]
    return (len(columns) - len(missing) + len(meant_by(head, missing, columns)) / 2) / len(columns)


def _check_head(file: Path, head: Sequence[str], columns: Sequence[str], optional: Sequence[str] | None) -> None:
    known = (*columns, *(optional or ()))
    missing = [column for column in columns if column not in head]
    if missing:
        meant = ", ".join(f"{column!r} for {cell!r}" for column, cell in meant_by(head, missing, known).items())
        hint = f"did you mean {meant}? " if meant else ""
        fix = f"the head lacks {', '.join(missing)}; {hint}the first line names the columns {', '.join(columns)}"
        raise TraceError.at(file, 1, ",".join(head), fix)
    twice = next((column for column in known if head.count(column) > 1), None)
    if twice is not None:
        raise TraceError.at(file, 1, twice, "the head names this column twice; leave one out")
    unknown = next((column for column in head if column not in known), None) if optional is not None else None
    if unknown is not None:
        near = difflib.get_close_matches(unknown, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise TraceError.at(file, 1, unknown, f"is no column of such a trace; {hint}")


def _row(file: Path, line: int, head: Sequence[str], cells: Sequence[str]) -> Row:
    if len(cells) != len(head):
        raise TraceError.at(file, line, ",".join(cells), f"has {len(cells)} columns; the head has {len(head)}")
    return Row(file, line, dict(zip(head, cells, strict=True)))
