"""One rank's shard of a checkpoint: a safetensors file, and the index that says where each part lies and what its BLAKE3 is.

Torch-free: the process that writes for a rank starts without torch. A part is a box of a tensor: `size` elements from `start` on in
each dimension of the global `shape`.
"""

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

from phalanx.core.errors import Bug, CheckpointError
from phalanx.job.checkpoint.folder import Opened, Unreadable, Where, folder_at

FORMAT: Final = 3
PART_BYTES_MAX: Final = 64 * 1024 * 1024
"""A larger box is cut: what a rank must hold, or read for a part of it, stays bounded."""
ITEM_BYTES: Final = {
    "F64": 8, "I64": 8, "U64": 8, "C64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip
"""Element types by their safetensors codes."""

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


def shard_name(key: SaveKey, rank: int) -> str:
    """With the save in it: a rank that was given up and goes on writing never touches a newer attempt's file."""
    return f"shard-{rank:05d}-{token(key)}.safetensors"


def token(key: SaveKey) -> str:
    if not _TOKEN.fullmatch(key.save):
        raise Bug(f"{key.save!r} cannot be part of a file's name")
    return key.save


def write(folder: Where, parts: Sequence[tuple[Part, memoryview]], *, key: SaveKey, rank: int) -> ShardIndex:
    """Makes this rank's shard of these parts, durably and atomically. Each view holds a part's bytes, unchanged until this returns.

    Raises SetupError where the place cannot be written, StoreUnavailable where the disk is full or the store away; then nothing is
    left, but for what an object store keeps of an upload that was cut off.
    """
    ordered = sorted(((part, view.cast("B")) for part, view in parts), key=lambda pair: -ITEM_BYTES[pair[0].dtype])
    header = _header([part for part, _ in ordered])
    name = shard_name(key, rank)
    header_hash, *hashes = folder_at(folder).write_views(name, [memoryview(header), *(view for _, view in ordered)])
    return _index(name, (len(header), header_hash), [part for part, _ in ordered], hashes, key, rank)


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


def _index(file: str, header: tuple[int, str], parts: Sequence[Part], hashes: Sequence[str], key: SaveKey, rank: int) -> ShardIndex:
    header_bytes, header_blake3 = header
    entries, offset = [], header_bytes
    for part, digest in zip(parts, hashes, strict=True):
        entries.append(
            PartEntry(
                name=part.name, dtype=part.dtype, shape=part.shape, start=part.start, size=part.size,
                offset=offset, length=part.num_bytes, blake3=digest,
            )
        )  # fmt: skip
        offset += part.num_bytes
    return ShardIndex(
        key=key, rank=rank, file=file, size_bytes=offset, header_bytes=header_bytes, header_blake3=header_blake3,
        parts=tuple(entries),
    )  # fmt: skip


# Reading


@contextlib.contextmanager
def opened(folder: Where, index: ShardIndex) -> Iterator[Opened]:
    """The shard. Raises CheckpointError when it is missing, no plain file, or of another size; StoreUnavailable and SetupError of
    an object store."""
    with _naming(folder, index.file), folder_at(folder).opened(index.file) as file:
        if file.size_bytes != index.size_bytes:
            raise damaged(folder, index.file, f"has {file.size_bytes} bytes instead of {index.size_bytes}")
        yield file


def read_parts(file: Opened, folder: Where, index: ShardIndex, first: PartEntry, into: Sequence[memoryview]) -> None:
    """Fills `into` with `first` and the parts that follow it in the file, each of its part's length in bytes.

    Raises CheckpointError when the file ends or cannot be read; verifies nothing."""
    left, offset = [view for view in into if len(view)], first.offset
    while left:
        with _naming(folder, index.file):
            count = file.read_into(left, offset)
        if not count:
            raise damaged(folder, index.file, f"ends within {first.key} or what follows it")
        offset += count
        while left and count >= len(left[0]):
            count -= len(left.pop(0))
        if count:
            left[0] = left[0][count:]


def check(folder: Where, index: ShardIndex, entry: PartEntry, data: memoryview) -> None:
    """Raises CheckpointError unless `data` are the bytes that were saved."""
    if blake3(data).hexdigest() != entry.blake3:
        raise damaged(folder, index.file, f"{entry.key} does not match its checksum")


def verify(folder: Where, index: ShardIndex, progress: Callable[[int], None] = lambda _: None) -> None:
    """Reads all of it. progress: told bytes read since the last time. Raises CheckpointError naming file and part."""
    header = (0, index.header_bytes, index.header_blake3, "its header")
    wanted = sorted([header, *((one.offset, one.length, one.blake3, one.key) for one in index.parts)])
    with opened(folder, index) as file:
        tape = _Tape(file)
        for begin, length, digest, what in wanted:
            found = blake3()
            with _naming(folder, index.file):
                for piece in tape.take(begin, length):
                    found.update(piece)
                    progress(len(piece))
            if found.hexdigest() != digest:
                raise damaged(folder, index.file, f"{what} does not match its checksum")


class _Tape:
    """A file read from its begin to its end, handed out in stretches."""

    def __init__(self, file: Opened) -> None:
        self._file = file
        self._at = 0
        self._pieces = file.pieces(0)
        self._rest = memoryview(b"")

    def take(self, begin: int, length: int) -> Iterator[memoryview]:
        """Raises Unreadable where the file ends before."""
        if begin != self._at:  # a gap, or what two parts share
            self._at, self._pieces, self._rest = begin, self._file.pieces(begin), memoryview(b"")
        while length:
            self._rest = self._rest or next(self._pieces, memoryview(b""))
            if not self._rest:
                raise Unreadable("ends early")
            piece, self._rest = self._rest[:length], self._rest[length:]
            self._at, length = self._at + len(piece), length - len(piece)
            yield piece


class Damaged(CheckpointError):
    """Something is wrong with the checkpoint, whoever reads it; the one before may do."""


def damaged(folder: Where, file: str, what: str) -> Damaged:
    return Damaged(f"checkpoint {folder.name}", file, what)


@contextlib.contextmanager
def _naming(folder: Where, file: str) -> Iterator[None]:
    try:
        yield
    except Unreadable as error:
        raise damaged(folder, file, str(error)) from error
