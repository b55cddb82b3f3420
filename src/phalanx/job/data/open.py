"""A prepared folder as arrays of tokens: opened at once, and every block checked when it is first read."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError
from phalanx.job.data import manifest as manifests
from phalanx.job.data.bad_block import Block
from phalanx.job.data.checked import bad_split, numbers_of, path_of, whole
from phalanx.job.data.manifest import TOKENIZER, FileEntry, Manifest, Split
from phalanx.job.data.order import Indices
from phalanx.job.data.pieces import Pieces
from phalanx.job.data.samples import Rows, Samples
from phalanx.job.data.shards import Refetch, Shards, Watch, read_small, unreadable, wrong_size
from phalanx.job.data.verify import VerifyProgress, verify_files
from phalanx.storage.hashes import sha256_bytes
from phalanx.storage.places import parse_place

if TYPE_CHECKING:
    from phalanx.job.data.read_ahead import ReadAhead
    from phalanx.job.data.stored_shards import StoredSamples
    from phalanx.storage.cache.node_cache import NodeCache

CHECKED_WHOLE: Final = 1
"""The format without checksums of blocks."""


class TokenData:
    """The tokens of a prepared folder. Sample i of a split is its tokens [i * sequence, i * sequence + sequence], both ends
    included, over the concatenated documents: inputs are all but the last, targets all but the first. Any thread may gather, and
    a loader's processes may be given it: each opens the folder again."""

    def __init__(self, folder: Path, manifest: Manifest, manifest_hash: str, refetch: Refetch | None = None) -> None:
        self.folder = folder
        self.manifest = manifest
        self.manifest_hash = manifest_hash
        self._refetch = refetch
        self._samples: Mapping[Split, Samples] = {
            split: Samples(Shards(folder, manifest, shards, manifest_hash, refetch))
            for split in manifests.SPLITS
            for shards in [[shard for shard in manifest.shards if shard.split == split]]
        }

    @property
    def place(self) -> str:
        """The folder, or the URL, in which it lies."""
        return str(self.folder)

    @property
    def vocab_size(self) -> int:
        return self.manifest.vocab_size

    @property
    def end_of_document(self) -> int:
        return self.manifest.end_of_document

    @property
    def tokenizer_path(self) -> Path:
        return self.folder / TOKENIZER

    def num_tokens(self, split: Split) -> int:
        return self._of(split).num_tokens

    def num_samples(self, split: Split, sequence: int) -> int:
        """Whole samples of `sequence` inputs in the split; may be 0."""
        return self._of(split).count(whole("sequence", sequence))

    def gather(
        self,
        split: Split,
        sample_indices: NDArray[np.int64],
        sequence: int,
        out: Rows | None = None,
        watch: Watch | None = None,
    ) -> Rows:
        """The samples, in the order asked: int64 of shape [len(sample_indices), sequence + 1], in `out` where it is given.

        Raises IndexError for a sample outside the split, DataError for what is no split, no whole number or no row of them, and
        where the data is not what `prepare` wrote: BadBlock where a single block of it is not.
        """
        indices, sequence = numbers_of("sample_indices", sample_indices), whole("sequence", sequence)
        if out is not None and (out.shape != (len(indices), sequence + 1) or out.dtype != np.int64):
            raise DataError("out", f"{out.dtype}{list(out.shape)}", f"give int64 of shape [{len(indices)}, {sequence + 1}]")
        return self._of(split).gather(indices, sequence, out, watch)

    @property
    def cache(self) -> "NodeCache | None":
        """That its blocks come through, where it lies in a store."""
        return None

    def far(self, split: Split) -> "StoredSamples | None":
        """Its samples, where they lie in a store."""
        return None

    def read_ahead(
        self, split: Split, sequence: int, order: Callable[[int], Indices], start: int, stop: int | None
    ) -> "ReadAhead | None":
        """What fetches the steps to come from afar, for a stream to tell how far it is; None where nothing is far."""
        return None

    def verify(self, progress: VerifyProgress | None = None) -> None:
        """Reads every file and compares it. Raises DataError."""
        verify_files(self.folder, self.manifest, progress)

    def small(self, entry: FileEntry) -> bytes:
        """One of its files that fits into memory, checked. Raises DataError."""
        return read_small(self.folder, entry)

    def touching(self, split: Split, block: Block, sequence: int) -> tuple[tuple[int, int], ...]:
        """Stretches [first, stop) of the samples that need a block; none where it is no block of the split."""
        return self._of(split).touching(block.shard, block.block, sequence) if block.data == self.manifest_hash else ()

    def tokens_of(self, split: Split, block: Block) -> list[tuple[int, int]]:
        """The tokens [begin, end) of a block, counted over the split; none where it is no block of the split."""
        return self._of(split).tokens_of(block.shard, block.block) if block.data == self.manifest_hash else []

    def row_shape(self, sequence: int) -> tuple[int, ...]:
        """Of what `gather` gives for each sample."""
        return (sequence + 1,)

    def gather_pieces(
        self, split: Split, pieces: Pieces, document_begins: NDArray[np.int64], out: Rows, watch: Watch | None = None
    ) -> None:
        """The rows that are made of these pieces of the split's documents, into `out` [rows, width]; padding is end marks.

        document_begins: the first token of each document, counted over the split. Raises DataError where the data is not what
        `prepare` wrote.
        """
        self._of(split).gather_pieces(pieces, document_begins, self.end_of_document, out, watch)

    def __reduce__(self) -> "tuple[Callable[..., TokenData], tuple[object, ...]]":
        return reopened, (self.folder, self.manifest_hash, self._refetch)

    def _of(self, split: Split) -> Samples:
        try:
            return self._samples[split]
        except (KeyError, TypeError):
            raise bad_split(split) from None

    def _trust(self) -> None:
        for samples in self._samples.values():
            samples.shards.trust_all()


def open_data(
    path: Path | str,
    verify: bool = False,
    progress: VerifyProgress | None = None,
    refetch: Refetch | None = None,
    cache: "NodeCache | None" = None,
) -> TokenData:
    """Opens what `prepare` made: reads the manifest and the tokenizer and looks at the sizes of the shards, of which each block is
    checked when it is first read. `verify` reads every file now (1.5 GB/s a core), as is always done in a folder of format 1.
    refetch: for a folder that copies of files from elsewhere are put into, how one is brought again; see `Refetch`.

    path: a folder, or a place that `storage.places` knows, such as s3://bucket/prefix: blocks then come through a cache on this
    node; see `cache_place`. Raises DataError naming the file, what is wrong with it and what to do; for a store also SetupError and
    StoreUnavailable.
    """
    if "://" in str(path):
        place = parse_place(str(path), "data")
        if place.scheme != "file":
            return _opened_afar(str(path), verify, progress, cache)
        path = place.path
    opened = open_unread(path_of("data", path), refetch)
    if verify or opened.manifest.format == CHECKED_WHOLE:
        opened.verify(progress)
    if opened.manifest.format == CHECKED_WHOLE:
        opened._trust()
    return opened


def open_unread(folder: Path, refetch: Refetch | None = None) -> TokenData:
    """As far as it goes without a byte of the shards, in a folder of any format. Raises DataError."""
    manifest, data = manifests.read(folder)
    _check_sizes(folder, manifest)
    read_small(folder, manifest.tokenizer)
    return TokenData(folder, manifest, sha256_bytes(data), refetch)


def _opened_afar(url: str, verify: bool, progress: VerifyProgress | None, cache: "NodeCache | None") -> TokenData:
    from phalanx.job.data.cache_place import node_cache  # what data in a folder does without
    from phalanx.job.data.stored import open_url

    data = open_url(url, cache or node_cache())
    if verify:
        data.verify(progress)
    return data


def reopened(folder: Path | str, manifest_hash: str, refetch: Refetch | None = None, cache: "NodeCache | None" = None) -> TokenData:
    """In another process. Raises DataError when other data stands there by now."""
    data = open_data(folder, refetch=refetch, cache=cache)
    if data.manifest_hash != manifest_hash:
        raise DataError(
            "manifest", data.manifest_hash, f"{folder} holds other data than {manifest_hash}, which was opened; start again"
        )
    return data


def _check_sizes(folder: Path, manifest: Manifest) -> None:
    """Of the shards alone: everything else is small and compared when it is read."""
    stem = f"{folder}{os.sep}"
    for shard in manifest.shards:
        try:
            size = os.stat(f"{stem}{shard.name}.bin").st_size  # noqa: PTH116 -- a third of the time of a Path, ten thousand times
        except OSError as error:
            raise unreadable(shard.bin, folder / shard.bin.name, error) from error
        if size != shard.bin_bytes:
            raise wrong_size(shard.bin, folder, size)
