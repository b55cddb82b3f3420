"""A folder of samples, read straight from its tars: opened at once, any field found in O(1) and compared with its checksum."""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from xxhash import xxh3_64_intdigest

from phalanx.core.errors import DataError
from phalanx.job.data.shards import Watch, read_small, unreadable, wrong_size
from phalanx.job.data.tars.index import Index, Place, parse
from phalanx.job.data.tars.manifest import REINDEX, SampleManifest, SampleShard, of_samples, read
from phalanx.job.data.verify import VerifyProgress, verify_files
from phalanx.storage.hashes import sha256_bytes

INDEX_BYTES_MAX: Final = 256 * 2**20
"""Of indices in memory: those of 5,000 shards with 1,000 samples each. What was let go of is read and compared again."""

_FILES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Sample:
    """number: of the sample in the data set. key: the members' name up to its first dot. fields: their bytes, by the rest of it."""

    number: int
    key: str
    fields: Mapping[str, bytes]


class SampleData:
    """The samples of a folder, numbered from 0 in the order of its shards. Any thread may read, and a loader's processes may be
    given it: each opens the folder again."""

    def __init__(self, folder: Path, manifest: SampleManifest, manifest_hash: str) -> None:
        self.folder = folder
        self.manifest = manifest
        self.manifest_hash = manifest_hash
        self._ends = np.cumsum([shard.samples for shard in manifest.shards], dtype=np.int64)
        self._lock = threading.Lock()
        self._indices: OrderedDict[int, Index] = OrderedDict()
        self._index_bytes = 0
        self._files: OrderedDict[int, _Tar] = OrderedDict()

    def __len__(self) -> int:
        return self.manifest.samples

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of all that occur; a sample need not have each."""
        return tuple(self.manifest.fields)

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names, by the numbers in the field `cls`; none where the data does not say them."""
        return self.manifest.classes

    def key(self, number: int) -> str:
        """Of a sample. Raises IndexError, DataError."""
        shard, row = self._at(number)
        return self._index(shard).key(row)

    def read(self, number: int, fields: Sequence[str] | None = None, watch: Watch | None = None) -> Sample:
        """A sample with the fields that it has, or with just these.

        Raises IndexError for a number outside, DataError for a field that the sample lacks, and for damage, which it names by
        shard, key, field and offset.
        """
        shard, row = self._at(number)
        index = self._index(shard)
        places, key = index.places(row), index.key(row)
        names = places if fields is None else fields
        return Sample(number, key, {name: self._field(shard, key, name, places, watch) for name in names})

    def __reduce__(self) -> "tuple[Callable[[Path, str], SampleData], tuple[Path, str]]":
        return _reopened, (self.folder, self.manifest_hash)

    def _at(self, number: int) -> tuple[int, int]:
        if not 0 <= number < len(self):
            raise IndexError(f"sample {number} lies outside [0, {len(self)})")
        shard = int(np.searchsorted(self._ends, number, side="right"))
        return shard, number - (int(self._ends[shard]) - self.manifest.shards[shard].samples)

    def _field(self, number: int, key: str, name: str, places: Mapping[str, Place], watch: Watch | None) -> bytes:
        shard = self.manifest.shards[number]
        if (place := places.get(name)) is None:
            fix = f"{key} in {shard.tar.name} has only {', '.join(sorted(places))}; ask for one of these, or for none by name"
            raise DataError("field", name, fix)
        began = time.monotonic()
        data = self._bytes(number, shard, place)
        read = time.monotonic()
        found = xxh3_64_intdigest(data)
        if watch is not None:
            watch("read", began, read)
            watch("verify", read, time.monotonic())
        if found != place.sum:
            where = f"{place.size} bytes at {place.offset} of {self.folder / shard.tar.name} are damaged"
            fix = f"{where}: their XXH3 is {found:016x}, not {place.sum:016x}; restore it, or {REINDEX}"
            raise DataError(shard.tar.name, f"{key}.{name}", fix)
        return data

    def _bytes(self, number: int, shard: SampleShard, place: Place) -> bytes:
        path = self.folder / shard.tar.name
        try:
            data = self._tar(number, path).read(place.offset, place.size)
        except OSError as error:
            raise of_samples(unreadable(shard.tar, path, error)) from error
        if len(data) < place.size:
            raise of_samples(wrong_size(shard.tar, self.folder, place.offset + len(data)))
        return data

    def _tar(self, number: int, path: Path) -> "_Tar":
        with self._lock:
            found = self._files.get(number) or _Tar(path)
            self._files[number] = found
            self._files.move_to_end(number)
            if len(self._files) > _FILES_MAX:
                self._files.popitem(last=False)
            return found

    def _index(self, number: int) -> Index:
        with self._lock:
            if (known := self._indices.get(number)) is not None:
                self._indices.move_to_end(number)
                return known
        shard = self.manifest.shards[number]
        try:
            index = parse(read_small(self.folder, shard.index), shard.samples, shard.tar_bytes)
        except DataError as error:
            raise of_samples(error) from error
        except ValueError as error:
            raise DataError(shard.index.name, str(self.folder), f"is no index of its tar: {error}; {REINDEX}") from error
        with self._lock:
            self._keep(number, index)
        return index

    def _keep(self, number: int, index: Index) -> None:
        if number not in self._indices:
            self._indices[number] = index
            self._index_bytes += index.size_bytes
        while self._index_bytes > INDEX_BYTES_MAX and len(self._indices) > 1:
            self._index_bytes -= self._indices.popitem(last=False)[1].size_bytes


class _Tar:
    """An open file, closed when the last reader lets go of it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, offset: int, size: int) -> bytes:
        """Fewer bytes only where the file ends."""
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size and (more := os.pread(self._descriptor, size - len(data), offset + len(data))):
            data += more
        return data

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def open_samples(path: Path | str, verify: bool = False, progress: VerifyProgress | None = None) -> SampleData:
    """Opens a folder of samples: reads its manifest and looks at the sizes of its tars. `verify` reads every byte now.

    Raises DataError naming the file, what is wrong with it and what to do.
    """
    path = Path(path)
    manifest, data = read(path)
    _check_sizes(path, manifest)
    if verify:
        verify_files(path, manifest, progress)
    return SampleData(path, manifest, sha256_bytes(data))


def _reopened(folder: Path, manifest_hash: str) -> SampleData:
    """In another process. Raises DataError when other data stands there by now."""
    data = open_samples(folder)
    if data.manifest_hash != manifest_hash:
        fix = f"{folder} holds other data than {manifest_hash}, which was opened; start again"
        raise DataError("manifest", data.manifest_hash, fix)
    return data


def _check_sizes(folder: Path, manifest: SampleManifest) -> None:
    """Of the tars alone: indices are compared whole when they are read."""
    for shard in manifest.shards:
        path = folder / shard.tar.name
        try:
            size = path.stat().st_size
        except OSError as error:
            raise of_samples(unreadable(shard.tar, path, error)) from error
        if size != shard.tar_bytes:
            raise of_samples(wrong_size(shard.tar, folder, size))
