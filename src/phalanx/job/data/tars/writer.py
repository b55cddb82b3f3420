"""Writes samples into tar shards with their indices. All checksums are made of the bytes on their way to the disk."""

import hashlib
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from xxhash import xxh3_64_intdigest

from phalanx.core.errors import DataError
from phalanx.job.data.manifest import FileEntry
from phalanx.job.data.tars.index import IndexBuilder, Place
from phalanx.job.data.tars.manifest import FORMAT, FieldCount, SampleManifest, SampleShard
from phalanx.job.data.tars.members import is_safe
from phalanx.job.data.tars.scan import counted
from phalanx.storage.atomic import write_atomic
from phalanx.storage.hashes import sha256_bytes

SHARD_BYTES_MAX: Final = 128 * 2**20
SHARD_BYTES: Final = (2**20, 2**40)
"""What may be asked for."""

NAME: Final = "samples"


class TarWriter:
    """Whole samples to each shard, until `shard_bytes_max` is reached: the shards depend on the samples and their order alone."""

    def __init__(self, folder: Path, shard_bytes_max: int = SHARD_BYTES_MAX) -> None:
        if not SHARD_BYTES[0] <= shard_bytes_max <= SHARD_BYTES[1]:
            raise DataError("shard_bytes_max", shard_bytes_max, f"write a number from {SHARD_BYTES[0]} to {SHARD_BYTES[1]}")
        self._folder = folder
        self._bytes_max = shard_bytes_max
        self._shards: list[SampleShard] = []
        self._counts: dict[str, FieldCount] = {}
        self._open: _OpenTar | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._open is not None:
            self._open.abandon()

    def add(self, key: str, fields: Mapping[str, bytes]) -> None:
        """A sample. key: without dots in its last part, and another one than every other of the data set. fields: names without a
        slash, in lower case."""
        if not is_safe(key) or "." in key.rpartition("/")[2]:
            raise DataError("key", key, "is no safe name of a file without dots; name it otherwise")
        if self._open is None:
            self._open = _OpenTar(self._folder / f"{NAME}-{len(self._shards):05d}.tar")
        self._open.add(key, fields)
        if self._open.size >= self._bytes_max:
            self._close(self._open)

    def finish(
        self, classes: tuple[str, ...], skipped: Mapping[str, int], parameters: Mapping[str, str | int | float]
    ) -> SampleManifest:
        """The manifest of all that was added, to be committed. Raises DataError when that is nothing."""
        if self._open is not None:
            self._close(self._open)
        if not self._shards:
            raise DataError("samples", 0, "there is none to be written; name a folder that holds some")
        return manifest_of(self._shards, self._counts, classes, skipped, parameters)

    def _close(self, shard: "_OpenTar") -> None:
        tar = shard.close()
        self._shards.append(with_index(self._folder, tar, shard.index.to_bytes(), len(shard.index.keys)))
        self._counts = added(self._counts, counted(shard.index.places))
        self._open = None


class _OpenTar:
    """A tar that grows."""

    def __init__(self, path: Path) -> None:
        self.index = IndexBuilder()
        self.size = 0
        self._path = path
        self._file: IO[bytes] = path.open("wb")
        self._sha256 = hashlib.sha256()

    def add(self, key: str, fields: Mapping[str, bytes]) -> None:
        places = {}
        for name, data in fields.items():
            self._write(_header(f"{key}.{name}", len(data)))
            places[name] = Place(self.size, len(data), xxh3_64_intdigest(data))
            self._write(data)
            self._write(bytes(-len(data) % tarfile.BLOCKSIZE))
        self.index.add(key, places)

    def abandon(self) -> None:
        self._file.close()

    def close(self) -> FileEntry:
        """The file, durable."""
        self._write(bytes(2 * tarfile.BLOCKSIZE))
        self._write(bytes(-self.size % tarfile.RECORDSIZE))
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())
        return FileEntry(name=self._path.name, size_bytes=self.size, sha256=self._sha256.hexdigest())

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._sha256.update(data)
        self.size += len(data)


def _header(name: str, size: int) -> bytes:
    """The same for the same sample: of no time and nobody's."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info.tobuf(tarfile.PAX_FORMAT)


def with_index(folder: Path, tar: FileEntry, index: bytes, samples: int) -> SampleShard:
    """A tar that is on the disk becomes a shard by its index, which is written beside it."""
    name = f"{tar.name.removesuffix('.tar')}.index"
    write_atomic(folder / name, index)
    return SampleShard.of(samples, tar=tar, index=FileEntry(name=name, size_bytes=len(index), sha256=sha256_bytes(index)))


def added(counts: Mapping[str, FieldCount], more: Mapping[str, FieldCount]) -> dict[str, FieldCount]:
    """Sums, by the names of fields in their order."""
    none = FieldCount(samples=0, size_bytes=0)
    return {
        name: FieldCount(samples=one.samples + other.samples, size_bytes=one.size_bytes + other.size_bytes)
        for name in sorted({*counts, *more})
        for one, other in [(counts.get(name, none), more.get(name, none))]
    }


def manifest_of(
    shards: list[SampleShard],
    counts: Mapping[str, FieldCount],
    classes: tuple[str, ...],
    skipped: Mapping[str, int],
    parameters: Mapping[str, str | int | float],
) -> SampleManifest:
    """Of these shards, in this order."""
    return SampleManifest(
        kind="samples",
        format=FORMAT,
        samples=sum(shard.samples for shard in shards),
        fields=counts,
        classes=classes,
        skipped=dict(sorted(skipped.items())),
        shards=tuple(shards),
        parameters=parameters,
    )
