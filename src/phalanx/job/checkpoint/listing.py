"""What lies in a folder of checkpoints, for people: listed by manifests and sizes, or verified by reading every byte. No torch."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from phalanx.core.checkpoints import StoredCheckpoint
from phalanx.core.errors import CheckpointError, NotFound, SetupError
from phalanx.job.checkpoint import manifest
from phalanx.job.checkpoint.disk_folder import DiskFolder
from phalanx.job.checkpoint.folder import Folder, Where, folder_at
from phalanx.job.checkpoint.manifest import MANIFEST
from phalanx.job.checkpoint.whole import Checkpoint, open_checkpoint, read_through

Progress = Callable[[str, int, int], None]
"""Told the checkpoint's name, and bytes done and of how many."""


def listed(place: Where | str) -> tuple[StoredCheckpoint, ...]:
    """The checkpoints in a folder of them, or the one that `place` is, newest first. place: a folder, or a URL of an object store.

    Raises NotFound, SetupError; StoreUnavailable of a store that is away.
    """
    return tuple(_stored(folder, _nothing) for folder in _folders(place))


def verified(place: Where | str, progress: Progress) -> tuple[StoredCheckpoint, ...]:
    """As `listed`, with every byte of every one read, one after the other. What was never committed is not looked into."""
    return tuple(_stored(folder, lambda found: _read(found, progress)) for folder in _folders(place))


def _folders(place: Where | str) -> Sequence[Folder]:
    folder = _absolute(folder_at(place))
    if isinstance(folder, DiskFolder) and not folder.path.is_dir():
        raise NotFound("path", str(place), "there is no such folder on this machine")
    try:
        if manifest.step_of(folder) is not None or folder.has(MANIFEST):
            return [folder]
        found = [one for _, one in manifest.step_folders(folder)]
    except OSError as error:
        raise SetupError("path", str(place), f"cannot be read ({error.strerror}); give this user the right to") from error
    if not found:
        raise NotFound("path", str(place), "holds no checkpoint; name a job's folder `checkpoints`, or one step in it")
    return found


def _absolute(folder: Folder) -> Folder:
    return DiskFolder(folder.path.absolute()) if isinstance(folder, DiskFolder) else folder


def _stored(folder: Folder, look: Callable[[Checkpoint], bool]) -> StoredCheckpoint:
    committed = folder.has(MANIFEST)
    stored = StoredCheckpoint(name=folder.name, path=str(folder), step=manifest.step_of(folder) or 0, committed=committed)
    if not committed:
        return replace(stored, problem=f"{MANIFEST}: is missing, so it was never committed")
    try:
        found = open_checkpoint(folder)
        stored = _filled(stored, found)
        return replace(stored, verified=look(found))
    except CheckpointError as error:
        return replace(stored, problem=f"{error.value}: {error.fix}")


def _filled(stored: StoredCheckpoint, found: Checkpoint) -> StoredCheckpoint:
    read = found.manifest
    return replace(
        stored, step=read.step, attempt=read.attempt, ranks=read.origin.world_size, tensors=len(found.tensors),
        size_bytes=read.size_bytes, metrics=read.metrics,
    )  # fmt: skip


def _nothing(_: Checkpoint) -> bool:
    return False


def _read(found: Checkpoint, progress: Progress) -> bool:
    read_through(found, lambda done, total: progress(found.folder.name, done, total))
    return True
