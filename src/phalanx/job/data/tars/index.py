"""Where the fields of a tar's samples lie: a table of a row a sample and a column a field, read by NumPy as it lies on the disk.

Layout, little-endian: the magic, uint32 number of fields, uint32 bytes of their names, uint64 number of samples, uint64 bytes of
all keys; then the names with a zero byte between them, zeros up to a multiple of 8; int64 offset, int64 size and uint64 XXH3 of
each field of each sample, three tables [samples, fields]; int64 end of each sample's key among the keys; and the keys, UTF-8.
The offset is -1 where a sample lacks a field.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from phalanx.core.errors import DataError

MAGIC: Final = b"PHXTARS1"
_HEADER: Final = struct.Struct("<8sIIQQ")
_ALIGN: Final = 8
_SUM: Final = struct.Struct("<xQ")
FIELDS_MAX: Final = 256
"""In one shard: the table is dense."""


@dataclass(frozen=True, slots=True)
class Place:
    """Of a field's bytes in the tar, with their XXH3 in 64 bits."""

    offset: int
    size: int
    sum: int


def content_of(places: Mapping[str, Place]) -> int:
    """The XXH3 of a sample's fields, by name: of each one's name and XXH3, sorted."""
    return xxh3_64_intdigest(b"".join([name.encode() + _SUM.pack(place.sum) for name, place in sorted(places.items())]))


@dataclass(frozen=True, slots=True)
class Index:
    """fields: names of the columns, sorted. offsets, sizes, sums: [samples, fields]."""

    fields: tuple[str, ...]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    sums: NDArray[np.uint64]
    key_ends: NDArray[np.int64]
    keys: memoryview

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def size_bytes(self) -> int:
        """Of memory."""
        return self.offsets.nbytes * 3 + self.key_ends.nbytes + len(self.keys)

    def key(self, row: int) -> str:
        begin = int(self.key_ends[row - 1]) if row else 0
        return bytes(self.keys[begin : int(self.key_ends[row])]).decode(errors="replace")

    def places(self, row: int) -> dict[str, Place]:
        """Of the fields that the sample has, by name."""
        columns = zip(self.fields, self.offsets[row].tolist(), self.sizes[row].tolist(), self.sums[row].tolist(), strict=True)
        return {name: Place(offset, size, total) for name, offset, size, total in columns if offset >= 0}


@dataclass(slots=True)
class IndexBuilder:
    """Samples in their order, one by one."""

    keys: list[bytes] = field(default_factory=list)
    places: list[Mapping[str, Place]] = field(default_factory=list)

    def add(self, key: str, places: Mapping[str, Place]) -> None:
        self.keys.append(key.encode())
        self.places.append(places)

    def names(self) -> tuple[str, ...]:
        """Of the fields, sorted. Raises DataError for too many."""
        names = sorted({name for places in self.places for name in places})
        if len(names) > FIELDS_MAX:
            fix = f"are over {FIELDS_MAX} in one tar: the name of a file up to its first dot is its sample's key; use no other dots"
            raise DataError("fields", f"{', '.join(names[:3])}, ...", fix)
        return tuple(names)

    def to_bytes(self) -> bytes:
        names = self.names()
        column = {name: number for number, name in enumerate(names)}
        table = np.zeros((3, len(self.keys), len(names)), dtype="<i8")
        table[0] = -1
        for row, places in enumerate(self.places):
            for name, place in places.items():
                table[:, row, column[name]] = place.offset, place.size, np.uint64(place.sum).astype(np.int64)
        ends = np.cumsum([len(key) for key in self.keys], dtype="<i8")
        text, keys = "\0".join(names).encode(), b"".join(self.keys)
        head = _HEADER.pack(MAGIC, len(names), len(text), len(self.keys), len(keys)) + text
        return head + bytes(-len(head) % _ALIGN) + table.tobytes() + ends.tobytes() + keys


def is_index(path: Path) -> bool:
    """Whether a file begins as an index does. Raises OSError."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def parse(data: bytes, samples: int, tar_bytes: int) -> Index:
    """The index of a tar of this size with so many samples. Raises ValueError for any other bytes."""
    if len(data) < _HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise ValueError("it is no index")
    _, num_fields, names_bytes, num_samples, keys_bytes = _HEADER.unpack_from(data)
    at = _HEADER.size + names_bytes
    names, at = data[_HEADER.size : at], at + -at % _ALIGN
    cells = num_samples * num_fields
    if num_samples != samples or len(data) != at + 8 * (3 * cells + num_samples) + keys_bytes:
        raise ValueError("its size is not that of its samples")
    fields = tuple(names.decode().split("\0"))
    table = np.frombuffer(data, "<i8", 3 * cells, at).reshape(3, num_samples, num_fields)
    ends = np.frombuffer(data, "<i8", num_samples, at + 24 * cells)
    index = Index(fields, table[0], table[1], table[2].view(np.uint64), ends, memoryview(data)[len(data) - keys_bytes :])
    _check(index, num_fields, keys_bytes, tar_bytes)
    return index


def _check(index: Index, num_fields: int, keys_bytes: int, tar_bytes: int) -> None:
    if len(index.fields) != num_fields or num_fields > FIELDS_MAX:
        raise ValueError("its fields are not those that it counts")
    there = index.offsets >= 0
    if (index.sizes < 0).any() or (index.sizes[there] > tar_bytes - index.offsets[there]).any():
        raise ValueError("it names a place outside the tar")
    steps = np.diff(index.key_ends, prepend=0)
    if (steps < 0).any() or (len(index.key_ends) and int(index.key_ends[-1]) != keys_bytes):
        raise ValueError("its keys do not lie end to end")
