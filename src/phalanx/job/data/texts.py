"""One piece of a file as clean documents, and counts of what in it is none. Runs in every process that prepares."""

import io
import json
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import IO, Final, Literal

from blake3 import blake3

from phalanx.core.errors import DataError
from phalanx.job.data.checked import unknown, whole
from phalanx.job.data.file_pieces import DOCUMENT_BYTES_MAX, Piece, arrow, no_parquet, opened_file, too_long
from phalanx.job.data.left_out import Unfit, reason
from phalanx.job.data.object_files import ObjectFile, Version, asked, is_stored
from phalanx.job.data.row_texts import NoColumn, text_columns, values
from phalanx.job.data.unpacked import unpacked

DIGEST_BYTES: Final = 16
PART_BYTES: Final = 10**6
"""Of a compressed file, whose text may be far larger than memory."""

_PACKERS: Final = {
    b"BZh91AY&SY": "bzip2", b"\xfd7zXZ\0": "xz", b"PK\3\4": "zip", b"7z\xbc\xaf\x27\x1c": "7z", b"\x1f\x8b\x08": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
}  # fmt: skip
"""How what they wrote begins."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Reading:
    """How raw text becomes documents. text_field: of a JSONL object or a Parquet row. min_chars: shorter ones are left out."""

    text_field: str = "text"
    normalize: Literal["none", "nfc"] = "none"
    min_chars: int = 0

    def check(self) -> None:
        if not self.text_field or not isinstance(self.text_field, str):
            raise DataError("text_field", self.text_field, "name the field that holds the text")
        if self.normalize not in ("none", "nfc"):
            raise unknown("normalize", self.normalize, ("none", "nfc"))
        whole("min_chars", self.min_chars, 0)


@dataclass(slots=True)
class Texts:
    """The documents of a piece in their order, as UTF-8. digest: of what was read; one_whole: that is the very document. firsts: of
    what is skipped, where the first one for each reason lies in the file, and what is wrong with it."""

    names: list[str] = field(default_factory=list)
    documents: list[bytes] = field(default_factory=list)
    digest: bytes = b""
    one_whole: bool = False
    skipped: Counter[Unfit] = field(default_factory=Counter)
    firsts: dict[Unfit, tuple[str, str]] = field(default_factory=dict)

    def skip(self, why: Unfit, where: str, problem: str) -> None:
        self.skipped[why] += 1
        self.firsts.setdefault(why, (where, problem))

    def digests(self) -> bytes:
        """Of each document."""
        return self.digest if self.one_whole else b"".join(map(digest, self.documents))


def digest(data: bytes) -> bytes:
    """Of contents: fast, and short enough to keep one for each document."""
    return blake3(data).digest(DIGEST_BYTES)


def parts(piece: Piece, reading: Reading, first: "Future[memoryview] | None" = None) -> Iterator[Texts]:
    """One after the other, since a compressed file is a single piece, whatever its size; only the last has the digest, which is of
    all of them.

    first: the start of the piece, where somebody has begun to read it. Raises DataError only for what is too long to be read at
    all, damaged, or not what was found; and what `fetch` does.
    """
    try:
        match piece.kind:
            case "text":
                yield _text(piece, reading, first)
            case "jsonl" if piece.packing:
                yield from _read_packed_lines(piece, reading)
            case "jsonl":
                yield _read_lines(piece, reading, first)
            case "parquet":
                yield from _read_rows(piece, reading)
    except OSError as error:
        found = Texts()
        found.skip("unreadable", "", f"cannot be read ({reason(error.strerror or error)})")
        yield found


def read(piece: Piece, reading: Reading) -> Texts:
    """All of a piece at once."""
    found = Texts()
    for part in parts(piece, reading):
        part.names[:0], part.documents[:0] = found.names, found.documents
        part.skipped.update(found.skipped)
        part.firsts = {**part.firsts, **found.firsts}
        found = part
    return found


def begun(pieces: Sequence[Piece]) -> "list[Future[memoryview] | None]":
    """Of each piece that lies in a store its start, which is on its way."""
    wanted = [piece for piece in pieces if is_stored(piece.file) and piece.kind != "parquet" and not piece.packing]
    spans = [(Version(one.file, one.file_bytes, one.etag), _border(one), one.end - _border(one)) for one in wanted]
    if not spans:
        return [None] * len(pieces)
    found = dict(zip(wanted, asked(spans), strict=True))
    return [found.get(piece) for piece in pieces]


def _border(piece: Piece) -> int:
    """Where to read from: a line begins in the piece when the byte before ends another."""
    return max(0, piece.start - 1)


def _opened(piece: Piece, first: "Future[memoryview] | None" = None) -> IO[bytes]:
    if first is not None:
        return io.BufferedReader(ObjectFile(Version(piece.file, piece.file_bytes, piece.etag), first, _border(piece)))
    return opened_file(piece.file, piece.file_bytes, piece.etag)


def _text(piece: Piece, reading: Reading, first: "Future[memoryview] | None") -> Texts:
    found = Texts()
    with _opened(piece, first) as file:
        data = _unpacked_whole(piece, file) if piece.packing else _whole(piece, file)
    if len(data) > DOCUMENT_BYTES_MAX:
        raise too_long(piece.name, 0)
    found.digest = digest(data)
    if packer := next((name for magic, name in _PACKERS.items() if data.startswith(magic)), ""):
        found.skip("binary", "", f"is packed by {packer}, and only .gz and .zst are unpacked, by the ends of files' names")
        return found
    if b"\0" in data:
        found.skip("binary", "", f"is binary (byte {data.index(0)} is NUL)")
        return found
    _take(piece.name, data, reading, found, "")
    found.one_whole = bool(found.documents) and found.documents[0] is data
    return found


def _whole(piece: Piece, file: IO[bytes]) -> bytes:
    data = file.read(piece.size_bytes + 1)
    if len(data) != piece.size_bytes:  # another length than when it was found
        data += file.read(DOCUMENT_BYTES_MAX + 1 - len(data))
    return data


def _unpacked_whole(piece: Piece, file: IO[bytes]) -> bytes:
    data = bytearray()
    for part in unpacked(file, piece.packing, piece.file, piece.file_bytes):
        data += part
        if len(data) > DOCUMENT_BYTES_MAX:
            raise too_long(piece.name, 0)
    return bytes(data)


def _take(name: str, data: bytes, reading: Reading, found: Texts, where: str) -> None:
    """Cleans a text and takes it, or counts why not."""
    try:
        text = "" if data.isascii() else data.decode()
    except UnicodeDecodeError as error:
        found.skip("not_utf8", where, _not_utf8(error))
        return
    if text and reading.normalize == "nfc" and not unicodedata.is_normalized("NFC", text):
        text = unicodedata.normalize("NFC", text)
        data = text.encode()
    if not data:
        found.skip("empty", where, "holds an empty text" if where else "is empty")
    elif (size := len(text) or len(data)) < reading.min_chars:
        found.skip("short", where, f"has {size} characters, and --min-chars is {reading.min_chars}")
    else:
        found.names.append(name)
        found.documents.append(data)


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"is not UTF-8 (byte {error.start} is 0x{error.object[error.start]:02x})"


def _read_lines(piece: Piece, reading: Reading, first: "Future[memoryview] | None") -> Texts:
    found, hasher = Texts(), blake3()
    for at, line in _lines(piece, first):
        hasher.update(line + b"\n")
        _take_line(piece.name, at, line, reading, found)
    found.digest = hasher.digest(DIGEST_BYTES)
    return found


def _read_packed_lines(piece: Piece, reading: Reading) -> Iterator[Texts]:
    found, hasher, begun_at = Texts(), blake3(), 0
    with _opened(piece) as file:
        for at, line in _packed_lines(piece, file):
            hasher.update(line + b"\n")
            _take_line(piece.name, at, line, reading, found)
            if at - begun_at >= PART_BYTES:
                yield found
                found, begun_at = Texts(), at
    found.digest = hasher.digest(DIGEST_BYTES)
    yield found


def _packed_lines(piece: Piece, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines, each with its place in the text."""
    at, rest = 0, bytearray()
    for part in unpacked(file, piece.packing, piece.file, piece.file_bytes):
        rest += part
        if b"\n" in part:
            *lines, last = bytes(rest).split(b"\n")
            for line in lines:
                yield at, _without_mark(line, at)
                at += len(line) + 1
            rest = bytearray(last)
        if len(rest) > DOCUMENT_BYTES_MAX:
            raise too_long(piece.name, at)
    if rest:
        yield at, _without_mark(bytes(rest), at)


def _without_mark(line: bytes, at: int) -> bytes:
    return line.removeprefix(_BYTE_ORDER_MARK) if at == 0 else line


def _lines(piece: Piece, first: "Future[memoryview] | None") -> Iterator[tuple[int, bytes]]:
    """The lines that begin in the piece, each with its place in the file; the last one may reach beyond the piece."""
    at = _border(piece)
    with _opened(piece, first) as file:
        if first is None:
            file.seek(at)
        data = file.read(piece.end - at)
        if piece.start:
            border = data.find(b"\n")
            if border < 0:
                return
            at, data = at + border + 1, data[border + 1 :]
        if data and not data.endswith(b"\n"):
            data += _rest_of_line(file)
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for line in lines:
        if len(line) > DOCUMENT_BYTES_MAX:
            raise too_long(piece.name, at)
        yield at, _without_mark(line, at)
        at += len(line) + 1


def _rest_of_line(file: IO[bytes]) -> bytes:
    """By blocks: a file without a buffer looks for the end of a line byte by byte."""
    found = bytearray()
    while len(found) <= DOCUMENT_BYTES_MAX and (block := file.read(_LINE_BYTES)):
        line, end, _ = block.partition(b"\n")
        found += line + end
        if end:
            break
    return bytes(found)


_LINE_BYTES: Final = 64 * 2**10


def _take_line(name: str, at: int, line: bytes, reading: Reading, found: Texts) -> None:
    if not line or line.isspace():
        return
    where = f"byte {at}"
    try:
        fields = json.loads(line.decode())
    except UnicodeDecodeError as error:
        found.skip("not_utf8", where, _not_utf8(error))
        return
    except (ValueError, RecursionError) as error:
        found.skip("not_json", where, f"is not JSON ({reason(error)})")
        return
    text = fields.get(reading.text_field) if isinstance(fields, dict) else None
    if not isinstance(text, str):
        found.skip("no_text", where, _no_text(fields, reading.text_field))
        return
    try:
        _take(f"{name}#{at}", text.encode(), reading, found, where)
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write and UTF-8 cannot
        found.skip("not_utf8", where, "has half a surrogate pair")


def _no_text(fields: object, name: str) -> str:
    """What a line of JSON has where its text should be."""
    if not isinstance(fields, dict):
        return f"is {_JSON[type(fields)]}, and not an object with a field {name!r}"
    if name in fields:
        return f"holds {_JSON[type(fields[name])]} in field {name!r}, and no text; choose another with --text-field"
    names = ", ".join(list(fields)[:_NAMES_SHOWN])
    return f"has no text in field {name!r}; its fields: {names or 'none'}; choose with --text-field"


_JSON: Final[dict[type, str]] = {
    bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object", type(None): "null"
}  # fmt: skip
_NAMES_SHOWN: Final = 8


def _read_rows(piece: Piece, reading: Reading) -> Iterator[Texts]:
    found, hasher, waiting_bytes = Texts(), blake3(), 0
    for row, data in enumerate(_column(piece, reading, found), start=piece.end):
        hasher.update(b"-" if data is None else b"%d:" % len(data) + data)
        if data is None:
            found.skip("no_text", f"row {row}", "has no text")
        elif len(data) > DOCUMENT_BYTES_MAX:
            raise too_long(piece.name, row)
        else:
            _take(f"{piece.name}#{row}", data, reading, found, f"row {row}")
            waiting_bytes += len(data)
        if waiting_bytes >= PART_BYTES:
            yield found
            found, waiting_bytes = Texts(), 0
    found.digest = hasher.digest(DIGEST_BYTES)
    yield found


def _columns_of_text(piece: Piece) -> str:
    texts = ", ".join(text_columns(piece)[:_NAMES_SHOWN])
    return f"its columns of text: {texts}; choose with --text-field" if texts else "it has no column of text"


def _column(piece: Piece, reading: Reading, found: Texts) -> Iterator[bytes | None]:
    library = arrow()
    try:
        yield from values(piece, reading.text_field)
    except NoColumn as error:
        shown = ", ".join(error.names[:_NAMES_SHOWN])
        found.skip("no_text", "", f"has no column {reading.text_field!r}; its columns: {shown}; choose with --text-field")
    except library.ArrowNotImplementedError:  # numbers, lists
        found.skip("no_text", "", f"has no text in column {reading.text_field!r}; {_columns_of_text(piece)}")
    except library.ArrowException as error:
        found.skip("unreadable", f"row group {piece.start}", no_parquet(error))
