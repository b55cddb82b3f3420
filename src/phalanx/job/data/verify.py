"""Every byte of a prepared folder against its manifest."""

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np

from phalanx.core.errors import DataError
from phalanx.job.data.manifest import FileEntry, Manifest
from phalanx.job.data.megatron import DTYPES
from phalanx.job.data.shards import check_range, damaged, unreadable, wrong_size
from phalanx.job.data.tars.manifest import SampleManifest, of_samples

VerifyProgress = Callable[[int, int], None]
"""Told how many bytes are checked, of how many."""

_PIECE_BYTES: Final = 4 * 2**20
_NAMED_MAX: Final = 3


class Damage(DataError):
    """The first damaged file, and how many others there are. files: the error of each."""

    def __init__(self, field: str, value: object, fix: str, files: tuple[DataError, ...] = ()) -> None:
        self.files = files
        super().__init__(field, value, fix)

    def __reduce__(self) -> Any:
        return type(self), (self.field, self.value, self.fix, self.files)


def verify_files(
    folder: Path, manifest: Manifest | SampleManifest, progress: VerifyProgress | None = None, threads: int = 0
) -> None:
    """Reads every file once and compares size, SHA-256 and any tokens' range; `threads` at once, as many as cores when 0.

    Raises Damage, with what is said of the first file, in the manifest's order, that is not what `prepare` wrote, and how many
    others there are.
    """
    verify_pieces(folder, manifest, lambda entry: _pieces(folder, entry), progress, threads)


def verify_pieces(
    where: Path | str,
    manifest: Manifest | SampleManifest,
    pieces: Callable[[FileEntry], Iterator[memoryview]],
    progress: VerifyProgress | None = None,
    threads: int = 0,
) -> None:
    """As `verify_files`, of files that are given piece by piece, each of which is done with before the next one is asked for."""
    files = manifest.files
    total, done = sum(entry.size_bytes for entry in files), 0
    errors: list[DataError] = []
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        damage = pool.map(lambda entry: _damage(where, entry, pieces, manifest), files)
        for entry, error in zip(files, damage, strict=True):
            done += entry.size_bytes
            errors += [error] if error else []
            if progress is not None:
                progress(done, total)
    if errors:
        raise _all_of(errors)


def _all_of(errors: list[DataError]) -> Damage:
    first, others = errors[0], [error.field for error in errors[1:]]
    if not others:
        return Damage(first.field, first.value, first.fix, (first,))
    named = ", ".join(others[:_NAMED_MAX]) + (" ..." if len(others) > _NAMED_MAX else "")
    return Damage(first.field, first.value, f"{first.fix}; and {len(others)} more: {named}", tuple(errors))


Pieces = Callable[[FileEntry], Iterator[memoryview]]


def _damage(where: Path | str, entry: FileEntry, pieces: Pieces, manifest: Manifest | SampleManifest) -> DataError | None:
    if isinstance(manifest, SampleManifest):
        found = _damage_of(where, entry, pieces, None)
        return of_samples(found) if found else None
    return _damage_of(where, entry, pieces, manifest if entry.name.endswith(".bin") else None)


def _damage_of(where: Path | str, entry: FileEntry, pieces: Pieces, tokens: Manifest | None) -> DataError | None:
    """tokens: whose tokens the file holds, if any."""
    try:
        _check(where, entry, pieces(entry), tokens)
    except DataError as error:
        return error
    except OSError as error:
        return unreadable(entry, f"{where}/{entry.name}", error)
    return None


def _check(where: Path | str, entry: FileEntry, pieces: Iterator[memoryview], tokens: Manifest | None) -> None:
    """Raises DataError, OSError."""
    digest = hashlib.sha256()
    most, least = 0, 0
    for piece in pieces:
        digest.update(piece)
        if tokens is not None:
            ids = np.frombuffer(piece, dtype=DTYPES[tokens.dtype])
            most, least = max(most, int(ids.max())), min(least, int(ids.min()))
    if digest.hexdigest() != entry.sha256:
        raise damaged(entry, where, digest.hexdigest())
    if tokens is not None:
        check_range(entry, f"{where}/{entry.name}", least, most, tokens.vocab_size)


def _pieces(folder: Path, entry: FileEntry) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(_PIECE_BYTES))
    with (folder / entry.name).open("rb") as file:
        if (size := os.fstat(file.fileno()).st_size) != entry.size_bytes:
            raise wrong_size(entry, folder, size)
        while got := file.readinto(buffer):
            yield buffer[:got]
