"""The samples of an MDS folder, shard after shard, each compared with the hashes that its index gives.

A shard, little-endian: uint32 number of samples n; uint32 offsets[n + 1] from the beginning of the file; JSON that repeats the
columns; then the samples. A sample: uint32 size of each value whose column does not fix it, then the values in the order of the
columns.
"""

import bz2
import gzip
import hashlib
import io
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash

from phalanx.core.errors import DataError, SetupError
from phalanx.job.data.mds.encodings import fixed_size
from phalanx.job.data.mds.index import MdsFile, MdsIndex, MdsShard, read_index

Row = dict[str, bytes]
"""The values of a sample, by the names of their columns."""

_SIZE: Final = 4
_AGAIN: Final = "fetch it again, or write the folder again with MDSWriter"


class MdsFolder:
    """A folder that MDSWriter wrote: one split. Raises DataError for one with columns that cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index: MdsIndex = read_index(folder)
        first = self.index.shards[0]
        self.columns: dict[str, str] = dict(zip(first.column_names, first.column_encodings, strict=True))
        self._sizes = {name: _fixed_size(name, encoding) for name, encoding in self.columns.items()}
        if len(self.columns) != len(first.column_names):
            raise DataError("columns", ", ".join(first.column_names), "one comes twice; write the folder again with MDSWriter")

    @property
    def size_bytes(self) -> int:
        """Of all shards, as they are read."""
        return sum(shard.raw_data.bytes for shard in self.index.shards)

    def shards(self) -> Iterator[tuple[bytes, list[Row]]]:
        """Bytes and samples of each, in order. Memory for one of them. Raises DataError for damage, naming the shard."""
        for shard in self.index.shards:
            data = _raw(self.folder, shard)
            try:
                rows = self._rows(shard, data)
            except ValueError as error:
                raise DataError(shard.raw_data.basename, str(self.folder), f"is damaged: {error}; {_AGAIN}") from error
            yield data, rows

    def _rows(self, shard: MdsShard, data: bytes) -> list[Row]:
        count = shard.samples
        head = _SIZE * (count + 2)
        if len(data) < head or int.from_bytes(data[:_SIZE], "little") != count:
            raise ValueError(f"it does not hold {count} samples")
        offsets = np.frombuffer(data, "<u4", count + 1, _SIZE).astype(np.int64)
        if offsets[0] < head or (np.diff(offsets) < 0).any() or offsets[-1] != len(data):
            raise ValueError("its offsets do not lie in it, one after the other")
        ends = offsets.tolist()
        return [self._row(data[begin:end], number) for number, (begin, end) in enumerate(pairwise(ends))]

    def _row(self, data: bytes, number: int) -> Row:
        varying = [name for name, size in self._sizes.items() if size is None]
        at = _SIZE * len(varying)
        if len(data) < at:
            raise ValueError(f"sample {number} is too short")
        sizes = self._sizes | dict(zip(varying, np.frombuffer(data, "<u4", len(varying)).tolist(), strict=True))
        row: Row = {}
        for name, size in sizes.items():
            assert size is not None
            row[name] = data[at : at + size]
            at += size
        if at != len(data):
            raise ValueError(f"the values of sample {number} have {at} bytes in its {len(data)}")
        return row


def _fixed_size(name: str, encoding: str) -> int | None:
    try:
        return fixed_size(encoding)
    except ValueError as error:
        raise DataError(f"column {name}", encoding, str(error)) from error


def _raw(folder: Path, shard: MdsShard) -> bytes:
    """The shard as it is read, from the file that is there."""
    raw = shard.raw_data
    if shard.zip_data is None or (folder / raw.basename).exists():
        return _bytes(folder, raw)
    packed = _bytes(folder, shard.zip_data)
    name = (shard.compression or "").split(":")[0]
    try:
        data = _unpacked(name, packed, raw.bytes)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(shard.zip_data.basename, str(folder), f"cannot be unpacked as {name} ({error}); {_AGAIN}") from error
    _compare(folder, raw, data)
    return data


def _unpacked(name: str, data: bytes, size_bytes: int) -> bytes:
    """Never more than one byte above the size that is expected."""
    if name in ("zstd", "br"):
        library = _arrow()
        with library.input_stream(io.BytesIO(data), compression={"zstd": "zstd", "br": "brotli"}[name]) as stream:
            return bytes(stream.read(size_bytes + 1))
    if name == "gz":
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            return file.read(size_bytes + 1)
    if name == "bz2":
        return bz2.BZ2Decompressor().decompress(data, size_bytes + 1)
    raise DataError("compression", name, "is not read; write the folder again with compression zstd, gz, bz2, br or none")


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise SetupError("pyarrow", "not installed", "shards packed by zstd or br need it; run: pip install pyarrow") from error
    return pyarrow


def _bytes(folder: Path, file: MdsFile) -> bytes:
    path = folder / file.basename
    try:
        if (size := path.stat().st_size) != file.bytes:
            raise DataError(file.basename, f"{size} bytes", f"{path} should have {file.bytes}; {_AGAIN}")
        data = path.read_bytes()
    except OSError as error:
        raise DataError(file.basename, str(path), f"cannot be read ({error.strerror}); {_AGAIN}") from error
    _compare(folder, file, data)
    return data


def _compare(folder: Path, file: MdsFile, data: bytes) -> None:
    if len(data) != file.bytes:
        raise DataError(file.basename, f"{len(data)} bytes", f"in {folder} it should have {file.bytes}; {_AGAIN}")
    for name, wanted in file.hashes.items():
        hashed = _hash(name)
        if hashed is not None and (found := hashed(data).hexdigest()) != wanted:
            raise DataError(file.basename, found, f"in {folder} it is damaged: its {name} should be {wanted}; {_AGAIN}")


def _hash(name: str) -> Callable[[bytes], Any] | None:
    """None for one that is not known here."""
    if name in hashlib.algorithms_guaranteed and not name.startswith("shake"):
        return lambda data: hashlib.new(name, data, usedforsecurity=False)
    found: Callable[[bytes], Any] | None = getattr(xxhash, name) if name in xxhash.algorithms_available else None
    return found
