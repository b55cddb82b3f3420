"""The shards of one split in a store: units of blocks are fetched into the node's cache, mapped and checked when they are needed,
and held while they are read. So the cache removes nothing that somebody reads, and what is held longer, for the next time, is given
up where others need the room. A unit goes by the number of its first block over all shards."""

import os
import threading
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import PhalanxError, StoreUnavailable
from phalanx.job.data.block_sums import BLOCK_BYTES, num_blocks
from phalanx.job.data.checked import check_within
from phalanx.job.data.manifest import Manifest, Shard
from phalanx.job.data.order import Indices
from phalanx.job.data.pieces import Pieces
from phalanx.job.data.samples import Rows, Samples
from phalanx.job.data.shards import Shards, Watch, check_range
from phalanx.job.data.store_source import UNIT_BLOCKS, UNIT_BYTES, ShardOrigin, StoreSource
from phalanx.storage.cache.index import Unit
from phalanx.storage.cache.node_cache import NodeCache

MAPPED_MAX: Final = 16_384
"""Units mapped at once: a process may have 65,530 mappings (vm.max_map_count)."""


class _DamagedError(Exception):
    """A file of the cache is not what was written into it."""


class StoredShards(Shards):
    """As `Shards`, of which a unit may be read only while it is pinned."""

    def __init__(self, source: StoreSource, manifest: Manifest, shards: Sequence[Shard], data: str) -> None:
        super().__init__(Path(), manifest, shards, data)
        self.source = source
        self.origin = ShardOrigin(source, shards, data)
        self._state = threading.Lock()
        self._pins: Counter[int] = Counter()
        self._mapped: OrderedDict[int, Unit] = OrderedDict()
        self._firsts = self._files.begins[:-1] // BLOCK_BYTES
        self._end = weakref.finalize(self, _released, source.cache, self._mapped)
        self._end.atexit = False  # the cache ends by then
        source.cache.call_when_full(_giver_up(weakref.ref(self)))

    @contextmanager
    def pinned(self, blocks: Sequence[int], watch: Watch | None = None) -> Iterator[None]:
        """These units may be read within."""
        self.source.check_process()
        if not self._pin_mapped(blocks):
            self._bring(blocks, watch)
        try:
            yield
        finally:
            self._unpin(blocks)
            if len(self._mapped) * UNIT_BYTES > (keep := self.source.cache.fair_bytes()) or len(self._mapped) > MAPPED_MAX:
                self._drop(min(keep // UNIT_BYTES, MAPPED_MAX))

    def units(self, blocks: Sequence[int], watch: Watch | None = None) -> list[Unit]:
        """What the cache calls them, the checksums of their shards known."""
        numbers = np.searchsorted(self._firsts, np.asarray(blocks, dtype=np.int64), side="right") - 1
        shards = [self._shards[number] for number in numbers.tolist()]
        self.origin.know(shards, watch)
        ats = (np.asarray(blocks, dtype=np.int64) - self._firsts[numbers]).tolist()
        return [self.origin.unit(shard, at) for shard, at in zip(shards, ats, strict=True)]

    def firsts(self, blocks: Indices) -> list[int]:
        """The units of these blocks."""
        begins = self._firsts[np.searchsorted(self._firsts, blocks, side="right") - 1]
        found: list[int] = np.unique(begins + (blocks - begins) // UNIT_BLOCKS * UNIT_BLOCKS).tolist()
        return found

    def check(self, block: int, watch: Watch | None = None) -> int:
        """Maps a unit that is held, once it is what `prepare` wrote. Raises FileNotFoundError, _DamagedError."""
        number = int(np.searchsorted(self._firsts, block, side="right")) - 1
        shard, at = self._shards[number], block - int(self._firsts[number])
        unit = self.origin.unit(shard, at)
        began = time.monotonic()
        with self.source.cache.opened(unit) as descriptor:
            if os.fstat(descriptor).st_size != unit.size_bytes:
                raise _DamagedError
            data = self._unit(descriptor, unit.size_bytes)
            read = time.monotonic()
            if self.origin.differing(unit, data.data) is not None:
                raise _DamagedError
            tokens = data.view(self.tokens.dtype)
            least = int(tokens.min()) if tokens.dtype.kind == "i" else 0
            check_range(shard.bin, self.source.where(shard.bin), least, int(tokens.max()), self._vocab_size)
            self._files.map_at(block * BLOCK_BYTES, descriptor, unit.size_bytes)
        self.checked[block : block + num_blocks(unit.size_bytes)] = True
        if watch is not None:
            watch("read", began, read)
            watch("verify", read, time.monotonic())
        return number

    def _pin_mapped(self, blocks: Sequence[int]) -> bool:
        with self._state:
            if any(block not in self._mapped for block in blocks):
                return False
            self._pins.update(blocks)
            return True

    def _bring(self, blocks: Sequence[int], watch: Watch | None) -> None:
        """Pins them too. They are held all at once, and nothing is pinned by who waits for that: so nobody waits for one another.
        Each block that is mapped here holds its unit until it is dropped."""
        units = self.units(blocks, watch)
        self.source.cache.hold(units, self.origin, watch)
        spare = units
        with self._state:
            self._pins.update(blocks)
            missing = [(block, unit) for block, unit in zip(blocks, units, strict=True) if block not in self._mapped]
        try:
            for block, unit in missing:
                self._check_or_again(block, unit, watch)
            with self._state:
                spare = [unit for block, unit in zip(blocks, units, strict=True) if block in self._mapped]
                self._mapped.update({block: unit for block, unit in zip(blocks, units, strict=True) if block not in self._mapped})
        except BaseException:
            self._unpin(blocks)
            raise
        finally:
            self.source.cache.release(spare)

    def _check_or_again(self, block: int, unit: Unit, watch: Watch | None) -> None:
        """What the cache's disk has lost or damaged is fetched again."""
        for _ in range(2):
            try:
                self.check(block, watch)
            except (FileNotFoundError, _DamagedError):
                self.source.cache.refuse(unit)
                self.source.cache.hold([unit], self.origin, watch)
                self.source.cache.release([unit])
            else:
                return
        raise StoreUnavailable(f"{self.source.cache.folder}: its disk returns other bytes than were written; check it")

    def _unit(self, descriptor: int, size_bytes: int) -> NDArray[np.uint8]:
        """By `pread`: a disk that fails is an error then, and not the end of the process, as it would be through the mapping."""
        if not hasattr(self._scratch, "unit"):
            self._scratch.unit = np.empty(UNIT_BYTES, dtype=np.uint8)
        data: NDArray[np.uint8] = self._scratch.unit[:size_bytes]
        filled = 0
        while filled < size_bytes and (got := os.preadv(descriptor, [data.data[filled:]], filled)):
            filled += got
        return data[:filled]

    def _unpin(self, blocks: Sequence[int]) -> None:
        with self._state:
            for block in blocks:
                self._pins[block] -= 1
                if not self._pins[block]:
                    del self._pins[block]
                if block in self._mapped:
                    self._mapped.move_to_end(block)

    def drop_idle(self) -> None:
        """Gives up what is mapped for the next time."""
        self._drop(0)

    def _drop(self, keep: int) -> None:
        """All but so many of the blocks that are mapped and not pinned, those first that were read last long ago."""
        with self._state:
            idle = [block for block in self._mapped if block not in self._pins]
            dropped = idle[: max(0, len(self._mapped) - keep)]
            units = [self._mapped.pop(block) for block in dropped]
            for block, unit in zip(dropped, units, strict=True):
                self.checked[block : block + num_blocks(unit.size_bytes)] = False
                self._files.unmap_at(block * BLOCK_BYTES, unit.size_bytes)
        self.source.cache.release(units)


def _giver_up(shards: "weakref.ref[StoredShards]") -> Callable[[], None]:
    """Knows them only as long as somebody else does."""

    def give_up() -> None:
        if (there := shards()) is not None:
            there.drop_idle()

    return give_up


def _released(cache: NodeCache, mapped: Mapping[int, Unit]) -> None:
    """What shards held that nobody has any more."""
    with suppress(PhalanxError):
        cache.release(list(mapped.values()))


class StoredSamples(Samples):
    """As `Samples`, over shards in a store."""

    def __init__(self, shards: StoredShards) -> None:
        super().__init__(shards)
        self.stored = shards

    def gather(self, indices: Indices, sequence: int, out: Rows | None, watch: Watch | None) -> Rows:
        """Waits for the units that the samples lie in."""
        with self.stored.pinned(self.units(indices, sequence), watch):
            return super().gather(indices, sequence, out, watch)

    def units(self, indices: Indices, sequence: int) -> list[int]:
        """Those in which these samples lie, in the order of the shards. Raises IndexError for a sample outside."""
        if not indices.size:
            return []
        check_within("sample", indices, self.count(sequence))
        return self._between(indices * sequence, indices * sequence + sequence)

    def gather_pieces(
        self, pieces: Pieces, document_begins: NDArray[np.int64], padding: int, out: Rows, watch: Watch | None
    ) -> None:
        """Waits for the units that the pieces lie in."""
        with self.stored.pinned(self.units_of(pieces, document_begins), watch):
            super().gather_pieces(pieces, document_begins, padding, out, watch)

    def units_of(self, pieces: Pieces, document_begins: NDArray[np.int64]) -> list[int]:
        """Those in which these pieces lie, in the order of the shards."""
        begins = document_begins[pieces.document] + pieces.start
        return self._between(begins, begins + np.maximum(pieces.length - 1, 0))

    def _between(self, begins: Indices, lasts: Indices) -> list[int]:
        """The units of these stretches of tokens, by their first and last one."""
        if not begins.size:
            return []
        first, last = self._blocks(begins), self._blocks(lasts)
        spread = [np.minimum(first + further, last) for further in range(int((last - first).max()) + 1)]
        return self.stored.firsts(np.unique(np.concatenate(spread)))

    def _blocks(self, tokens: Indices) -> Indices:
        shard = np.searchsorted(self.shards.ends, tokens, side="right")
        found: Indices = (self._shift[shard] + tokens) // self.shards.block_tokens
        return found
