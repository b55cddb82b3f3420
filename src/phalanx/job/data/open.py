"""A prepared folder as arrays of tokens: checked whole when opened, then read by whole batches through memory maps."""

from pathlib import Path
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from phalanx.core.errors import DataError
from phalanx.job.data import manifest as manifests
from phalanx.job.data.manifest import REMAKE, TOKENIZER, FileEntry, Manifest, Shard, Split
from phalanx.storage.hashes import sha256_bytes, sha256_file

Tokens = NDArray[np.uint16] | NDArray[np.int32]

_CHECK_TOKENS: Final = 16 * 2**20


class TokenData:
    """The tokens of a prepared folder. Sample i of a split is its tokens [i * sequence, i * sequence + sequence], both ends
    included, over the concatenated documents: inputs are all but the last, targets all but the first."""

    def __init__(self, folder: Path, manifest: Manifest, manifest_hash: str) -> None:
        self.folder = folder
        self.manifest = manifest
        self.manifest_hash = manifest_hash
        self._parts = {
            split: _Part([_mapped(folder, manifest, shard) for shard in _of(manifest, split)]) for split in manifests.SPLITS
        }

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
        return self._parts[split].num_tokens

    def num_samples(self, split: Split, sequence: int) -> int:
        """Whole samples of `sequence` inputs in the split; may be 0."""
        if sequence < 1:
            raise DataError("sequence", sequence, "write a whole number above 0")
        return max(0, (self.num_tokens(split) - 1) // sequence)

    def gather(self, split: Split, sample_indices: NDArray[np.int64], sequence: int) -> NDArray[np.int64]:
        """The samples, in the order asked: int64 of shape [len(sample_indices), sequence + 1]. Raises IndexError."""
        indices = np.asarray(sample_indices, dtype=np.int64)
        count = self.num_samples(split, sequence)
        if indices.size and not (indices.min() >= 0 and indices.max() < count):
            raise IndexError(f"a sample lies outside [0, {count}) of {split}")
        return self._parts[split].windows(indices * sequence, sequence + 1)


class _Part:
    """The shards of one split, end to end."""

    def __init__(self, arrays: list[Tokens]) -> None:
        self._arrays = arrays
        self._ends = np.cumsum([len(array) for array in arrays], dtype=np.int64)
        self.num_tokens = int(self._ends[-1]) if arrays else 0

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        rows = np.empty((len(starts), length), dtype=np.int64)
        first = np.searchsorted(self._ends, starts, side="right")
        last = np.searchsorted(self._ends, starts + (length - 1), side="right")
        for shard in np.unique(first[first == last]):
            chosen = np.flatnonzero((first == shard) & (last == shard))
            array = self._arrays[shard]
            rows[chosen] = sliding_window_view(array, length)[starts[chosen] - (self._ends[shard] - len(array))]
        for row in np.flatnonzero(first != last):  # at most one sample for each border between shards
            rows[row] = self._across(int(starts[row]), length, range(int(first[row]), int(last[row]) + 1))
        return rows

    def _across(self, start: int, length: int, shards: range) -> NDArray[np.int64]:
        pieces = []
        for shard in shards:
            begin = int(self._ends[shard]) - len(self._arrays[shard])
            pieces.append(self._arrays[shard][max(0, start - begin) : start + length - begin].astype(np.int64))
        return np.concatenate(pieces)


def open_data(path: Path, verify: bool = True) -> TokenData:
    """Opens what `prepare` made. `verify` also reads every file once and compares checksums (1.5 GB/s a core).

    Raises DataError naming the file, what is wrong with it and what to do.
    """
    manifest, data = manifests.read(path)
    for entry in manifest.files:
        _check_file(path, entry, verify)
    opened = TokenData(path, manifest, sha256_bytes(data))
    if verify:
        for shard in manifest.shards:
            _check_range(path, manifest, shard)
    return opened


def _check_file(folder: Path, entry: FileEntry, verify: bool) -> None:
    path = folder / entry.name
    try:
        size = path.stat().st_size
        if size != entry.size_bytes:
            raise DataError(entry.name, f"{size} bytes", f"{path} should have {entry.size_bytes} bytes; restore it, or {REMAKE}")
        if verify and (found := sha256_file(path)) != entry.sha256:
            raise DataError(entry.name, found, f"{path} is damaged: its SHA-256 should be {entry.sha256}; restore it, or {REMAKE}")
    except OSError as error:
        raise DataError(entry.name, str(path), f"cannot be read ({error.strerror}); restore it, or {REMAKE}") from error


def _check_range(folder: Path, manifest: Manifest, shard: Shard) -> None:
    """An id past the vocabulary would be read past the end of an embedding."""
    tokens = _mapped(folder, manifest, shard)
    for start in range(0, len(tokens), _CHECK_TOKENS):
        piece = tokens[start : start + _CHECK_TOKENS]
        if int(piece.min()) < 0 or int(piece.max()) >= manifest.vocab_size:
            raise DataError(
                shard.bin.name, int(piece.max()), f"has a token outside the vocabulary of {manifest.vocab_size}; {REMAKE}"
            )


def _of(manifest: Manifest, split: Split) -> list[Shard]:
    return [shard for shard in manifest.shards if shard.split == split]


def _mapped(folder: Path, manifest: Manifest, shard: Shard) -> Tokens:
    """Little-endian, as Megatron writes it on every machine that runs this."""
    path = folder / shard.bin.name
    try:
        if manifest.dtype == "uint16":
            return np.memmap(path, dtype=np.dtype("<u2"), mode="r", shape=(shard.tokens,))
        return np.memmap(path, dtype=np.dtype("<i4"), mode="r", shape=(shard.tokens,))
    except (OSError, ValueError) as error:
        raise DataError(shard.bin.name, str(path), f"cannot be mapped ({error}); restore it, or {REMAKE}") from error
