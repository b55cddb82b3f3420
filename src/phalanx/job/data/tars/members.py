"""The members of a tar file, which may be anybody's: nothing is extracted, and only their headers are read.

`tarfile` parses the headers and is held to small reads, since a header may claim any size for the names that follow it. What holds
no sample is counted and left out; what cannot be told apart from damage is an error.
"""

import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, Literal, cast

from phalanx.core.errors import DataError

Reason = Literal["link", "special", "sparse", "unsafe_name", "no_field"]
"""link: hard or symbolic. special: devices and pipes. unsafe_name: absolute, with '..', over long, or not of printable UTF-8.
no_field: no dot in the file's name, hidden, or of WebDataset's own names with two underscores."""

KEY_BYTES_MAX: Final = 4096
_HEADER_BYTES_MAX: Final = 2**20
"""Of names and other extended headers, which are kept in memory."""

_NAME: Final = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)")
_META: Final = re.compile(r"__[^/]*__($|/)")
_PIECE_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class Member:
    """A file of a tar that is a field of a sample: where its bytes lie."""

    key: str
    field: str
    offset: int
    size: int


def members(file: BinaryIO, name: str, size_bytes: int, skipped: Counter[str]) -> Iterator[Member]:
    """Those of an open tar of this size, in its order. Raises DataError for what is no whole tar, OSError."""
    try:
        archive: Any = tarfile.TarFile(fileobj=cast(Any, _Headers(file)), mode="r", encoding="utf-8", errors="surrogateescape")
        at = 0
        while (info := archive.next()) is not None:
            own_bytes = info.size if info.isreg() and not info.issparse() else 0  # of others it says what it likes
            if info.size < 0 or archive.offset <= at or info.offset_data + own_bytes > size_bytes:
                raise tarfile.ReadError(f"its member {info.name!r} does not lie in it")
            at = archive.offset
            archive.members.clear()  # which it keeps for lookups by name
            member = _member(info, skipped)
            if member is not None:
                if member.offset + member.size > at:
                    raise tarfile.ReadError(f"its member {info.name!r} runs into the next one")
                yield member
    except (tarfile.TarError, ValueError, RecursionError, OverflowError, MemoryError) as error:
        raise _broken(name, str(error) or type(error).__name__) from error
    _check_end(file, name, archive.offset)


def _member(info: tarfile.TarInfo, skipped: Counter[str]) -> Member | None:
    reason: Reason | None = None
    if info.isdir():
        return None
    if info.islnk() or info.issym():
        reason = "link"
    elif not info.isfile():
        reason = "special"
    elif info.issparse():
        reason = "sparse"
    elif not is_safe(info.name):
        reason = "unsafe_name"
    found = _NAME.fullmatch("/".join(part for part in info.name.split("/") if part != "."))
    if reason is None and (found is None or _META.match(info.name)):
        reason = "no_field"
    if reason is not None or found is None:
        skipped[reason or "no_field"] += 1
        return None
    return Member(found[1], found[2].lower(), info.offset_data, info.size)


def is_safe(name: str) -> bool:
    """Whether a name could be written below a folder and shown to people."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8
        return False
    return len(encoded) <= KEY_BYTES_MAX and name.isprintable() and not name.startswith("/") and ".." not in name.split("/")


def _check_end(file: BinaryIO, name: str, offset: int) -> None:
    """`tarfile` takes whatever is no header for the end: only zeros are."""
    file.seek(offset)
    if not (piece := file.read(_PIECE_BYTES)):
        raise _broken(name, "it ends without an end mark")
    while piece:
        if piece.strip(b"\0"):
            raise _broken(name, f"at byte {offset} comes neither a member nor the end")
        piece = file.read(_PIECE_BYTES)


def _broken(name: str, what: str) -> DataError:
    fix = f"is no whole tar file ({what}); fetch or make it again, unpacked where it is compressed, and one file for each tar"
    return DataError("tar", name, fix)


class _Headers:
    """The file as `tarfile` sees it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.tell, self.seek = file.tell, file.seek

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _HEADER_BYTES_MAX:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self._file.read(size)
