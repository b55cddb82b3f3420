"""Finds the documents under the paths a user names, and decides which are held out."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from phalanx.core.errors import DataError
from phalanx.job.data.default_corpus import STDLIB, standard_library_paths, stdlib_folder
from phalanx.job.data.manifest import Source, Split
from phalanx.storage.hashes import sha256_bytes

Scanned = Callable[[int], None]
"""Told the bytes read so far."""

_SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "node_modules"})
_Unfit = Literal["binary", "not_utf8", "unreadable", "empty"]


@dataclass(frozen=True, slots=True)
class Document:
    """A text file, or the bytes [start, end) of one. `name` is relative to the path that the user named."""

    path: Path
    name: str
    start: int
    end: int
    sha256: str

    def text(self) -> str:
        """Raises DataError when the file is not what was scanned."""
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise DataError("paths", str(self.path), f"cannot be read any more ({error.strerror}); run it again") from error
        if sha256_bytes(data) != self.sha256:
            raise DataError("paths", str(self.path), "changed while it was being prepared; run it again when it is at rest")
        return data[self.start : self.end].decode()


@dataclass(frozen=True, slots=True)
class _Found:
    """What one given path names: its files with their relative names. `direct`: the path is itself the file."""

    label: str
    files: tuple[tuple[str, Path], ...]
    direct: bool


def scan(paths: Sequence[str | Path], leave_out: Path, scanned: Scanned) -> tuple[list[Document], list[Source]]:
    """The text documents under `paths`, in the order given and by name, each file once; `leave_out` is not entered.

    A file met in a folder that is binary (has a NUL), not UTF-8 or unreadable is skipped and counted, an empty one just skipped;
    hidden files and folders are not entered. Raises DataError when a path named directly is missing or no text.
    """
    documents: list[Document] = []
    sources: list[Source] = []
    seen: set[Path] = set()
    total = 0
    for path in paths:
        found = _find(path, leave_out)
        mine: list[Document] = []
        skipped = {"binary": 0, "not_utf8": 0, "unreadable": 0, "empty": 0}
        for name, file in found.files:
            if file in seen:
                continue
            seen.add(file)
            read = _read(file, name)
            if isinstance(read, Document):
                mine.append(read)
                total += read.end
                scanned(total)
            elif found.direct:
                raise DataError("paths", str(path), _DIRECT[read])
            else:
                skipped[read] += 1
        documents += mine
        sources.append(_source(found.label, mine, skipped))
    return documents, sources


def divide(documents: Sequence[Document], held_out: float) -> dict[Split, list[Document]]:
    """Whole documents to each split, by a hash of their names, so that adding a file moves no other.

    Both splits get at least one; a lone document gives its end, from a line's start, to the held-out split.
    """
    if len(documents) == 1:
        head, tail = _cut(documents[0], held_out)
        return {"train": [head], "held_out": [tail]}
    by_hash = sorted(range(len(documents)), key=lambda index: (_fraction(documents[index].name), index))
    count = sum(_fraction(document.name) < held_out for document in documents)
    chosen = set(by_hash[: min(max(count, 1), len(documents) - 1)])
    return {
        "train": [document for index, document in enumerate(documents) if index not in chosen],
        "held_out": [document for index, document in enumerate(documents) if index in chosen],
    }


def _find(path: str | Path, leave_out: Path) -> _Found:
    if str(path) == STDLIB:
        root = stdlib_folder()
        return _Found(STDLIB, tuple((file.relative_to(root).as_posix(), file) for file in standard_library_paths()), False)
    try:
        place = Path(path).resolve(strict=True)
        if place.is_dir():
            return _Found(place.name, tuple(sorted(_walked(place, leave_out))), False)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        reason = getattr(error, "strerror", None) or "a loop of links"
        raise DataError("paths", str(path), f"cannot be read ({reason}); name an existing file or folder, or {STDLIB}") from error
    return _Found(place.name, ((place.name, place),), True)


def _walked(root: Path, leave_out: Path) -> Iterator[tuple[str, Path]]:
    def stop(error: OSError) -> None:
        if error.filename == str(root):
            raise DataError("paths", str(root), f"cannot be read ({error.strerror}); name a folder this user can read")

    for here, folders, files in os.walk(root, onerror=stop):
        base = Path(here)
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in _SKIPPED_FOLDERS and _real(base / name) != leave_out
        ]
        for name in files:
            if not name.startswith("."):
                yield os.fsencode((base / name).relative_to(root)).decode(errors="backslashreplace"), _real(base / name)


def _real(path: Path) -> Path:
    """Without links; unlike Path.resolve, a loop of them is left as it is, to be unreadable later."""
    return Path(os.path.realpath(path))


def _read(file: Path, name: str) -> Document | _Unfit:
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # opening a pipe would wait for ever
            return "unreadable"
        data = file.read_bytes()
    except OSError:
        return "unreadable"
    if b"\0" in data:
        return "binary"
    try:
        data.decode()
    except UnicodeDecodeError:
        return "not_utf8"
    return Document(file, name, 0, len(data), sha256_bytes(data)) if data else "empty"


_DIRECT: Final[dict[_Unfit, str]] = {
    "binary": "is a binary file; name text files, or folders with them",
    "not_utf8": "is not UTF-8 text; convert it, for instance with iconv",
    "unreadable": "is not a file this user can read; change its mode, or name another",
    "empty": "is empty; name a file with text",
}


def _source(label: str, documents: Sequence[Document], skipped: dict[str, int]) -> Source:
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{document.sha256} {document.name}\n".encode())
    return Source(
        name=label,
        documents=len(documents),
        text_bytes=sum(document.end - document.start for document in documents),
        skipped_binary=skipped["binary"],
        skipped_not_utf8=skipped["not_utf8"],
        skipped_unreadable=skipped["unreadable"],
        sha256=digest.hexdigest(),
    )


def _cut(document: Document, held_out: float) -> tuple[Document, Document]:
    data = document.path.read_bytes()
    at = int(len(data) * (1 - held_out))
    line = data.rfind(b"\n", 0, at) + 1
    at = line or at
    while 0 < at < len(data) and data[at] & 0xC0 == 0x80:  # not inside a character
        at -= 1
    if not 0 < at < len(data):
        raise DataError("paths", document.name, "is too short to hold any of it out; give more text")
    return replace(document, end=at), replace(document, start=at)


def _fraction(name: str) -> float:
    """[0, 1), evenly spread over names."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6]) / 2**48
