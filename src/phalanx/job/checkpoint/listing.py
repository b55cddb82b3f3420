"""What lies in a folder of checkpoints, for people: listed by manifests and sizes, or verified by reading every byte. No torch."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from phalanx.core.checkpoints import StoredCheckpoint
from phalanx.core.errors import CheckpointError, NotFound, SetupError
from phalanx.job.checkpoint import manifest
from phalanx.job.checkpoint.manifest import MANIFEST
from phalanx.job.checkpoint.whole import Checkpoint, open_checkpoint, read_through

Progress = Callable[[str, int, int], None]
"""Told the checkpoint's name, and bytes done and of how many."""


def listed(place: Path) -> tuple[StoredCheckpoint, ...]:
    """The checkpoints in a folder of them, or the one that `place` is, newest first. Raises NotFound, SetupError."""
    return tuple(_stored(folder, _nothing) for folder in _folders(place))


def verified(place: Path, progress: Progress) -> tuple[StoredCheckpoint, ...]:
    """As `listed`, with every byte of every one read, one after the other. What was never committed is not looked into."""
    return tuple(_stored(folder, lambda found: _read(found, progress)) for folder in _folders(place))


def _folders(place: Path) -> Sequence[Path]:
    if not place.is_dir():
        raise NotFound("path", str(place), "there is no such folder on this machine")
    try:
        if manifest.step_of(place.absolute()) is not None or (place / MANIFEST).is_file():
            return [place]
        found = [folder for _, folder in manifest.step_folders(place)]
    except OSError as error:
        raise SetupError("path", str(place), f"cannot be read ({error.strerror}); give this user the right to") from error
    if not found:
        raise NotFound("path", str(place), "holds no checkpoint; name a job's folder `checkpoints`, or one step in it")
    return found


def _stored(folder: Path, look: Callable[[Checkpoint], bool]) -> StoredCheckpoint:
    place = folder.absolute()
    committed = (folder / MANIFEST).exists()
    stored = StoredCheckpoint(name=place.name, path=str(place), step=manifest.step_of(place) or 0, committed=committed)
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
    read_through(found, lambda done, total: progress(found.folder.absolute().name, done, total))
    return True
