"""What a prepared folder says about itself. `manifest.json` is written last, so a folder without one is not a data set."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from phalanx.core import unprepared, wire
from phalanx.core.errors import DataError
from phalanx.job.data.block_sums import sums_bytes
from phalanx.job.data.megatron import WIDTHS, TokenType

FORMAT: Final = 2
MANIFEST: Final = unprepared.MANIFEST
TOKENIZER: Final = "tokenizer.json"
_ID_BITS: Final[dict[TokenType, int]] = {"uint16": 16, "int32": 31}
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MANIFEST_BYTES_MAX: Final = 64 * 2**20

Split = Literal["train", "held_out"]
Kind = Literal["tokens", "samples"]
SPLITS: Final[tuple[Split, ...]] = ("train", "held_out")
HELD_OUT_MAX: Final = 0.5
"""The largest share of the documents that may be kept from training."""

REMAKE: Final = "make the folder again with `phalanx data prepare PATHS --out DIR`"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of the folder, by its name in it."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Three files NAME.bin, .idx and .xxh3: a Megatron pair, of which `bin` is `tokens` token ids and `idx` says where each of the
    `documents` lies, and the checksums of the blocks of `bin` (see `block_sums`; a folder of format 1 has none, and 0 bytes here).

    It is flat since a manifest may list tens of thousands, which every rank reads when it starts.
    """

    name: str
    split: Split
    tokens: int
    documents: int
    bin_bytes: int
    bin_sha256: str
    idx_bytes: int
    idx_sha256: str
    xxh3_bytes: int
    xxh3_sha256: str

    @classmethod
    def of(cls, split: Split, tokens: int, documents: int, *, bin: FileEntry, idx: FileEntry, xxh3: FileEntry | None) -> "Shard":  # noqa: A002
        return cls(
            name=bin.name.removesuffix(".bin"),
            split=split,
            tokens=tokens,
            documents=documents,
            bin_bytes=bin.size_bytes,
            bin_sha256=bin.sha256,
            idx_bytes=idx.size_bytes,
            idx_sha256=idx.sha256,
            xxh3_bytes=xxh3.size_bytes if xxh3 else 0,
            xxh3_sha256=xxh3.sha256 if xxh3 else "",
        )

    @property
    def bin(self) -> FileEntry:
        return FileEntry(name=f"{self.name}.bin", size_bytes=self.bin_bytes, sha256=self.bin_sha256)

    @property
    def idx(self) -> FileEntry:
        return FileEntry(name=f"{self.name}.idx", size_bytes=self.idx_bytes, sha256=self.idx_sha256)

    @property
    def xxh3(self) -> FileEntry | None:
        return FileEntry(name=f"{self.name}.xxh3", size_bytes=self.xxh3_bytes, sha256=self.xxh3_sha256) if self.xxh3_bytes else None

    @property
    def files(self) -> tuple[FileEntry, ...]:
        return (self.bin, self.idx, self.xxh3) if self.xxh3 else (self.bin, self.idx)


def shard_name(split: Split, number: int) -> str:
    """Of its files, without their endings."""
    return f"{split}-{number:05d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What one given path contributed, and how many files, lines and rows of it did not. `sha256` is over the names and contents of
    the pieces with documents, in order.

    not_json, no_text: lines and rows without the text field that was asked for. short: under `min_chars`. duplicate: equal to an
    earlier document, also of another source.
    """

    name: str
    documents: int
    text_bytes: int
    skipped_binary: int
    skipped_not_utf8: int
    skipped_unreadable: int
    skipped_empty: int = 0
    skipped_not_json: int = 0
    skipped_no_text: int = 0
    skipped_short: int = 0
    skipped_duplicate: int = 0
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
    dtype: TokenType
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
        return (self.tokenizer, *(entry for shard in self.shards for entry in shard.files))


@dataclass(frozen=True, slots=True)
class _Version:
    """Read before all else, since a newer format may have any other field. kind: manifests of tokens do not say theirs."""

    format: int
    kind: Kind = "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shard1:
    """Of format 1, of which folders exist: no checksums of blocks, and all else of the manifest as it is now."""

    split: Split
    tokens: int
    documents: int
    bin: FileEntry
    idx: FileEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shards1:
    shards: tuple[_Shard1, ...]


def encode(manifest: Manifest) -> bytes:
    """The bytes of manifest.json; their SHA-256 is the data set's name in the lineage."""
    return wire.dumps(Manifest, manifest).encode() + b"\n"


def read(folder: Path) -> tuple[Manifest, bytes]:
    """The manifest of a folder of tokens and its bytes. Raises DataError when there is none that this version can read."""
    data = load(folder)
    return parse(data, str(folder / MANIFEST)), data


def parse(data: bytes, path: str) -> Manifest:
    """Of the bytes of a manifest.json. path: where it lies, for errors. Raises DataError."""
    try:
        manifest = _parsed(data, path)
    except ValueError as error:
        raise DataError("manifest", path, f"is not a manifest of ours ({error}); {REMAKE}") from error
    _check(manifest, path)
    return manifest


def load(folder: Path) -> bytes:
    """The bytes of the manifest of a folder, whatever kind of data it holds. Raises DataError when there is none, which says
    what is there instead."""
    path = folder / MANIFEST
    try:
        if path.stat().st_size > _MANIFEST_BYTES_MAX:
            raise DataError("manifest", str(path), f"is far too large for a manifest; {REMAKE}")
        return path.read_bytes()
    except OSError as error:
        if (found := unprepared.unprepared(folder)) is not None:
            raise DataError("data", str(folder), found.fix) from error
        raise DataError("manifest", str(path), f"cannot be read ({error.strerror}); give this user the right to read it") from error


def kind(data: bytes) -> Kind | None:
    """What the folder of this manifest holds; None for what is no manifest of ours."""
    try:
        found: Kind = wire.loads(_Version, data).kind
    except ValueError:
        return None
    return found


def is_plain(name: str) -> bool:
    """Whether it may name a file of a folder: a manifest's names are the one thing in it that could reach outside."""
    return _PLAIN_NAME.fullmatch(name) is not None


def _parsed(data: bytes, path: str) -> Manifest:
    """Raises ValueError for what is no manifest at all."""
    try:
        manifest: Manifest = wire.loads(Manifest, data)
        found = manifest.format
    except ValueError:
        version: _Version = wire.loads(_Version, data)
        if version.kind == "samples":
            fix = "holds samples, not tokens: read it with `open_samples`, or name a folder made by `phalanx data prepare`"
            raise DataError("data", path.rpartition("/")[0], fix) from None
        found = version.format
        if found == FORMAT:
            raise
    if found > FORMAT:
        raise DataError("format", found, f"{path} was made by a newer Phalanx (this one reads {FORMAT}); upgrade it")
    return manifest if found == FORMAT else _of_format_1(data)


def _of_format_1(data: bytes) -> Manifest:
    old: _Shards1 = wire.loads(_Shards1, data)
    shards = tuple(Shard.of(one.split, one.tokens, one.documents, bin=one.bin, idx=one.idx, xxh3=None) for one in old.shards)
    manifest: Manifest = wire.build(Manifest, {**json.loads(data), "shards": wire.plain(tuple[Shard, ...], shards)})
    return manifest


def _check(manifest: Manifest, path: str) -> None:
    """Holds for every manifest that `prepare` writes."""
    for name in (manifest.tokenizer.name, *(shard.name for shard in manifest.shards)):
        if not is_plain(name):
            raise DataError("manifest", name, f"{path} names a file outside its folder; {REMAKE}")
    if manifest.vocab_size > 1 << _ID_BITS[manifest.dtype]:
        raise DataError("vocab_size", manifest.vocab_size, f"{path} has {manifest.dtype} tokens, which cannot hold it; {REMAKE}")
    width, counted = WIDTHS[manifest.dtype], dict.fromkeys(SPLITS, 0)
    for shard in manifest.shards:
        counted[shard.split] += shard.tokens
        if shard.tokens < 1 or shard.tokens * width != shard.bin_bytes:
            raise DataError(shard.bin.name, shard.bin_bytes, f"{path} counts {shard.tokens} {manifest.dtype} tokens; {REMAKE}")
        if manifest.format > 1 and shard.xxh3_bytes != sums_bytes(shard.bin_bytes):
            raise DataError(f"{shard.name}.xxh3", shard.xxh3_bytes, f"{path} lists {shard.bin_bytes} bytes of tokens; {REMAKE}")
    for split, found in counted.items():
        if split not in manifest.splits or manifest.splits[split].tokens != found:
            raise DataError(f"splits.{split}", found, f"{path} does not count the tokens of its own shards; {REMAKE}")
    if not manifest.shards:
        raise DataError("manifest", path, f"lists no shard; {REMAKE}")
