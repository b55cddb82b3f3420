"""Tokens of ours to MDS: what `streaming.StreamingDataset` reads, a column `tokens` of one type."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import Conflict, DataError
from phalanx.job.data import megatron
from phalanx.job.data.checked import path_of, split_of, whole
from phalanx.job.data.manifest import Shard, Split
from phalanx.job.data.mds.index import INDEX, SHARD_BYTES_MAX, VERSION
from phalanx.job.data.open import TokenData, open_data
from phalanx.job.data.place import building, check_out, move_into_place
from phalanx.job.data.shards import read_small
from phalanx.job.data.standing import check_no_data, check_only
from phalanx.job.data.tars.ingest import Report
from phalanx.storage.atomic import refused, write_atomic
from phalanx.storage.hashes import sha256_bytes

SIZE_LIMIT: Final = 64 * 2**20
"""What MDSWriter does, too."""

COLUMN: Final = "tokens"
_SIZE_MIN: Final = 1024
_OFFSET: Final = 4


def export(
    data: Path,
    out: Path,
    split: Split = "train",
    sequence: int | None = None,
    size_limit: int = SIZE_LIMIT,
    progress: Report | None = None,
    force: bool = False,
) -> Path:
    """Makes the folder `out` of a split of prepared tokens: a sample for each document, with its end mark, or for every `sequence`
    tokens of all documents end to end, of which what is left at the end is dropped. A shard has `size_limit` bytes at most, or one
    sample. The same data gives the same bytes. out: absent, empty, or this very export, which is made again; what else stands there
    is replaced only with `force`.

    Raises DataError, also for damage, StoreUnavailable (disk full), Conflict.
    """
    data, out, split = path_of("data", data), Path(os.path.realpath(path_of("out", out))), split_of(split)
    if sequence is not None:
        whole("sequence", sequence)
    again = not force and (out / INDEX).is_file()  # what stands there is compared when this one is made
    check_out(out, [data], force or again)
    check_no_data(out, force)
    if not _SIZE_MIN <= whole("size_limit", size_limit) < SHARD_BYTES_MAX:
        raise DataError("size_limit", size_limit, f"write a number from {_SIZE_MIN}, below {SHARD_BYTES_MAX}")
    opened = open_data(data)
    report, done = progress or (lambda *_: None), 0
    try:
        with building(out, fresh=True) as folder:
            writer = _Writer(folder, opened.manifest.dtype, sequence, size_limit)
            left = np.zeros(0, dtype=megatron.DTYPES[opened.manifest.dtype])
            shards = [shard for shard in opened.manifest.shards if shard.split == split]
            for shard in shards:
                samples, left = _samples(opened, shard, sequence, left)
                for ids in samples:
                    writer.add(ids)
                done += shard.bin_bytes
                report(done, sum(one.bin_bytes for one in shards))
            writer.finish(split)
            if again:
                _check_same(folder, out)
            move_into_place(folder, out, force or again)
    except OSError as error:
        raise refused(out, error) from error
    return out


def _check_same(folder: Path, out: Path) -> None:
    """The index has the hashes of all shards. Raises Conflict unless `out` is of the very same, and nothing else lies there."""
    if (out / INDEX).read_bytes() != (folder / INDEX).read_bytes():
        fix = "holds MDS of other data, or exported otherwise; give --force to replace it, or another --out"
        raise Conflict("out", str(out), fix)
    check_only(out, {path.name for path in folder.iterdir()})


def _samples(
    data: TokenData, shard: Shard, sequence: int | None, left: NDArray[Any]
) -> tuple[Iterator[NDArray[Any]], NDArray[Any]]:
    """Of a shard, which is read and compared whole, and what goes before the next one."""
    ids = np.frombuffer(read_small(data.folder, shard.bin), left.dtype)
    if sequence is None:
        ends = np.cumsum(megatron.index_lengths(read_small(data.folder, shard.idx)), dtype=np.int64)
        return iter(np.split(ids, ends[:-1])), left
    ids = np.concatenate([left, ids])
    whole = len(ids) // sequence * sequence
    return iter(ids[:whole].reshape(-1, sequence)), ids[whole:]


class _Writer:
    """Shards of samples, each of one array; see `read` for how they lie."""

    def __init__(self, folder: Path, dtype: megatron.TokenType, sequence: int | None, size_limit: int) -> None:
        self._folder, self._fixed, self._size_limit = folder, sequence is not None, size_limit
        self._config = {
            "column_encodings": [f"ndarray:{dtype}" + (f":{sequence}" if sequence else "")],
            "column_names": [COLUMN],
            "column_sizes": [sequence * megatron.WIDTHS[dtype] if sequence else None],
            "compression": None,
            "format": "mds",
            "hashes": ["sha256"],
            "size_limit": size_limit,
            "version": VERSION,
        }
        self._head = json.dumps(self._config, sort_keys=True).encode()
        self._shards: list[dict[str, Any]] = []
        self._begin()

    def add(self, ids: NDArray[Any]) -> None:
        sample = ids.tobytes() if self._fixed else _varying(ids)
        if self._samples and self._bytes + len(sample) + _OFFSET > self._size_limit:
            self._write()
        self._samples.append(sample)
        self._bytes += len(sample) + _OFFSET
        if self._bytes >= SHARD_BYTES_MAX:
            raise DataError("data", len(ids), "a document has over 4 GiB, which MDS cannot hold; export it with --sequence")

    def finish(self, split: Split) -> None:
        """Raises DataError where nothing was added."""
        if self._samples:
            self._write()
        if not self._shards:
            raise DataError("split", split, "has no whole sample; name the other split, or a smaller --sequence")
        index = json.dumps({"shards": self._shards, "version": VERSION}, sort_keys=True)
        write_atomic(self._folder / INDEX, index.encode())

    def _begin(self) -> None:
        self._samples: list[bytes] = []
        self._bytes = 2 * _OFFSET + len(self._head)

    def _write(self) -> None:
        count, name = len(self._samples), f"shard.{len(self._shards):05d}.mds"
        sizes = np.array([_OFFSET * (count + 2) + len(self._head), *map(len, self._samples)], dtype=np.int64)
        offsets = np.cumsum(sizes).astype("<u4")
        data = b"".join([np.array([count], dtype="<u4").tobytes(), offsets.tobytes(), self._head, *self._samples])
        write_atomic(self._folder / name, data)
        raw = {"basename": name, "bytes": len(data), "hashes": {"sha256": sha256_bytes(data)}}
        self._shards.append({**self._config, "raw_data": raw, "samples": count, "zip_data": None})
        self._begin()


def _varying(ids: NDArray[Any]) -> bytes:
    """The size of the value, then one byte for one dimension of a width, its length, and the ids."""
    width = next(number for number in range(4) if len(ids) < 1 << (8 << number))
    value = bytes([1 << 2 | width]) + len(ids).to_bytes(1 << width, "little") + ids.tobytes()
    return len(value).to_bytes(_OFFSET, "little") + value
