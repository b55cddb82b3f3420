"""The file of a backup: lines of JSON, compressed, that end with their own number and SHA-256. Whole or absent, its owner's alone.

    {"phalanx_backup": 1, "schema": ..., ...}      the head
    {"table": NAME, "columns": [...]}              then its rows, a list of values each
    [...]
    {"lines": N, "sha256": ...}                    of every byte before this line

It is read twice: once to its end before anything is done with it, and once for its rows.
"""

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from phalanx.core.errors import SetupError, StoreUnavailable
from phalanx.storage.atomic import fsync_folder, refused

FORMAT: Final = 1
LINE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of one row, far above any; keeps a hostile file from taking all memory."""

_LEVEL: Final = 6
Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Head:
    """schema: revision. identity: the database's number. last_seq: of its newest event. sequences: table -> the last number that it
    gave out. database: where the rows are from, for people."""

    schema: str
    identity: int
    last_seq: int
    made_ms: int
    version: str
    database: str
    sequences: Mapping[str, int]


def write(path: Path, head: Head, tables: Iterator[tuple[str, Sequence[str], Iterator[Row]]]) -> int:
    """Makes `path` anew; returns the number of rows. Raises SetupError for a place that cannot be written, or holds a file already,
    StoreUnavailable for a disk that is full; then nothing is left."""
    if path.exists():
        raise SetupError("FILE", str(path), "is there already; name a new file")
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.unlink(missing_ok=True)  # of a backup that was killed; whatever comes after it is somebody's, and refused
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as raw:
                rows = _write_all(raw, head, tables)
                raw.flush()
                os.fsync(raw.fileno())
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        fsync_folder(path.parent)
    except FileNotFoundError as error:
        raise SetupError("FILE", str(path), f"there is no folder {path.parent}; make it first") from error
    except OSError as error:
        raise refused(path, error) from error
    return rows


def _write_all(raw: Any, head: Head, tables: Iterator[tuple[str, Sequence[str], Iterator[Row]]]) -> int:
    digest, lines, rows = hashlib.sha256(), 0, 0
    with gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) as packed:

        def put(value: object) -> None:
            nonlocal lines
            line = json.dumps(value, separators=(",", ":")).encode() + b"\n"
            digest.update(line)
            packed.write(line)
            lines += 1

        put({"phalanx_backup": FORMAT, **{name: getattr(head, name) for name in Head.__slots__}})
        for table, columns, found in tables:
            put({"table": table, "columns": list(columns)})
            for row in found:
                put(list(row))
                rows += 1
        packed.write(json.dumps({"lines": lines, "sha256": digest.hexdigest()}).encode() + b"\n")
    return rows


def check(path: Path) -> Head:
    """The head of a file that was read to its end. Raises SetupError for one that is damaged, cut off, or no backup."""
    digest, before, number = hashlib.sha256(), b"", 0
    head = None
    for line in _lines(path):
        if number:
            digest.update(before)
        before, number = line, number + 1
        head = head or _head(path, line)
    try:
        end = json.loads(before)
        whole = (end["lines"], end["sha256"]) == (number - 1, digest.hexdigest())
    except (ValueError, KeyError, TypeError):
        whole = False
    if head is None or not whole:
        raise damaged(path, "its checksum is not that of what it holds")
    return head


def tables(path: Path) -> Iterator[tuple[str, list[str], list[Any]]]:
    """(table, columns, row) of a file that was checked, in order."""
    table, columns = "", list[str]()
    for line in _lines(path):
        value = json.loads(line)
        if isinstance(value, list):
            yield table, columns, value
        elif "table" in value:
            table, columns = value["table"], value["columns"]


def damaged(path: Path, why: str) -> SetupError:
    """The error for a file that nothing is to be taken from."""
    return SetupError("FILE", str(path), f"is damaged or no backup of Phalanx: {why}; use another copy")


def _head(path: Path, line: bytes) -> Head:
    try:
        said = json.loads(line)
        known = said["phalanx_backup"]
        found = Head(**{name: said[name] for name in Head.__slots__}) if known == FORMAT else None
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path, "it does not begin as one") from error
    if found is None:
        raise SetupError("FILE", str(path), f"has format {known}, this Phalanx knows {FORMAT}: upgrade Phalanx")
    return found


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path, "rb") as file:
            while line := file.readline(LINE_BYTES_MAX):
                if not line.endswith(b"\n"):
                    raise damaged(path, "a line is cut off")
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, str(error)) from error
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise SetupError("FILE", str(path), f"cannot be read ({error.strerror}); name a file of `phalanx backup`") from error
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror or error}") from error
