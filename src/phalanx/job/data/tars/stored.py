"""Tars in a store: ranges of them come through the node's cache, in units as shards of tokens do.

A store says nothing of a range's checksum, and a tar has none of its own; the index has one of each field. So a unit is taken as it
comes, and a field is compared whenever it is read, from whatever units it lies in.
"""

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Final

from xxhash import xxh3_64_intdigest

from phalanx.job.data.manifest import MANIFEST, FileEntry
from phalanx.job.data.shards import Watch
from phalanx.job.data.store_source import REQUEST, UNIT_BYTES, StoreSource, stored_manifest
from phalanx.job.data.tars.index import Place
from phalanx.job.data.tars.manifest import SampleManifest, parse
from phalanx.job.data.tars.reading import BYTES_AT_ONCE, Asked, chunks
from phalanx.job.data.verify import VerifyProgress, verify_pieces
from phalanx.storage.cache.index import Unit
from phalanx.storage.cache.node_cache import NodeCache
from phalanx.storage.objects import ObjectStore, open_store


class StoredTars:
    """See `Tars`. A unit goes by its number over all tars."""

    advice: Final = "put the tar there again"

    def __init__(self, source: StoreSource, manifest: SampleManifest) -> None:
        self.source = source
        self.origin = TarOrigin(source, [shard.tar for shard in manifest.shards])
        self._manifest = manifest
        self._tars = [shard.tar for shard in manifest.shards]
        self._firsts = list(accumulate((-(-tar.size_bytes // UNIT_BYTES) for tar in self._tars), initial=0))

    @property
    def place(self) -> str:
        return self.source.url

    @property
    def cache(self) -> NodeCache:
        return self.source.cache

    def small(self, entries: Sequence[FileEntry], watch: Watch | None) -> list[bytes]:
        """Through the cache."""
        return self.source.small(entries, watch)

    def together(self, asked: Sequence[Asked]) -> Iterator[list[Asked]]:
        """As far as memory goes, and this process's part of the cache."""
        for part in chunks(asked, lambda one: {one.number: one.size_bytes}, BYTES_AT_ONCE):
            yield from chunks(part, self._sizes, self.cache.fair_bytes())

    @contextmanager
    def held(self, asked: Sequence[Asked], watch: Watch | None) -> Iterator[None]:
        """Waits for the units that they lie in."""
        self.source.check_process()
        units = list(dict.fromkeys(self.units(self.needed(asked))))  # of equal tars they are the same
        if not units:
            yield
            return
        self.cache.hold(units, self.origin, watch)
        try:
            yield
        finally:
            self.cache.release(units)

    def needed(self, asked: Iterable[Asked]) -> list[int]:
        """The units in which these lie, in the order of the tars."""
        found = {unit for one in asked for place in one.places.values() for unit, _, _ in self._parts(one.shard, place)}
        return sorted(found)

    def units(self, numbers: Sequence[int], watch: Watch | None = None) -> list[Unit]:
        """What the cache calls them."""
        return [self._unit(number) for number in numbers]

    def read(self, shard: int, place: Place) -> bytes:
        """Fewer bytes of a unit that the cache's disk has lost."""
        try:
            return b"".join([self._read_part(*part) for part in self._parts(shard, place)])
        except OSError:  # a file that a killed process has removed, or a disk that fails
            return b""

    def again(self, shard: int, place: Place) -> bytes:
        """From the store, past the cache: whose units are fetched anew where it was they that were damaged, and still are, since
        several may meet that at once."""
        tar, end = self._tars[shard], place.offset + place.size
        begins = range(place.offset, end, UNIT_BYTES)
        data = b"".join([self.source.read(tar, begin, min(UNIT_BYTES, end - begin)) for begin in begins])
        if xxh3_64_intdigest(data) == place.sum != xxh3_64_intdigest(self.read(shard, place)):
            for unit in self.units([number for number, _, _ in self._parts(shard, place)]):
                self.cache.refuse(unit)
        return data

    def verify(self, progress: VerifyProgress | None) -> None:
        """Past the cache."""
        verify_pieces(self.source.url, self._manifest, self.source.pieces, progress)

    def _unit(self, number: int) -> Unit:
        shard = bisect_right(self._firsts, number) - 1
        return tar_unit(self._tars[shard], number - self._firsts[shard])

    def _read_part(self, number: int, begin: int, end: int) -> bytes:
        with self.cache.opened(self._unit(number)) as descriptor:
            return os.pread(descriptor, end - begin, begin)

    def _parts(self, shard: int, place: Place) -> Iterator[tuple[int, int, int]]:
        """The units of some bytes of a tar, and from where to where in each."""
        first, at, end = self._firsts[shard], place.offset, place.offset + place.size
        while at < end:
            number, begin = divmod(at, UNIT_BYTES)
            stop = min(UNIT_BYTES, end - number * UNIT_BYTES)
            yield first + number, begin, stop
            at = number * UNIT_BYTES + stop

    def _sizes(self, asked: Asked) -> Mapping[Unit, int]:
        return {unit: unit.size_bytes for unit in self.units(self.needed([asked]))}


class TarOrigin:
    """Units of tars, as the store has them."""

    def __init__(self, source: StoreSource, tars: Sequence[FileEntry]) -> None:
        self._source = source
        self._tars = {tar.sha256: tar for tar in tars}

    def groups(self, units: Sequence[Unit]) -> Sequence[Sequence[Unit]]:
        return [[unit] for unit in units]

    def read(self, group: Sequence[Unit]) -> Sequence[Sequence[memoryview]]:
        """Unchecked: what has no checksum of its own is compared when it is read."""
        (unit,) = group
        return [[self._source.read(self._tars[unit.sha256], unit.number * UNIT_BYTES, unit.size_bytes)]]


def tar_unit(tar: FileEntry, number: int) -> Unit:
    """The bytes of a tar from `number` times `UNIT_BYTES` on."""
    return Unit(tar.sha256, number, min(UNIT_BYTES, tar.size_bytes - number * UNIT_BYTES))


def tars_at(url: str, cache: NodeCache) -> tuple[StoredTars, SampleManifest, bytes]:
    """The tars below a place such as s3://bucket/prefix, its manifest and the bytes of that. Raises as `StoreSource` does."""
    return tars_in(open_store(url, patience=REQUEST, field="data"), cache)


def tars_in(store: ObjectStore, cache: NodeCache) -> tuple[StoredTars, SampleManifest, bytes]:
    """As `tars_at`, of an open store."""
    source = StoreSource(store, cache)
    data = stored_manifest(store)  # always from the store: its hash says which data this is
    manifest = parse(data, f"{store.url}/{MANIFEST}")
    size_bytes, name = max((min(UNIT_BYTES, shard.tar_bytes), shard.tar.name) for shard in manifest.shards)
    cache.check_limit(size_bytes, f"what is fetched at once of {name} has")
    return StoredTars(source, manifest), manifest, data
