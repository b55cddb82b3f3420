"""One piece of a file as clean documents, and counts of what in it is none. Runs in every process that prepares."""

import json
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from blake3 import blake3

from phalanx.core.errors import DataError
from phalanx.job.data.file_pieces import DOCUMENT_BYTES_MAX, Piece, arrow, too_long

Unfit = Literal["binary", "not_utf8", "unreadable", "empty", "not_json", "no_text", "short", "duplicate"]
"""Why a file, a line or a row is not taken."""

DIGEST_BYTES: Final = 16
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Reading:
    """How raw text becomes documents. text_field: of a JSONL object or a Parquet row. min_chars: shorter ones are left out."""

    text_field: str = "text"
    normalize: Literal["none", "nfc"] = "none"
    min_chars: int = 0

    def check(self) -> None:
        if not self.text_field:
            raise DataError("text_field", self.text_field, "name the field that holds the text")
        if self.normalize not in ("none", "nfc"):
            raise DataError("normalize", self.normalize, "write none or nfc")
        if self.min_chars < 0:
            raise DataError("min_chars", self.min_chars, "write 0 or more")


@dataclass(slots=True)
class Texts:
    """The documents of a piece in their order, as UTF-8. digest: of what was read; one_whole: that is the very document. trouble:
    the first that was no document."""

    names: list[str] = field(default_factory=list)
    documents: list[bytes] = field(default_factory=list)
    digest: bytes = b""
    one_whole: bool = False
    skipped: Counter[Unfit] = field(default_factory=Counter)
    trouble: str = ""

    def skip(self, why: Unfit, trouble: str = "") -> None:
        self.skipped[why] += 1
        self.trouble = self.trouble or trouble

    def digests(self) -> bytes:
        """Of each document."""
        return self.digest if self.one_whole else b"".join(map(digest, self.documents))


def digest(data: bytes) -> bytes:
    """Of contents: fast, and short enough to keep one for each document."""
    return blake3(data).digest(DIGEST_BYTES)


def read(piece: Piece, reading: Reading) -> Texts:
    """Raises DataError only for what is too long to be read at all."""
    found = Texts()
    try:
        match piece.kind:
            case "text":
                _read_text(piece, reading, found)
            case "jsonl":
                _read_lines(piece, reading, found)
            case "parquet":
                _read_rows(piece, reading, found)
    except OSError:
        found = Texts()
        found.skip("unreadable")
    return found


def _read_text(piece: Piece, reading: Reading, found: Texts) -> None:
    with open(piece.file, "rb", buffering=0) as file:  # noqa: PTH123  # a Path would take as long as the reading
        data = file.read(piece.size_bytes + 1)
        if len(data) != piece.size_bytes:  # another length than when it was found
            data += file.read(DOCUMENT_BYTES_MAX + 1 - len(data))
    if len(data) > DOCUMENT_BYTES_MAX:
        raise too_long(piece.name, 0)
    found.digest = digest(data)
    if b"\0" in data:
        found.skip("binary")
        return
    _take(piece.name, data, reading, found)
    found.one_whole = bool(found.documents) and found.documents[0] is data


def _take(name: str, data: bytes, reading: Reading, found: Texts) -> None:
    """Cleans a text and takes it, or counts why not."""
    try:
        text = "" if data.isascii() else data.decode()
    except UnicodeDecodeError:
        found.skip("not_utf8", "is not UTF-8")
        return
    if text and reading.normalize == "nfc" and not unicodedata.is_normalized("NFC", text):
        text = unicodedata.normalize("NFC", text)
        data = text.encode()
    if not data:
        found.skip("empty", "holds an empty text")
    elif (len(text) or len(data)) < reading.min_chars:
        found.skip("short", f"has fewer than {reading.min_chars} characters")
    else:
        found.names.append(name)
        found.documents.append(data)


def _read_lines(piece: Piece, reading: Reading, found: Texts) -> None:
    hasher = blake3()
    for at, line in _lines(piece):
        hasher.update(line + b"\n")
        if not line.isspace() and line:
            _take_line(f"{piece.name}#{at}", line, f"byte {at} of {piece.name}", reading, found)
    found.digest = hasher.digest(DIGEST_BYTES)


def _lines(piece: Piece) -> Iterator[tuple[int, bytes]]:
    """The lines that begin in the piece, each with its place in the file; the last one may reach beyond the piece."""
    with Path(piece.file).open("rb") as file:
        at = max(0, piece.start - 1)  # a line begins here when the byte before ends another
        file.seek(at)
        data = file.read(piece.end - at)
        if piece.start:
            border = data.find(b"\n")
            if border < 0:
                return
            at, data = at + border + 1, data[border + 1 :]
        if data and not data.endswith(b"\n"):
            data += file.readline(DOCUMENT_BYTES_MAX + 1)
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for line in lines:
        if len(line) > DOCUMENT_BYTES_MAX:
            raise too_long(piece.name, at)
        yield at, line.removeprefix(_BYTE_ORDER_MARK) if at == 0 else line
        at += len(line) + 1


def _take_line(name: str, line: bytes, where: str, reading: Reading, found: Texts) -> None:
    try:
        fields = json.loads(line.decode())
    except UnicodeDecodeError:
        found.skip("not_utf8", f"{where} is not UTF-8")
        return
    except (ValueError, RecursionError) as error:
        found.skip("not_json", f"{where} is not JSON ({error})")
        return
    text = fields.get(reading.text_field) if isinstance(fields, dict) else None
    if not isinstance(text, str):
        names = ", ".join(list(fields)[:_NAMES_SHOWN]) if isinstance(fields, dict) else "none: it is no object"
        found.skip("no_text", f"{where} has no text in field {reading.text_field!r}; its fields: {names}; choose with --text-field")
        return
    try:
        _take(name, text.encode(), reading, found)
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write and UTF-8 cannot
        found.skip("not_utf8", f"{where} has half a surrogate pair")


_NAMES_SHOWN: Final = 8


def _read_rows(piece: Piece, reading: Reading, found: Texts) -> None:
    hasher = blake3()
    for number, data in enumerate(_column(piece, reading, found)):
        hasher.update(b"-" if data is None else b"%d:" % len(data) + data)
        if data is None:
            found.skip("no_text", f"row {piece.end + number} of {piece.name} has no text")
        elif len(data) > DOCUMENT_BYTES_MAX:
            raise too_long(piece.name, piece.end + number)
        else:
            _take(f"{piece.name}#{piece.end + number}", data, reading, found)
    found.digest = hasher.digest(DIGEST_BYTES)


def _column(piece: Piece, reading: Reading, found: Texts) -> list[bytes | None]:
    library = arrow()
    with library.parquet.ParquetFile(piece.file) as file:
        try:
            names = file.schema_arrow.names
            if reading.text_field not in names:
                shown = ", ".join(names[:_NAMES_SHOWN])
                found.skip(
                    "no_text", f"{piece.name} has no column {reading.text_field!r}; its columns: {shown}; choose with --text-field"
                )
                return []
            column = file.read_row_group(piece.start, columns=[reading.text_field]).column(0)
            values: list[bytes | None] = column.cast(library.large_binary()).to_pylist()
        except library.ArrowNotImplementedError:  # numbers, lists
            found.skip("no_text", f"{piece.name}: column {reading.text_field!r} holds no text; choose with --text-field")
            return []
        except library.ArrowException as error:
            raise OSError(str(error)) from error
        return values
