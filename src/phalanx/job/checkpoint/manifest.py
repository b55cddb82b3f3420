"""The manifest of a checkpoint: what it is, what it belongs to, and the checksum of every file. Pure files; no torch."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phalanx.core import wire
from phalanx.core.errors import CheckpointError
from phalanx.core.ids import AttemptId, split_attempt
from phalanx.storage.atomic import write_atomic
from phalanx.storage.hashes import sha256_file

MANIFEST: Final = "manifest.json"
FORMAT: Final = 2
"""2: with `attempt`."""

_PREFIX: Final = "step-"
_MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024
Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a checkpoint; `name` is a plain file name in its folder."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a checkpoint belongs to; a run with another origin may not continue it.

    config, data: SHA-256 of the recipe's configuration and of the data manifest. layout: mesh axis to its size.
    """

    config: str
    data: str
    world_size: int
    layout: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Written last and atomically. `dtype`: arithmetic of the run. `extra`: the run's own numbers, such as the data cursor.

    attempt: id of the attempt that made it, '' outside Phalanx.
    """

    step: int
    origin: Origin
    dtype: str
    extra: Mapping[str, Scalar]
    files: tuple[FileEntry, ...]
    attempt: str = ""
    format: int = FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sealed:
    """The manifest as it lies on disk: a flipped bit in it shall not pass for another manifest."""

    sha256: str
    manifest: Manifest


def folder_name(step: int) -> str:
    return f"{_PREFIX}{step:08d}"


def step_folders(root: Path) -> Iterator[tuple[int, Path]]:
    """(step, folder) of every checkpoint folder, newest first, committed or not."""
    named = [folder for folder in root.glob(f"{_PREFIX}*") if folder.name[len(_PREFIX) :].isdecimal() and folder.is_dir()]
    for folder in sorted(named, key=lambda folder: int(folder.name[len(_PREFIX) :]), reverse=True):
        yield int(folder.name[len(_PREFIX) :]), folder


def committed(root: Path) -> list[tuple[int, Path]]:
    """(step, folder) of every checkpoint that exists, newest first."""
    return [(step, folder) for step, folder in step_folders(root) if (folder / MANIFEST).is_file()]


def commit(folder: Path, manifest: Manifest) -> str:
    """Makes the checkpoint exist. Its digest: the SHA-256 of the manifest file.

    Raises CheckpointError when a newer attempt of the job has committed one beside it or in its place, SetupError or
    StoreUnavailable when the file cannot be written.
    """
    check_fence(folder.parent, manifest.attempt)
    sealed = wire.dumps(_Sealed, _Sealed(sha256=_digest(manifest), manifest=manifest)).encode()
    write_atomic(folder / MANIFEST, sealed)
    return hashlib.sha256(sealed).hexdigest()


def check_fence(root: Path, attempt: str) -> None:
    """Raises CheckpointError when a newer attempt of `attempt`'s job has committed under `root`: the job is no longer its own.

    '' and attempts of other jobs have no order with it. A damaged manifest says nothing.
    """
    for _, folder in committed(root):
        try:
            other = read(folder)[0].attempt
        except CheckpointError:
            continue
        if _newer(other, attempt):
            fix = f"a newer attempt has committed it, so {attempt} may write no more; nothing of it was changed"
            raise CheckpointError(f"checkpoint {folder.name}", other, fix)


def _newer(one: str, other: str) -> bool:
    try:
        (job, number), (other_job, other_number) = split_attempt(AttemptId(one)), split_attempt(AttemptId(other))
    except ValueError:  # '' among others
        return False
    return job == other_job and number > other_number


def read(folder: Path) -> tuple[Manifest, str]:
    """The manifest and its digest. Raises CheckpointError when it cannot be read or was changed."""
    path = folder / MANIFEST
    try:
        if path.stat().st_size > _MANIFEST_BYTES_MAX:
            raise _damaged(path, f"is over {_MANIFEST_BYTES_MAX} bytes")
        data = path.read_bytes()
        sealed: _Sealed = wire.loads(_Sealed, data)
    except OSError as error:
        raise _damaged(path, f"cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise _damaged(path, f"is not a manifest ({error})") from error
    if sealed.manifest.format != FORMAT:
        raise _damaged(path, f"has format {sealed.manifest.format}, this version reads {FORMAT}")
    if _digest(sealed.manifest) != sealed.sha256:
        raise _damaged(path, "does not match its own checksum")
    return sealed.manifest, hashlib.sha256(data).hexdigest()


def verify(folder: Path, manifest: Manifest) -> None:
    """Raises CheckpointError naming the first file that is missing, foreign, cut short or changed."""
    for entry in manifest.files:
        path = folder / entry.name
        if Path(entry.name).name != entry.name or path.is_symlink():
            raise _damaged(path, "is not a plain file of this folder")
        if not path.is_file():
            raise _damaged(path, "is missing")
        if path.stat().st_size != entry.size_bytes:
            raise _damaged(path, f"has {path.stat().st_size} bytes instead of {entry.size_bytes}")
        if sha256_file(path) != entry.sha256:
            raise _damaged(path, "does not match its checksum")
    known = {MANIFEST, *(entry.name for entry in manifest.files)}
    for path in sorted(folder.iterdir()):
        if path.name not in known:
            raise _damaged(path, "is not in the manifest")


def entry_of(path: Path) -> FileEntry:
    return FileEntry(name=path.name, size_bytes=path.stat().st_size, sha256=sha256_file(path))


def _digest(manifest: Manifest) -> str:
    return hashlib.sha256(wire.dumps(Manifest, manifest).encode()).hexdigest()


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"checkpoint {path.parent.name}", path.name, what)
