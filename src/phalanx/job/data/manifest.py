"""What a prepared folder says about itself. `manifest.json` is written last, so a folder without one is not a data set."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from phalanx.core import wire
from phalanx.core.errors import DataError

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
TOKENIZER: Final = "tokenizer.json"
_MANIFEST_BYTES_MAX: Final = 64 * 2**20

Split = Literal["train", "held_out"]
SPLITS: Final[tuple[Split, ...]] = ("train", "held_out")
REMAKE: Final = "make the folder again with `phalanx data prepare PATHS --out DIR`"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of the folder, by its name in it."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A Megatron pair: `bin` is `tokens` token ids, `idx` says where each of the `documents` lies."""

    split: Split
    tokens: int
    documents: int
    bin: FileEntry
    idx: FileEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What one given path contributed. `sha256` is over the names and contents of its documents, in order."""

    name: str
    documents: int
    text_bytes: int
    skipped_binary: int
    skipped_not_utf8: int
    skipped_unreadable: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCount:
    """Sums over the documents of a split; `tokens` counts each document's end mark, `text_bytes` does not."""

    tokens: int
    documents: int
    text_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The same text prepared with the same parameters and library gives the same manifest, byte for byte.

    dtype: of the tokens in the shards. end_of_document: token id after each document.
    """

    format: int
    vocab_size: int
    dtype: Literal["uint16", "int32"]
    end_of_document: int
    tokenizer: FileEntry
    splits: Mapping[Split, SplitCount]
    shards: tuple[Shard, ...]
    sources: tuple[Source, ...]
    parameters: Mapping[str, str | int | float]

    @property
    def num_tokens(self) -> int:
        return sum(split.tokens for split in self.splits.values())

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """Every file that the folder needs besides the manifest."""
        return (self.tokenizer, *(entry for shard in self.shards for entry in (shard.bin, shard.idx)))


@dataclass(frozen=True, slots=True)
class _Version:
    """Read before all else, since a newer format may have any other field."""

    format: int


def encode(manifest: Manifest) -> bytes:
    """The bytes of manifest.json; their SHA-256 is the data set's name in the lineage."""
    return wire.dumps(Manifest, manifest).encode() + b"\n"


def read(folder: Path) -> tuple[Manifest, bytes]:
    """The manifest of a prepared folder and its bytes. Raises DataError when there is none that this version can read."""
    path = folder / MANIFEST
    try:
        if path.stat().st_size > _MANIFEST_BYTES_MAX:
            raise DataError("manifest", str(path), f"is far too large for a manifest; {REMAKE}")
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError("data", str(folder), f"has no {MANIFEST}, so it is not a prepared folder; {REMAKE}") from error
    except OSError as error:
        raise DataError("data", str(folder), f"cannot be read ({error.strerror}); name a folder this user can read") from error
    try:
        version: _Version = wire.loads(_Version, data)
        if version.format > FORMAT:
            raise DataError("format", version.format, f"{path} was made by a newer Phalanx (this one reads {FORMAT}); upgrade it")
        manifest: Manifest = wire.loads(Manifest, data)
    except ValueError as error:
        raise DataError("manifest", str(path), f"is not a manifest of ours ({error}); {REMAKE}") from error
    _check(manifest, path)
    return manifest, data


def _check(manifest: Manifest, path: Path) -> None:
    """Holds for every manifest that `prepare` writes; a file name is the one thing in it that could reach outside the folder."""
    for entry in manifest.files:
        if Path(entry.name).name != entry.name:
            raise DataError("manifest", entry.name, f"{path} names a file outside its folder; {REMAKE}")
    width = {"uint16": 2, "int32": 4}[manifest.dtype]
    for shard in manifest.shards:
        if shard.tokens < 1 or shard.tokens * width != shard.bin.size_bytes:
            raise DataError(shard.bin.name, shard.bin.size_bytes, f"{path} counts {shard.tokens} {manifest.dtype} tokens; {REMAKE}")
    for split in SPLITS:
        counted = sum(shard.tokens for shard in manifest.shards if shard.split == split)
        if split not in manifest.splits or manifest.splits[split].tokens != counted:
            raise DataError(f"splits.{split}", counted, f"{path} does not count the tokens of its own shards; {REMAKE}")
