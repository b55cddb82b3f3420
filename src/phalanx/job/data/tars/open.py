"""A data set of samples, read straight from its tars: opened at once, any field found in O(1) and compared with its checksum."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from phalanx.core.errors import DataError
from phalanx.job.data.bad_block import BadBlock, Block
from phalanx.job.data.checked import names_of, number_of, path_of
from phalanx.job.data.shards import Watch
from phalanx.job.data.tars.folder import FolderTars
from phalanx.job.data.tars.index import Index, Place, content_of, parse
from phalanx.job.data.tars.manifest import REINDEX, SampleManifest, of_samples, read
from phalanx.job.data.tars.reading import Asked, Tars
from phalanx.job.data.verify import VerifyProgress
from phalanx.storage.hashes import sha256_bytes
from phalanx.storage.places import parse_place

if TYPE_CHECKING:
    from phalanx.storage.cache.node_cache import NodeCache

INDEX_BYTES_MAX: Final = 256 * 2**20
"""Of indices in memory: those of 5,000 shards with 1,000 samples each. What was let go of is read and compared again."""

_INDICES_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """number: of the sample in the data set. key: the members' name up to its first dot. fields: their bytes, by the rest of it.
    content: the XXH3 of these, as `content_of` has it."""

    number: int
    key: str
    fields: Mapping[str, bytes]
    content: int = field(default=0, compare=False, repr=False)


class SampleData:
    """The samples of a data set, numbered from 0 in the order of its shards. Any thread may read, and a loader's processes may be
    given it: each opens it again."""

    def __init__(self, tars: Tars, manifest: SampleManifest, manifest_hash: str) -> None:
        self.tars = tars
        self.manifest = manifest
        self.manifest_hash = manifest_hash
        self._ends = np.cumsum([shard.samples for shard in manifest.shards], dtype=np.int64)
        self._lock = threading.Lock()
        self._indices: OrderedDict[int, Index] = OrderedDict()
        self._index_bytes = 0

    def __len__(self) -> int:
        return self.manifest.samples

    @property
    def place(self) -> str:
        """The folder, or the URL, in which they lie."""
        return self.tars.place

    @property
    def cache(self) -> "NodeCache | None":
        """That they come through, where they lie in a store."""
        return self.tars.cache

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of all that occur; a sample need not have each."""
        return tuple(self.manifest.fields)

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names, by the numbers in the field `cls`; none where the data does not say them."""
        return self.manifest.classes

    def key(self, number: int) -> str:
        """Of a sample. Raises IndexError, DataError."""
        return self.asked([number], ())[0].key

    def read(self, number: int, fields: Sequence[str] | None = None, watch: Watch | None = None) -> Sample:
        """A sample with the fields that it has, or with just these.

        Raises IndexError for a number outside, DataError for a field that the sample lacks, and BadBlock for damage, which it names
        by shard, key, field and offset; of a store also SetupError and StoreUnavailable.
        """
        (found,) = self.read_all([number], fields, watch)
        return found

    def read_all(self, numbers: Sequence[int], fields: Sequence[str] | None = None, watch: Watch | None = None) -> Iterator[Sample]:
        """As `read`, one after another, without waiting for each of a store by itself. Where one is damaged, the others are looked
        at before that is raised, of all that are."""
        bad: list[BadBlock] = []
        for group in self.tars.together(self.asked(numbers, fields, watch)):
            with self.tars.held(group, watch):
                found = list(self._read(group, watch, bad))
            if not bad:
                yield from found
        if bad:
            raise all_of(bad)

    def asked(self, numbers: Sequence[int], fields: Sequence[str] | None = None, watch: Watch | None = None) -> list[Asked]:
        """Where these samples lie. Raises as `read` does."""
        names_of("fields", fields)
        ats = [self._at(number_of("sample", number)) for number in numbers]
        indices = self._needed({shard for shard, _ in ats}, watch)
        return [self._asked(number, *at, indices[at[0]], fields) for number, at in zip(numbers, ats, strict=True)]

    def block_of(self, number: int) -> Block:
        """That a sample is, for who finds its contents to be of no use. Raises IndexError."""
        shard, row = self._at(number)
        return Block(data=self.manifest_hash, shard=self.manifest.shards[shard].tar_sha256, block=row)

    def touching(self, block: Block) -> tuple[tuple[int, int], ...]:
        """Stretches [first, stop) of the samples that a block is: in tars, one by its place there. None where it is none of this
        data, several where tars have the same bytes."""
        if block.data != self.manifest_hash:
            return ()
        begins = (self._ends - [shard.samples for shard in self.manifest.shards]).tolist()
        return tuple(
            (begin + block.block, begin + block.block + 1)
            for begin, shard in zip(begins, self.manifest.shards, strict=True)
            if shard.tar_sha256 == block.shard and 0 <= block.block < shard.samples
        )

    def contents(self, numbers: Sequence[int], fields: Sequence[str] | None = None) -> NDArray[np.uint64]:
        """What `Sample.content` has to be, as the indices say it: nothing of the tars is read. Raises as `asked` does."""
        return np.array([content_of(one.places) for one in self.asked(numbers, fields)], dtype=np.uint64)

    def verify(self, progress: VerifyProgress | None = None) -> None:
        """Reads every file and compares it. Raises DataError."""
        self.tars.verify(progress)

    def __reduce__(self) -> "tuple[Callable[..., SampleData], tuple[object, ...]]":
        cache = self.cache and (self.cache.folder, self.cache.limit_bytes)
        return _reopened, (self.place, self.manifest_hash, cache)

    def _at(self, number: int) -> tuple[int, int]:
        """Its shard, and its row there."""
        if not 0 <= number < len(self):
            raise IndexError(f"sample {number} lies outside [0, {len(self)})")
        shard = int(np.searchsorted(self._ends, number, side="right"))
        return shard, number - (int(self._ends[shard]) - self.manifest.shards[shard].samples)

    def _asked(self, number: int, shard: int, row: int, index: Index, fields: Sequence[str] | None) -> Asked:
        places, key = index.places(row), index.key(row)
        for name in () if fields is None else fields:
            if name not in places:
                there = f"{key} in {self.manifest.shards[shard].tar.name} has only {', '.join(sorted(places))}"
                raise DataError("field", name, f"{there}; ask for one of these, or for none by name")
        return Asked(number, shard, row, key, places if fields is None else {name: places[name] for name in fields})

    def _read(self, group: Sequence[Asked], watch: Watch | None, bad: list[BadBlock]) -> Iterator[Sample]:
        for one in group:
            try:
                fields = {name: self._field(one, name, watch) for name in one.places}
                yield Sample(one.number, one.key, fields, content_of(one.places))  # whose sums are those of the bytes by now
            except BadBlock as error:
                bad.append(error)

    def _field(self, asked: Asked, name: str, watch: Watch | None) -> bytes:
        place = asked.places[name]
        began = time.monotonic()
        data = self.tars.read(asked.shard, place)
        read = time.monotonic()
        found = xxh3_64_intdigest(data)
        if watch is not None:
            watch("read", began, read)
            watch("verify", read, time.monotonic())
        if found == place.sum:
            return data
        data = self.tars.again(asked.shard, place)
        if (found := xxh3_64_intdigest(data)) == place.sum:
            return data
        raise self._bad(asked, name, place, f"their XXH3 is {found:016x}, not {place.sum:016x}" if data else "the disk fails")

    def _bad(self, asked: Asked, name: str, place: Place, what: str) -> BadBlock:
        tar = self.manifest.shards[asked.shard].tar
        fix = f"{place.size} bytes at {place.offset} of {self.place}/{tar.name} are damaged, also when read again: {what}"
        return BadBlock(tar.name, f"{asked.key}.{name}", f"{fix}; {self.tars.advice}", self.block_of(asked.number))

    def _needed(self, shards: Collection[int], watch: Watch | None) -> dict[int, Index]:
        with self._lock:
            found = {shard: self._indices[shard] for shard in shards if shard in self._indices}
            for shard in found:
                self._indices.move_to_end(shard)
        missing = sorted(shard for shard in shards if shard not in found)
        for first in range(0, len(missing), _INDICES_AT_ONCE):
            found.update(self._indices_of(missing[first : first + _INDICES_AT_ONCE], watch))
        return found

    def _indices_of(self, shards: Sequence[int], watch: Watch | None) -> dict[int, Index]:
        entries = [self.manifest.shards[shard].index for shard in shards]
        try:
            files = self.tars.small(entries, watch)
        except DataError as error:
            raise of_samples(error) from error
        found = {shard: self._parsed(shard, data) for shard, data in zip(shards, files, strict=True)}
        with self._lock:
            for shard, index in found.items():
                self._keep(shard, index)
        return found

    def _parsed(self, shard: int, data: bytes) -> Index:
        facts = self.manifest.shards[shard]
        try:
            return parse(data, facts.samples, facts.tar_bytes)
        except ValueError as error:
            raise DataError(facts.index.name, self.place, f"is no index of its tar: {error}; {REINDEX}") from error

    def _keep(self, shard: int, index: Index) -> None:
        if shard not in self._indices:
            self._indices[shard] = index
            self._index_bytes += index.size_bytes
        while self._index_bytes > INDEX_BYTES_MAX and len(self._indices) > 1:
            self._index_bytes -= self._indices.popitem(last=False)[1].size_bytes


def all_of(bad: Sequence[BadBlock]) -> BadBlock:
    """One error of several, of which the first is told."""
    first, others = bad[0], {block: None for one in bad for block in one.blocks}
    if len(others) == 1:
        return first
    return BadBlock(first.field, first.value, f"{first.fix}; {len(others) - 1} more samples of the batch are damaged", *others)


def open_samples(
    path: Path | str, verify: bool = False, progress: VerifyProgress | None = None, cache: "NodeCache | None" = None
) -> SampleData:
    """Opens a folder of samples: reads its manifest and looks at the sizes of its tars. `verify` reads every byte now.

    path: a folder, or a place that `storage.places` knows, such as s3://bucket/prefix: what is read then comes through a cache on
    this node; see `cache_place`. Raises DataError naming the file, what is wrong with it and what to do; for a store also
    SetupError and StoreUnavailable.
    """
    if "://" in str(path):
        place = parse_place(str(path), "data")
        if place.scheme != "file":
            return _opened_afar(str(path), verify, progress, cache)
        path = place.path
    path = path_of("data", path)
    manifest, data = read(path)
    tars = FolderTars(path, manifest)
    tars.check_sizes()
    return samples_in(tars, manifest, data, verify, progress)


def _opened_afar(url: str, verify: bool, progress: VerifyProgress | None, cache: "NodeCache | None") -> SampleData:
    from phalanx.job.data.cache_place import node_cache  # what data in a folder does without
    from phalanx.job.data.tars.stored import tars_at

    return samples_in(*tars_at(url, cache or node_cache()), verify, progress)


def samples_in(
    tars: Tars, manifest: SampleManifest, data: bytes, verify: bool = False, progress: VerifyProgress | None = None
) -> SampleData:
    """Of tars that are open. data: the bytes of their manifest."""
    found = SampleData(tars, manifest, sha256_bytes(data))
    if verify:
        found.verify(progress)
    return found


def _reopened(place: str, manifest_hash: str, cache: tuple[Path, int] | None) -> SampleData:
    """In another process, by the same cache. Raises DataError when other data stands there by now."""
    if cache is None:
        data = open_samples(place)
    else:
        from phalanx.storage.cache.opened import cache_at  # what data in a folder does without

        data = open_samples(place, cache=cache_at(*cache))
    if data.manifest_hash != manifest_hash:
        fix = f"{place} holds other data than {manifest_hash}, which was opened; start again"
        raise DataError("manifest", data.manifest_hash, fix)
    return data
