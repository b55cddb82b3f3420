"""A prepared data set in a store, read through the node's cache."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from phalanx.core.errors import DataError
from phalanx.job.data import manifest as manifests
from phalanx.job.data.enough import largest_shard
from phalanx.job.data.manifest import FileEntry, Manifest, Split
from phalanx.job.data.open import CHECKED_WHOLE, TokenData, reopened
from phalanx.job.data.order import Indices
from phalanx.job.data.read_ahead import ReadAhead
from phalanx.job.data.store_source import REQUEST, StoreSource
from phalanx.job.data.stored_shards import StoredSamples, StoredShards
from phalanx.job.data.verify import VerifyProgress, verify_pieces
from phalanx.storage.cache.node_cache import NodeCache
from phalanx.storage.cache.opened import cache_at
from phalanx.storage.hashes import sha256_bytes
from phalanx.storage.objects import open_store

_UPGRADE: Final = "has no checksums of blocks, which reading from a store needs; prepare the data again and push it"


class StoredData(TokenData):
    """As `TokenData`. folder: of the cache, on this node; where the data lies is `url`. stored: the samples of each split."""

    def __init__(self, source: StoreSource, manifest: Manifest, manifest_hash: str) -> None:
        super().__init__(source.cache.folder, manifest, manifest_hash)
        self.source = source
        self.url = source.url
        self.stored: Mapping[Split, StoredSamples] = {
            split: StoredSamples(StoredShards(source, manifest, shards, manifest_hash))
            for split in manifests.SPLITS
            for shards in [[shard for shard in manifest.shards if shard.split == split]]
        }
        self._samples = self.stored
        self._tokenizer = source.kept(manifest.tokenizer)

    @property
    def place(self) -> str:
        return self.url

    @property
    def tokenizer_path(self) -> Path:
        return self._tokenizer

    def verify(self, progress: VerifyProgress | None = None) -> None:
        """Reads every file from the store, past the cache."""
        verify_pieces(self.source.url, self.manifest, self.source.pieces, progress)

    def small(self, entry: FileEntry) -> bytes:
        """As of a folder, through the cache."""
        return self.source.small([entry])[0]

    @property
    def cache(self) -> NodeCache:
        return self.source.cache

    def far(self, split: Split) -> StoredSamples:
        return self.stored[split]

    def read_ahead(self, split: Split, sequence: int, order: Callable[[int], Indices], start: int, stop: int | None) -> ReadAhead:
        samples = self.stored[split]
        return ReadAhead(self.source.cache, lambda step: [(samples.stored, samples.units(order(step), sequence))], start, stop)

    def __reduce__(self) -> tuple[Callable[..., TokenData], tuple[object, ...]]:
        return _reopened, (self.url, self.manifest_hash, self.source.cache.folder, self.source.cache.limit_bytes)


def _reopened(url: str, manifest_hash: str, folder: Path, limit_bytes: int) -> TokenData:
    """In another process, by the same cache."""
    return reopened(url, manifest_hash, cache=cache_at(folder, limit_bytes))


def check_format(manifest: Manifest, url: str) -> None:
    """Raises DataError for what can be read from a folder alone."""
    if manifest.format == CHECKED_WHOLE:
        raise DataError("format", manifest.format, f"{url} {_UPGRADE}")


def open_stored(source: StoreSource) -> StoredData:
    """Reads the manifest and the tokenizer; everything else when it is needed. Raises as `StoreSource` does, and SetupError for a
    cache in which not even one shard has room."""
    manifest, data = source.manifest()
    check_format(manifest, source.url)
    size_bytes, name = largest_shard(manifest)
    source.cache.check_limit(size_bytes, f"the shard {name} of {source.url} has")
    return StoredData(source, manifest, sha256_bytes(data))


def open_url(url: str, cache: NodeCache) -> StoredData:
    """What was prepared and put at a place such as s3://bucket/prefix. Raises SetupError for a URL that names no place too."""
    return open_stored(StoreSource(open_store(url, patience=REQUEST, field="data"), cache))
