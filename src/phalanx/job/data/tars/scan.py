"""One tar file read once: its samples, the checksum of each field, and its own."""

import hashlib
import io
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

from xxhash import xxh3_64

from phalanx.core.errors import DataError
from phalanx.job.data.manifest import FileEntry
from phalanx.job.data.tars.index import IndexBuilder, Place
from phalanx.job.data.tars.manifest import FieldCount
from phalanx.job.data.tars.members import Member, members

_PIECE_BYTES: Final = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Scanned:
    """index: its bytes."""

    tar: FileEntry
    samples: int
    index: bytes
    fields: Mapping[str, FieldCount]
    skipped: Mapping[str, int]


def scan(path: Path) -> Scanned:
    """Raises DataError for a tar that is none, or whose samples are not as WebDataset's convention wants them."""
    skipped: Counter[str] = Counter()
    try:
        with path.open("rb") as file:
            before = os.fstat(file.fileno())
            found = list(members(file, path.name, before.st_size, skipped))
            samples = list(grouped(found, path.name))
            file.seek(0)
            digest, sums = _sums(file, found)
            after = os.fstat(file.fileno())
    except OSError as error:
        raise DataError("paths", str(path), f"cannot be read ({error.strerror}); name tar files this user can read") from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise DataError("paths", str(path), "changed while it was read; wait until it is written")
    builder = IndexBuilder()
    for key, fields in samples:
        builder.add(key, {one.field: Place(one.offset, one.size, sums[one.offset, one.size]) for one in fields})
    try:
        index = builder.to_bytes()
    except DataError as error:
        raise DataError(f"fields of {path.name}", error.value, error.fix) from error
    return Scanned(
        FileEntry(name=path.name, size_bytes=before.st_size, sha256=digest), len(samples), index, counted(builder.places), skipped
    )


def grouped(found: Iterable[Member], name: str) -> Iterator[tuple[str, Sequence[Member]]]:
    """Members with one key that follow one another are a sample. Raises DataError for a key or field that comes twice."""
    seen: set[str] = set()
    for key, group in groupby(found, key=attrgetter("key")):
        fields = list(group)
        if key in seen:
            fix = f"comes twice in {name}, with others between; lay members of one sample together, as `tar --sort=name` does"
            raise DataError("key", key, fix)
        seen.add(key)
        if double := [field for field, times in Counter(one.field for one in fields).items() if times > 1]:
            raise DataError(
                "field", f"{key}.{double[0]}", f"comes twice in {name}; a sample has each field once, in any case of letters"
            )
        yield key, fields


def counted(samples: Iterable[Mapping[str, Place]]) -> dict[str, FieldCount]:
    """By the names of fields, in their order."""
    times: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for places in samples:
        for name, place in places.items():
            times[name] += 1
            sizes[name] += place.size
    return {name: FieldCount(samples=times[name], size_bytes=sizes[name]) for name in sorted(times)}


def _sums(file: io.BufferedReader, spans: Sequence[Member]) -> tuple[str, dict[tuple[int, int], int]]:
    """SHA-256 of the whole, and XXH3 of each member by its place."""
    whole, buffer, at = hashlib.sha256(), memoryview(bytearray(_PIECE_BYTES)), 0
    hashed, sums, todo = xxh3_64(), {}, deque(spans)
    while got := file.readinto(buffer):
        piece = buffer[:got]
        whole.update(piece)
        while todo and todo[0].offset < at + got:
            begin, end = todo[0].offset, todo[0].offset + todo[0].size
            hashed.update(piece[max(begin - at, 0) : max(min(end - at, got), 0)])
            if end > at + got:
                break
            sums[begin, todo.popleft().size] = hashed.intdigest()
            hashed.reset()
        at += got
    return whole.hexdigest(), sums
