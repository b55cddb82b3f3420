"""One rank's shard of a checkpoint: a safetensors file, and the index that says where each part lies and what its BLAKE3 is.

Torch-free: the process that writes for a rank starts without torch. A part is a box of a tensor: `size` elements from `start` on in
each dimension of the global `shape`.
"""

import contextlib
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blake3 import blake3

from phalanx.core.errors import Bug, CheckpointError
from phalanx.storage.atomic import fsync_folder, make_folders, refused

FORMAT: Final = 3
PART_BYTES_MAX: Final = 64 * 1024 * 1024
"""A larger box is cut: what a rank must hold, or read for a part of it, stays bounded."""
ITEM_BYTES: Final = {
    "F64": 8, "I64": 8, "U64": 8, "C64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip
"""Element types by their safetensors codes."""

_WRITE_BYTES: Final = 16 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024
"""Small enough to be hashed out of the core's own cache."""
_HEADER_ALIGN: Final = 64
_TOKEN: Final = re.compile(r"[A-Za-z0-9._]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A box of one tensor. dtype: a key of ITEM_BYTES."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.size) * ITEM_BYTES[self.dtype]

    @property
    def key(self) -> str:
        """Its name in the shard: the tensor's own where it is whole."""
        return self.name if self.size == self.shape else f"{self.name}@{','.join(map(str, self.start))}"

    def inside(self) -> bool:
        """Whether the box lies in its tensor."""
        dims = zip(self.shape, self.start, self.size, strict=False)
        same = len(self.shape) == len(self.start) == len(self.size)
        return same and all(start >= 0 and size >= 0 and start + size <= whole for whole, start, size in dims)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartEntry(Part):
    """Where a part lies in its shard file, in bytes, and the BLAKE3 of them."""

    offset: int
    length: int
    blake3: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveKey:
    """Which save a file belongs to. attempt: '' outside Phalanx. save: of letters, digits, '.' and '_', another one for each try
    of a step, the same on every rank: files of two tries never mix."""

    step: int
    save: str
    attempt: str = ""
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardIndex:
    """What one rank wrote. file: its plain name, beside the index."""

    key: SaveKey
    rank: int
    file: str
    size_bytes: int
    header_bytes: int
    header_blake3: str
    parts: tuple[PartEntry, ...]
    format: int = FORMAT


def shard_path(folder: Path, key: SaveKey, rank: int) -> Path:
    """Named by the save too: a rank that was given up and goes on writing never touches a newer attempt's file."""
    return folder / f"shard-{rank:05d}-{token(key)}.safetensors"


def token(key: SaveKey) -> str:
    if not _TOKEN.fullmatch(key.save):
        raise Bug(f"{key.save!r} cannot be part of a file's name")
    return key.save


def write(path: Path, parts: Sequence[tuple[Part, memoryview]], *, key: SaveKey, rank: int) -> ShardIndex:
    """Makes `path` the shard of these parts, durably and atomically. Each view holds a part's bytes, unchanged until this returns.

    Raises SetupError where the place cannot be written, StoreUnavailable where the disk is full or failing; then nothing is left.
    """
    ordered = sorted(((part, view.cast("B")) for part, view in parts), key=lambda pair: -ITEM_BYTES[pair[0].dtype])
    header = _header([part for part, _ in ordered])
    try:
        make_folders(path.parent)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        try:
            hashes = _fill(descriptor, header, [view for _, view in ordered])
            os.replace(name, path)  # noqa: PTH105 (a plain string)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
        finally:
            os.close(descriptor)
        fsync_folder(path.parent)
    except OSError as error:
        raise refused(path, error) from error
    return _index(path.name, header, [part for part, _ in ordered], hashes, key, rank)


def _fill(descriptor: int, header: bytes, views: Sequence[memoryview]) -> list[str]:
    """The disk begins while we still write; we hash while it ends: that wait is longer than the hashing, and costs no core."""
    os.fchmod(descriptor, 0o644)
    end = 0
    for view in (memoryview(header), *views):
        end = _write_all(descriptor, view, end)
    with ThreadPoolExecutor(1, "fsync") as disk:
        synced = disk.submit(os.fsync, descriptor)
        hashes = [blake3(view).hexdigest() for view in views]
        synced.result()
    return hashes


def _write_all(descriptor: int, view: memoryview, at: int) -> int:
    """Where it ends. Linux starts to write out what is said not to be needed (fadvise.c: WB_SYNC_NONE), and keeps it in the page
    cache while it does."""
    while len(view):
        count = os.write(descriptor, view[:_WRITE_BYTES])
        os.posix_fadvise(descriptor, at, count, os.POSIX_FADV_DONTNEED)
        view, at = view[count:], at + count
    return at


def _header(parts: Sequence[Part]) -> bytes:
    """As safetensors has it: the length of the JSON text in 8 bytes, then the text. Larger elements come first, so that all of them
    lie at a multiple of their size."""
    entries, end = {}, 0
    for part in parts:
        begin, end = end, end + part.num_bytes
        entries[part.key] = {"dtype": part.dtype, "shape": part.size, "data_offsets": (begin, end)}
    if len(entries) != len(parts):
        raise Bug("two parts of a shard have one name")
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _HEADER_ALIGN)
    return len(text).to_bytes(8, "little") + text


def _index(file: str, header: bytes, parts: Sequence[Part], hashes: Sequence[str], key: SaveKey, rank: int) -> ShardIndex:
    entries, offset = [], len(header)
    for part, digest in zip(parts, hashes, strict=True):
        entries.append(
            PartEntry(
                name=part.name, dtype=part.dtype, shape=part.shape, start=part.start, size=part.size,
                offset=offset, length=part.num_bytes, blake3=digest,
            )
        )  # fmt: skip
        offset += part.num_bytes
    return ShardIndex(
        key=key, rank=rank, file=file, size_bytes=offset, header_bytes=len(header),
        header_blake3=blake3(header).hexdigest(), parts=tuple(entries),
    )  # fmt: skip


# Reading


@contextlib.contextmanager
def opened(folder: Path, index: ShardIndex) -> Iterator[int]:
    """A descriptor of the shard. Raises CheckpointError when it is missing, no plain file, or of another size."""
    path = folder / index.file
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise damaged(folder, index.file, f"cannot be opened ({error.strerror})") from error
    try:
        size = os.fstat(descriptor).st_size
        if size != index.size_bytes:
            raise damaged(folder, index.file, f"has {size} bytes instead of {index.size_bytes}")
        yield descriptor
    finally:
        os.close(descriptor)


def read_part(descriptor: int, folder: Path, index: ShardIndex, entry: PartEntry, into: memoryview) -> None:
    """Fills `into`, the part's length in bytes. Raises CheckpointError when the file ends or cannot be read; verifies nothing."""
    done = 0
    while done < entry.length:
        try:
            count = os.preadv(descriptor, [into[done : done + _WRITE_BYTES]], entry.offset + done)
        except OSError as error:
            raise damaged(folder, index.file, f"cannot be read ({error.strerror})") from error
        if not count:
            raise damaged(folder, index.file, f"ends within {entry.key}")
        done += count


def check(folder: Path, index: ShardIndex, entry: PartEntry, data: memoryview) -> None:
    """Raises CheckpointError unless `data` are the bytes that were saved."""
    if blake3(data).hexdigest() != entry.blake3:
        raise damaged(folder, index.file, f"{entry.key} does not match its checksum")


def verify(folder: Path, index: ShardIndex, progress: Callable[[int], None] = lambda _: None) -> None:
    """Reads the whole file. progress: told bytes read since the last time. Raises CheckpointError naming file and part."""
    buffer = memoryview(bytearray(_READ_BYTES))
    with opened(folder, index) as descriptor:
        header = (0, index.header_bytes, index.header_blake3, "its header")
        for begin, length, digest, what in (header, *((one.offset, one.length, one.blake3, one.key) for one in index.parts)):
            found, done = blake3(), 0
            while done < length:
                count = _read(descriptor, folder, index, buffer[: min(length - done, _READ_BYTES)], begin + done)
                found.update(buffer[:count])
                done += count
                progress(count)
            if found.hexdigest() != digest:
                raise damaged(folder, index.file, f"{what} does not match its checksum")


def _read(descriptor: int, folder: Path, index: ShardIndex, into: memoryview, offset: int) -> int:
    try:
        count = os.preadv(descriptor, [into], offset)
    except OSError as error:
        raise damaged(folder, index.file, f"cannot be read ({error.strerror})") from error
    if not count:
        raise damaged(folder, index.file, "ends early")
    return count


class Damaged(CheckpointError):
    """Something is wrong with the checkpoint, whoever reads it; the one before may do."""


def damaged(folder: Path, file: str, what: str) -> Damaged:
    return Damaged(f"checkpoint {folder.name}", file, what)
