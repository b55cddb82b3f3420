"""Indexed data sets that Megatron-LM made, as a prepared folder of ours. The other way needs nothing: our shards are such pairs.

Layout and the codes of token types: see `megatron`. A document is the sequences between two document bounds, wherever they lie in
the `.bin`; what some versions write after the bounds is not read.
"""

import hashlib
import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError
from phalanx.job.data.checked import path_of
from phalanx.job.data.imported import Ids, ImportAsked, Imported, check_ids, marked, write_folder
from phalanx.job.data.megatron import HEADER, MAGIC, VERSION

Report = Callable[[int, int], None]

_TYPES: Final = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""By code; 6 and 7 are floating point numbers, which are no ids."""
_HASH_BYTES: Final = 2**22


@dataclass(frozen=True, slots=True)
class _Pair:
    """lengths, offsets: of each sequence, in tokens and bytes. bounds: of documents, in sequences."""

    bin: Path
    dtype: np.dtype[np.integer]
    lengths: NDArray[np.int32]
    offsets: NDArray[np.int64]
    bounds: NDArray[np.int64]
    size_bytes: int
    index: bytes


def import_megatron(
    prefixes: Sequence[Path], out: Path, asked: ImportAsked, progress: Report | None = None, force: bool = False
) -> Path:
    """Makes the folder `out` of one or more pairs PREFIX.bin and PREFIX.idx, one after the other. Documents without an end mark get
    one.

    Raises DataError, SetupError (no `tokenizers`), StoreUnavailable (disk full), Conflict.
    """
    if isinstance(prefixes, str | Path):
        raise DataError("prefixes", str(prefixes), f"give a list of paths, such as [{str(prefixes)!r}]")
    prefixes, out = [path_of("prefixes", prefix) for prefix in prefixes], path_of("out", out)
    if not prefixes:
        raise DataError("prefixes", "(none)", "name the pairs by their path without .bin and .idx")
    pairs = [_opened(prefix) for prefix in prefixes]
    whole, report = hashlib.sha256(), progress or (lambda *_: None)
    total = sum(pair.size_bytes for pair in pairs)

    def read(vocab_size: int, end: int) -> Iterator[Ids]:
        done = 0
        for pair in pairs:
            whole.update(pair.index)
            for part, ids in _documents(pair, vocab_size, whole.update):
                yield marked(ids, end)
                report(done + part, total)
            done += pair.size_bytes

    name = " ".join(pair.bin.stem for pair in pairs)
    what = Imported(name=name, made_by={"made_by": "import-megatron"}, sha256=whole.hexdigest)
    return write_folder(out, read, what, asked, [pair.bin for pair in pairs], force)


def _opened(prefix: Path) -> _Pair:
    stem = prefix.with_suffix("") if prefix.suffix in (".bin", ".idx") else prefix
    bin_path, idx_path = (stem.parent / f"{stem.name}{ending}" for ending in (".bin", ".idx"))
    try:
        index, size = idx_path.read_bytes(), bin_path.stat().st_size
    except OSError as error:
        fix = f"cannot be read ({error.strerror}); name a pair PREFIX.bin and PREFIX.idx by its path without the ending"
        raise DataError("prefixes", str(prefix), fix) from error
    return _checked(bin_path, idx_path, index, size)


def _checked(bin_path: Path, idx_path: Path, index: bytes, size: int) -> _Pair:
    """Raises DataError for an index that does not fit its tokens."""

    def wrong(what: str) -> DataError:
        return DataError("index", str(idx_path), f"{what}; make it again with Megatron's preprocess_data.py")

    if not index.startswith(MAGIC) or len(index) < len(MAGIC) + HEADER.size:
        raise wrong("is no index of an indexed data set")
    version, code, sequences, num_bounds = HEADER.unpack_from(index, len(MAGIC))
    if version != VERSION:
        raise DataError("index", str(idx_path), f"is of version {version}; this one reads {VERSION}")
    if code not in _TYPES:
        raise wrong(f"says that tokens are of type {code}, which holds no ids")
    at = len(MAGIC) + HEADER.size
    if len(index) < at + 12 * sequences + 8 * num_bounds:
        raise wrong(f"has {len(index)} bytes, too few for {sequences} sequences")
    lengths = np.frombuffer(index, "<i4", sequences, at)
    offsets = np.frombuffer(index, "<i8", sequences, at + 4 * sequences)
    bounds = np.frombuffer(index, "<i8", num_bounds, at + 12 * sequences)
    dtype: np.dtype[np.integer] = np.dtype(_TYPES[code])
    if not num_bounds or bounds[0] != 0 or bounds[-1] != sequences or (np.diff(bounds) < 0).any():
        raise wrong("has document bounds that are none of its sequences")
    ends = offsets + lengths.astype(np.int64) * dtype.itemsize
    if sequences and (lengths.min() < 0 or offsets.min() < 0 or (offsets % dtype.itemsize).any() or int(ends.max()) > size):
        raise wrong(f"points outside {bin_path.name}, which has {size} bytes")
    return _Pair(bin_path, dtype, lengths, offsets, bounds, size, index)


def _documents(pair: _Pair, vocab_size: int, hashed: Callable[[memoryview], None]) -> Iterator[tuple[int, Ids]]:
    """Each that is not empty, and how far it lies in the `.bin`."""
    if not pair.size_bytes:
        return
    with pair.bin.open("rb") as file, mmap.mmap(file.fileno(), pair.size_bytes, access=mmap.ACCESS_READ) as data:
        with memoryview(data) as view:
            for start in range(0, pair.size_bytes, _HASH_BYTES):
                hashed(view[start : start + _HASH_BYTES])
        for number in range(len(pair.bounds) - 1):
            rows = range(int(pair.bounds[number]), int(pair.bounds[number + 1]))
            if parts := [part for part in (_sequence(pair, data, row) for row in rows) if part.size]:
                document = np.concatenate(parts)
                check_ids(document, vocab_size, "tokens", f"document {number} of {pair.bin}")
                yield int(pair.offsets[rows[-1]]), document


def _sequence(pair: _Pair, data: mmap.mmap, row: int) -> Ids:
    return np.frombuffer(data, pair.dtype, int(pair.lengths[row]), int(pair.offsets[row])).astype(np.int64)
