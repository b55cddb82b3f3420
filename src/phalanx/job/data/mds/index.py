"""The `index.json` of an MDS folder: its shards, and what their columns are. It may be anybody's."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phalanx.core import wire
from phalanx.core.errors import DataError

INDEX: Final = "index.json"
VERSION: Final = 2
_SHOWN: Final = 3
_INDEX_BYTES_MAX: Final = 256 * 2**20
_PLAIN_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]*")
SHARD_BYTES_MAX: Final = 2**32
"""Offsets are of 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MdsFile:
    """basename: below the folder. hashes: by the names that `hashlib` and `xxhash` have for them."""

    basename: str
    bytes: int
    hashes: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MdsShard:
    """raw_data: as it is read. zip_data: as it lies there, where `compression` says how."""

    column_names: Sequence[str]
    column_encodings: Sequence[str]
    column_sizes: Sequence[int | None]
    compression: str | None
    format: str
    hashes: Sequence[str]
    raw_data: MdsFile
    samples: int
    size_limit: int | str | None
    version: int
    zip_data: MdsFile | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MdsIndex:
    """What `index.json` holds."""

    version: int
    shards: Sequence[MdsShard]

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)


@dataclass(frozen=True, slots=True)
class _Version:
    """Read first, since another version may have any other field."""

    version: int


def read_index(folder: Path) -> MdsIndex:
    """Raises DataError for a folder that is none of MDS, version 2, with one set of columns in all of its shards."""
    path = folder / INDEX
    try:
        if path.stat().st_size > _INDEX_BYTES_MAX:
            raise DataError("mds", str(path), "is far too large for an index; name a folder that MDSWriter wrote")
        data = path.read_bytes()
        if (version := wire.loads(_Version, data).version) != VERSION:
            raise DataError(
                "version", version, f"{path} is of another version of MDS than {VERSION}; write it again with MDSWriter"
            )
        index: MdsIndex = wire.loads(MdsIndex, data)
    except OSError as error:
        if splits := sorted(above.parent.name for above in folder.glob(f"*/{INDEX}")):
            fix = f"holds MDS folders ({', '.join(splits[:_SHOWN])}); import each by itself, as {folder / splits[0]}"
            raise DataError("mds", str(folder), fix) from error
        fix = f"cannot be read ({error.strerror}); name a folder with the {INDEX} of MDS, one for each split"
        raise DataError("mds", str(path), fix) from error
    except ValueError as error:
        raise DataError("mds", str(path), f"is no index of MDS ({error}); name a folder that MDSWriter wrote") from error
    _check(index, path)
    return index


def _check(index: MdsIndex, path: Path) -> None:
    if not index.samples:
        raise DataError("mds", str(path), "has no samples; name another folder")
    first = index.shards[0]
    for shard in index.shards:
        for file in (shard.raw_data, *([shard.zip_data] if shard.zip_data else [])):
            if not all(_PLAIN_PART.fullmatch(part) for part in file.basename.split("/")):
                raise DataError("basename", file.basename, f"{path} names a file outside its folder; write it again with MDSWriter")
            if not 0 <= file.bytes < SHARD_BYTES_MAX:
                raise DataError("bytes", file.bytes, f"{path} gives this size to {file.basename}; a shard has less than 4 GiB")
        if shard.format != "mds" or shard.version != VERSION:
            raise DataError("format", f"{shard.format} {shard.version}", f"{path} has a shard of this; only mds {VERSION} is read")
        if shard.samples < 0:
            raise DataError("samples", shard.samples, f"{path} counts less than none in {shard.raw_data.basename}")
        columns = (shard.column_names, shard.column_encodings, shard.column_sizes)
        if len({len(column) for column in columns}) != 1 or columns[:2] != (first.column_names, first.column_encodings):
            raise DataError("columns", ", ".join(shard.column_names), f"{path} has other columns in {shard.raw_data.basename}")
