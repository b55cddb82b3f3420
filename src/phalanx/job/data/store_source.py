"""A prepared data set in a store: its manifest, its small files, and its blocks through the node's cache."""

import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError, NotFound, SetupError, StoreUnavailable
from phalanx.core.training_data import CACHE_UNIT_BYTES
from phalanx.job.data import manifest as manifests
from phalanx.job.data.bad_block import BadBlock, Block
from phalanx.job.data.block_sums import BLOCK_BYTES, block_sum, num_blocks, read_sums
from phalanx.job.data.manifest import MANIFEST, FileEntry, Manifest, Shard
from phalanx.job.data.shards import DIGITS
from phalanx.storage.cache.index import Unit
from phalanx.storage.cache.node_cache import FETCHES_AT_ONCE, NodeCache
from phalanx.storage.cache.origin import Watch
from phalanx.storage.hashes import sha256_bytes
from phalanx.storage.hedged import HedgedReads
from phalanx.storage.objects import ObjectStore
from phalanx.storage.remote import Patience

REQUEST: Final = Patience(request_s=30.0, retries_s=5.0, retries_max=3)
"""A request of `UNIT_BYTES` at most: 280 KB/s are enough. What fails is tried again, as long as `PATIENCE_S` lasts."""

PATIENCE_S: Final = 300.0
_PAUSE_S, _PAUSE_S_MAX = 0.1, 10.0
UNIT_BLOCKS: Final = CACHE_UNIT_BYTES // BLOCK_BYTES
"""Neighbouring blocks that come by one request and lie in one file of the cache: each request and each file has its price, which
for a single block is as high as that of its bytes."""

UNIT_BYTES: Final = UNIT_BLOCKS * BLOCK_BYTES


def stored_manifest(store: ObjectStore) -> bytes:
    """Of whatever kind of data. Raises DataError where there is none, and what the store raises."""
    try:
        return store.get(MANIFEST)
    except NotFound as error:
        fix = f"has no {MANIFEST}, so it is no prepared data; name another place, or put it there with `phalanx data push`"
        raise DataError("data", store.url, fix) from error


class StoreSource:
    """Below a prefix of a store. Any thread may call it.

    Raises DataError for what is not there or not what was prepared, SetupError for what the store refuses, StoreUnavailable after
    `patience_s` without an answer.
    """

    def __init__(self, store: ObjectStore, cache: NodeCache, patience_s: float = PATIENCE_S) -> None:
        self.url = store.url
        self.cache = cache
        self.ranges = HedgedReads(store.read_range, FETCHES_AT_ONCE)
        self._store = store
        self._patience_s = patience_s
        self._process = os.getpid()

    def check_process(self) -> None:
        """Raises SetupError in what was forked from the process that opened it: whatever asks a store there waits for ever, also by
        a client of its own, since all share one runtime; and so does whatever asks the cache."""
        if os.getpid() != self._process:
            fix = (
                "was opened before this process was forked, which no client of a store outlives; start loader processes by 'spawn'"
            )
            raise SetupError("data", self.url, fix)

    def where(self, entry: FileEntry) -> str:
        return f"{self.url}/{entry.name}"

    def manifest(self) -> tuple[Manifest, bytes]:
        """And its bytes, always from the store: their hash says which data this is."""
        data = stored_manifest(self._store)
        return manifests.parse(data, f"{self.url}/{MANIFEST}"), data

    def small(self, entries: Sequence[FileEntry], watch: Watch | None = None) -> list[bytes]:
        """Files that fit into memory, checked against the manifest."""
        self.check_process()
        units = [_unit(entry) for entry in entries]
        unique = list(dict.fromkeys(units))
        origin = _Small(self, entries)
        self.cache.hold(unique, origin, watch)
        try:
            return [self._checked(unit, entry, origin) for unit, entry in zip(units, entries, strict=True)]
        finally:
            self.cache.release(unique)

    def kept(self, entry: FileEntry) -> Path:
        """A small file that stays in the cache as long as this process uses it."""
        unit, origin = _unit(entry), _Small(self, [entry])
        self.cache.keep(unit, origin)
        self._checked(unit, entry, origin)
        return self.cache.path(unit)

    def pieces(self, entry: FileEntry) -> Iterator[memoryview]:
        """All of a file, past the cache."""
        for begin in range(0, entry.size_bytes, UNIT_BYTES):
            yield self.read(entry, begin, min(UNIT_BYTES, entry.size_bytes - begin))

    def read(self, entry: FileEntry, begin: int, length: int) -> memoryview:
        """Bytes of a file from the store; tried again while they cannot be had."""
        self.check_process()
        began, pause = time.monotonic(), _PAUSE_S
        while True:
            try:
                data = self.ranges.read(entry.name, begin, length)
            except NotFound as error:
                fix = f"{self.where(entry)} is not there; put the data there again with `phalanx data push`, or name another place"
                raise DataError(entry.name, "missing", fix) from error
            except StoreUnavailable as error:
                if (waited := time.monotonic() - began) + pause > self._patience_s:
                    raise StoreUnavailable(f"{error} (tried for {waited:.0f} s)") from error
            else:
                if len(data) != length:
                    raise self._short(entry, begin + len(data))
                return data
            if self.cache.closing.wait(pause):
                raise StoreUnavailable(f"{self.url}: no answer before the end")
            pause = min(2 * pause, _PAUSE_S_MAX)

    def _short(self, entry: FileEntry, size: int) -> DataError:
        sizes = f"should have {entry.size_bytes} bytes and has {size}"
        return DataError(entry.name, None, f"in {self.url} it {sizes}; put the data there again with `phalanx data push`")

    def _checked(self, unit: Unit, entry: FileEntry, origin: "_Small") -> bytes:
        """From the cache, and anew where what is there is damaged."""
        for _ in range(2):
            try:
                data = self.cache.path(unit).read_bytes()
            except FileNotFoundError:
                data = b""
            if hashlib.sha256(data).hexdigest() == entry.sha256:
                return data
            self.cache.refuse(unit)
            self.cache.hold([unit], origin)
            self.cache.release([unit])
        raise StoreUnavailable(f"{self.cache.folder}: its disk returns other bytes than were written; check it")


class _Small:
    """Whole files by their SHA-256."""

    def __init__(self, source: StoreSource, entries: Sequence[FileEntry]) -> None:
        self._source = source
        self._entries = {entry.sha256: entry for entry in entries}

    def groups(self, units: Sequence[Unit]) -> Sequence[Sequence[Unit]]:
        return [[unit] for unit in units]

    def read(self, group: Sequence[Unit]) -> Sequence[Sequence[memoryview]]:
        (unit,) = group
        entry = self._entries[unit.sha256]
        for _ in range(2):
            data = self._source.read(entry, 0, entry.size_bytes)
            if (found := sha256_bytes(bytes(data))) == entry.sha256:
                return [[data]]
        sums = f"its SHA-256 should be {entry.sha256[:DIGITS]} and is {found[:DIGITS]}"
        raise DataError(entry.name, None, f"in {self._source.url} it is damaged: {sums}; put the data there again")


class ShardOrigin:
    """Units of shards, each block compared with its checksum as it comes; one that differs is fetched again once, and
    without it none of its unit can be had. data: manifest hash, for errors."""

    def __init__(self, source: StoreSource, shards: Sequence[Shard], data: str) -> None:
        self._source = source
        self._data = data
        self._shards: Mapping[str, Shard] = {shard.bin_sha256: shard for shard in shards}
        self._sums: dict[str, NDArray[np.uint64]] = {}

    def unit(self, shard: Shard, at: int) -> Unit:
        """The one in which block `at` of the shard lies."""
        number = at // UNIT_BLOCKS
        return Unit(shard.bin_sha256, number, min(UNIT_BYTES, shard.bin_bytes - number * UNIT_BYTES))

    def know(self, shards: Sequence[Shard], watch: Watch | None = None) -> None:
        """The checksums of these shards, without which nothing of them is fetched."""
        lacking = list({shard.bin_sha256: shard for shard in shards if shard.bin_sha256 not in self._sums}.values())
        entries = [entry for shard in lacking if (entry := shard.xxh3) is not None]
        for shard, data in zip(lacking, self._source.small(entries, watch) if entries else (), strict=True):
            self._sums[shard.bin_sha256] = read_sums(data)

    def groups(self, units: Sequence[Unit]) -> Sequence[Sequence[Unit]]:
        return [[unit] for unit in units]

    def read(self, group: Sequence[Unit]) -> Sequence[Iterator[memoryview]]:
        return [self._blocks(unit) for unit in group]

    def _blocks(self, unit: Unit) -> Iterator[memoryview]:
        """One by one: who writes a block finds it in the processor's cache, where its check has brought it."""
        data, is_second = self._read(unit), False
        for at in range(num_blocks(unit.size_bytes)):
            if self._differs(unit, at, data):
                if not is_second:
                    data, is_second = self._read(unit), True
                if self._differs(unit, at, data):
                    raise self._damaged(unit, unit.number * UNIT_BLOCKS + at)
            yield _block(data, at)

    def _read(self, unit: Unit) -> memoryview:
        return self._source.read(self._shards[unit.sha256].bin, unit.number * UNIT_BYTES, unit.size_bytes)

    def _damaged(self, unit: Unit, bad: int) -> BadBlock:
        entry, begin = self._shards[unit.sha256].bin, bad * BLOCK_BYTES
        where = f"bytes {begin} to {min(begin + BLOCK_BYTES, entry.size_bytes)} of {self._source.where(entry)}"
        fix = f"{where} are damaged, also when read again; put the shard there again"
        first = unit.number * UNIT_BLOCKS
        together = range(first, first + num_blocks(unit.size_bytes))
        named = [
            Block(data=self._data, shard=unit.sha256, block=block) for block in (bad, *(one for one in together if one != bad))
        ]
        return BadBlock(entry.name, f"block {bad}", fix, *named)

    def differing(self, unit: Unit, data: memoryview) -> int | None:
        """The first block of the shard, if any, that is not what its checksum says."""
        for at in range(num_blocks(len(data))):
            if self._differs(unit, at, data):
                return unit.number * UNIT_BLOCKS + at
        return None

    def _differs(self, unit: Unit, at: int, data: memoryview) -> bool:
        return block_sum(_block(data, at)) != int(self._sums[unit.sha256][unit.number * UNIT_BLOCKS + at])


def _block(data: memoryview, at: int) -> memoryview:
    return data[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES]


def _unit(entry: FileEntry) -> Unit:
    return Unit(entry.sha256, 0, entry.size_bytes)
