"""The manifest of a checkpoint: what it is, what it belongs to, and the hash of every shard's index. Pure files; no torch."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from phalanx.core import wire
from phalanx.core.errors import CheckpointError, StoreUnavailable
from phalanx.job.checkpoint import fence
from phalanx.job.checkpoint.fence import Holder
from phalanx.job.checkpoint.folder import Folder, Unreadable, Where, folder_at
from phalanx.job.checkpoint.shard_file import FORMAT, SaveKey, damaged

MANIFEST: Final = "manifest.json"

_PREFIX: Final = "step-"
_MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024
Scalar = str | int | float | bool


class OtherFormat(CheckpointError):
    """Written by another version of Phalanx: neither damaged nor readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """The index of one rank's shard. name: a plain file name in the folder. shard_bytes: size of the shard."""

    name: str
    size_bytes: int
    blake3: str
    shard_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a checkpoint belongs to; a run with another config may not continue it, nor one with other data, which a data cursor
    among the run's numbers says better.

    config, data: SHA-256 of the recipe's configuration and of the data manifest, or of those of all sources. layout: mesh axis to
    its size; any other world size and layout may go on from it.
    """

    config: str
    data: str
    world_size: int
    layout: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Written last and atomically. `dtype`: arithmetic of the run. `extra`: the run's own numbers, such as the data cursor.

    metrics: what the run measured at this step, such as val_loss; `keep_best` goes by one of them. indexes: in rank order.
    """

    key: SaveKey
    origin: Origin
    dtype: str
    extra: Mapping[str, Scalar]
    indexes: tuple[IndexFile, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def step(self) -> int:
        return self.key.step

    @property
    def attempt(self) -> str:
        return self.key.attempt

    @property
    def holder(self) -> Holder:
        return Holder(attempt=self.key.attempt, generation=self.key.generation)

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes + one.shard_bytes for one in self.indexes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sealed:
    """The manifest as it lies on disk: a flipped bit in it shall not pass for another manifest."""

    sha256: str
    manifest: Manifest


def folder_name(step: int) -> str:
    return f"{_PREFIX}{step:08d}"


def step_folders(root: Where) -> Iterator[tuple[int, Folder]]:
    """(step, folder) of every checkpoint folder, newest first, committed or not. Raises as looking into a `Folder` does."""
    folder = folder_at(root)
    steps = {name: step for name in folder.folders() if (step := _step(name)) is not None}
    for name in sorted(steps, key=lambda name: steps[name], reverse=True):
        yield steps[name], folder / name


def step_of(folder: Where) -> int | None:
    """The step that a checkpoint's folder is named after; None for another folder."""
    return _step(folder.name)


def _step(name: str) -> int | None:
    number = name.removeprefix(_PREFIX)
    return int(number) if name.startswith(_PREFIX) and number.isdecimal() else None


def committed(root: Where) -> list[tuple[int, Folder]]:
    """(step, folder) of every checkpoint that exists, newest first. Raises as `step_folders`."""
    return [(step, folder) for step, folder in step_folders(root) if folder.has(MANIFEST)]


def commit(where: Where, manifest: Manifest) -> str:
    """Makes the checkpoint exist. Its digest: the SHA-256 of the manifest file.

    Where no manifest is, only one of two committers makes it; an older holder's is replaced.

    Raises CheckpointError when a newer attempt or generation holds the folder of checkpoints, SetupError or StoreUnavailable when
    the file cannot be written.
    """
    folder = folder_at(where)
    check_fence(folder.parent, manifest.holder)
    sealed = wire.dumps(_Sealed, _Sealed(sha256=_digest(manifest), manifest=manifest)).encode()
    if not folder.swap(MANIFEST, sealed, None):
        version = folder.version(MANIFEST)
        check_fence(folder.parent, manifest.holder)
        if not folder.swap(MANIFEST, sealed, version):
            raise StoreUnavailable(f"{folder}: another manifest was made in this moment; try again")
    return hashlib.sha256(sealed).hexdigest()


def check_fence(root: Where, holder: Holder) -> None:
    """Raises CheckpointError when a newer attempt or generation of the holder's job was here, SetupError or StoreUnavailable when
    the fence cannot be written. A damaged manifest says nothing."""
    fence.hold(root, holder, _makers(root))


def _makers(root: Where) -> Iterator[Holder]:
    for _, folder in committed(root):
        with contextlib.suppress(CheckpointError):
            yield read(folder)[0].holder


def read(folder: Where) -> tuple[Manifest, str]:
    """The manifest and its digest. Raises CheckpointError when it cannot be read or was changed; OtherFormat, which is one, when
    another version wrote it."""
    data = read_bounded(folder, MANIFEST)
    try:
        plain = json.loads(data)
    except ValueError as error:
        raise damaged(folder, MANIFEST, f"is not a manifest ({error})") from error
    _check_format(folder, plain, data)
    try:
        sealed: _Sealed = wire.loads(_Sealed, data)
    except ValueError as error:
        raise damaged(folder, MANIFEST, f"is not a manifest ({error})") from error
    if _digest(sealed.manifest) != sealed.sha256:
        raise damaged(folder, MANIFEST, "does not match its own checksum")
    return sealed.manifest, hashlib.sha256(data).hexdigest()


def read_bounded(folder: Where, name: str) -> bytes:
    """A small file of a checkpoint. Raises CheckpointError; StoreUnavailable and SetupError of an object store."""
    try:
        return folder_at(folder).read(name, _MANIFEST_BYTES_MAX)
    except Unreadable as error:
        raise damaged(folder, name, str(error)) from error


def _check_format(folder: Where, plain: Any, data: bytes) -> None:
    """A checksum that fits says that it is no flipped bit that reads as another format."""
    inner = plain.get("manifest") if isinstance(plain, dict) else None
    found = inner.get("format") if isinstance(inner, dict) else None
    if found == FORMAT or not isinstance(found, int):
        return
    _, _, text = data.rstrip().removesuffix(b"}").partition(b'"manifest":')
    if hashlib.sha256(text).hexdigest() == plain.get("sha256"):
        fix = (
            f"has format {found}, this version reads {FORMAT}; use the version that wrote it, or move the folder away to start over"
        )
        raise OtherFormat(f"checkpoint {folder.name}", MANIFEST, fix)


def _digest(manifest: Manifest) -> str:
    return hashlib.sha256(wire.dumps(Manifest, manifest).encode()).hexdigest()
