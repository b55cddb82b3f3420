"""A committed checkpoint as a whole: its manifest, every shard's index, and that the parts make up each tensor. No torch."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blake3 import blake3

from phalanx.core import wire
from phalanx.core.errors import CheckpointError
from phalanx.job.checkpoint import manifest, shard_file
from phalanx.job.checkpoint.folder import Folder, Where, folder_at
from phalanx.job.checkpoint.manifest import Manifest
from phalanx.job.checkpoint.shard_file import FORMAT, ITEM_BYTES, Part, PartEntry, ShardIndex, damaged

_DIMS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """dtype: a safetensors code. shape: of the whole tensor."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Located:
    """A part and the shard it lies in."""

    shard: ShardIndex
    entry: PartEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """digest: SHA-256 of the manifest file. tensors: each with the parts that make it up, none of them twice."""

    folder: Folder
    manifest: Manifest
    digest: str
    shards: tuple[ShardIndex, ...]
    tensors: Mapping[str, tuple[Located, ...]]


def open_checkpoint(where: Where) -> Checkpoint:
    """Reads manifest and indexes, and checks their hashes, every shard's size, and that no tensor has a hole.

    Reads no tensor. Raises CheckpointError naming the file, OtherFormat for one of another version; StoreUnavailable and SetupError
    of an object store that cannot be read.
    """
    folder = folder_at(where)
    read, digest = manifest.read(folder)
    shards = tuple(_index(folder, one, read) for one in read.indexes)
    if [shard.rank for shard in shards] != list(range(read.origin.world_size)):
        raise damaged(folder, manifest.MANIFEST, f"does not list one shard for each of {read.origin.world_size} ranks")
    for shard in shards:
        with shard_file.opened(folder, shard):
            pass
    return Checkpoint(folder=folder, manifest=read, digest=digest, shards=shards, tensors=merged(folder, shards))


def verify(folder: Where, progress: Callable[[int, int], None] = lambda _, __: None) -> Checkpoint:
    """Reads every byte. progress: told bytes done and of how many. Raises CheckpointError naming the damaged file and part."""
    checkpoint = open_checkpoint(folder)
    read_through(checkpoint, progress)
    return checkpoint


def read_through(checkpoint: Checkpoint, progress: Callable[[int, int], None] = lambda _, __: None) -> None:
    """As `verify`, of one that is open."""
    total = sum(shard.size_bytes for shard in checkpoint.shards)
    done = 0

    def more(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    for shard in checkpoint.shards:
        shard_file.verify(checkpoint.folder, shard, more)


def _index(folder: Where, listed: manifest.IndexFile, read: Manifest) -> ShardIndex:
    if Path(listed.name).name != listed.name:
        raise damaged(folder, manifest.MANIFEST, f"names a file out of the folder: {listed.name!r}")
    data = manifest.read_bounded(folder, listed.name)
    if len(data) != listed.size_bytes or blake3(data).hexdigest() != listed.blake3:
        raise damaged(folder, listed.name, "does not match its checksum")
    index = parse_index(folder, listed.name, data)
    if index.key != read.key or index.size_bytes != listed.shard_bytes:
        raise damaged(folder, listed.name, "is of another save")
    return index


def parse_index(folder: Where, name: str, data: bytes) -> ShardIndex:
    """Raises CheckpointError for what is no index, or points out of its shard or its folder."""
    try:
        index: ShardIndex = wire.loads(ShardIndex, data)
    except ValueError as error:
        raise damaged(folder, name, f"is not a shard's index ({error})") from error
    if index.format != FORMAT:
        raise damaged(folder, name, f"has format {index.format}, this version reads {FORMAT}")
    if Path(index.file).name != index.file or index.file in ("", ".", ".."):
        raise damaged(folder, name, f"names a file out of the folder: {index.file!r}")
    for entry in index.parts:
        if not _sound(entry, index):
            raise damaged(folder, name, f"{entry.key} lies outside of its tensor or file")
    return index


def _sound(entry: PartEntry, index: ShardIndex) -> bool:
    return (
        entry.dtype in ITEM_BYTES
        and len(entry.shape) <= _DIMS_MAX
        and entry.inside()
        and entry.length == entry.num_bytes
        and (entry.length > 0 or math.prod(entry.shape) == 0)
        and 0 <= index.header_bytes <= entry.offset
        and entry.offset + entry.length <= index.size_bytes
    )


def merged(folder: Where, shards: Iterable[ShardIndex]) -> dict[str, tuple[Located, ...]]:
    """Every tensor's parts, by its name. A part that several ranks wrote counts once, and must be equal (T11).

    Raises CheckpointError for a tensor with a hole, an overlap, or two types or shapes.
    """
    found: dict[str, dict[tuple[tuple[int, ...], tuple[int, ...]], Located]] = defaultdict(dict)
    for shard in shards:
        for entry in shard.parts:
            known = found[entry.name].setdefault((entry.start, entry.size), Located(shard, entry))
            if known.entry.blake3 != entry.blake3:
                what = f"{entry.key} differs from that of rank {known.shard.rank}: two replicas have parted ways"
                raise damaged(folder, shard.file, what)
    for name, places in found.items():
        _check_tiles(folder, name, [located.entry for located in places.values()])
    return {name: tuple(places.values()) for name, places in found.items()}


def spec_of(parts: Sequence[Located]) -> TensorSpec:
    return TensorSpec(dtype=parts[0].entry.dtype, shape=parts[0].entry.shape)


def check_same(folder: Where, saved: Mapping[str, TensorSpec], wanted: Mapping[str, TensorSpec]) -> None:
    """Raises CheckpointError unless both have the same names, types and shapes."""
    place = f"checkpoint {folder.name}"
    for name in sorted(saved.keys() ^ wanted.keys()):
        what = "is saved but not part of this run" if name in saved else "is part of this run but not saved"
        raise CheckpointError(place, name, what)
    for name, one in wanted.items():
        if saved[name] != one:
            was, wants = (f"{spec.dtype} {tuple(spec.shape)}" for spec in (saved[name], one))
            raise CheckpointError(place, name, f"is saved as {was}, this run has {wants}")


def _check_tiles(folder: Where, name: str, parts: Sequence[Part]) -> None:
    first = parts[0]
    if any((part.dtype, part.shape) != (first.dtype, first.shape) for part in parts):
        raise damaged(folder, name, "has parts of two types or shapes")
    if sum(math.prod(part.size) for part in parts) != math.prod(first.shape):
        raise damaged(folder, name, "has a hole or an overlap: its parts are not its size")
    if first.shape and _overlap(parts):
        raise damaged(folder, name, "has parts that overlap")


def _overlap(parts: Sequence[Part]) -> bool:
    """A sweep over the first dimension: only boxes that are open at the same place are compared."""
    active: list[Part] = []
    for part in sorted((part for part in parts if math.prod(part.size)), key=lambda part: part.start[0]):
        active = [one for one in active if one.start[0] + one.size[0] > part.start[0]]
        if any(_meet(one, part) for one in active):
            return True
        active.append(part)
    return False


def _meet(one: Part, other: Part) -> bool:
    edges = zip(one.start, one.size, other.start, other.size, strict=True)
    return all(start < far + length and far < start + size for start, size, far, length in edges)
