"""Writes one checkpoint: every rank its own shards, then rank 0 the manifest. Synchronous; a collective of all ranks."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_shards

from phalanx.core.errors import CheckpointError, SetupError, StoreUnavailable
from phalanx.job.checkpoint import manifest
from phalanx.job.checkpoint.index import check_same
from phalanx.job.checkpoint.manifest import FileEntry, Manifest, Origin, Scalar
from phalanx.job.checkpoint.retention import discard, keep_newest
from phalanx.job.checkpoint.rng import save_rng
from phalanx.job.checkpoint.together import decided_by_rank_zero, told_by_all
from phalanx.storage.atomic import fsync_folder

_UNWRITABLE: Final = (OSError, SetupError, StoreUnavailable)
"""What a write raises when the place, not the program, is at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The checkpoint of `step` is durable; `digest` is its manifest's SHA-256."""

    step: int
    path: str
    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailed:
    """Nothing of the checkpoint of `step` is left; older ones are untouched. `reason` is one line."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePolicy:
    """Where and when to save: every `every` steps (0: never) and at the last; `keep_last` newest stay."""

    root: Path
    every: int
    keep_last: int

    def due(self, step: int, total_steps: int) -> bool:
        return step == total_steps or (self.every > 0 and step % self.every == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What of a checkpoint is the same at every step of a run. `attempt`: its id, '' outside Phalanx."""

    origin: Origin
    dtype: str
    device: torch.device
    attempt: str = ""


def save(
    policy: SavePolicy, identity: Identity, step: int, state: dict[str, torch.Tensor], extra: Mapping[str, Scalar]
) -> Saved | SaveFailed:
    """Saves and then applies the policy's retention. The same answer on every rank.

    Raises CheckpointError once a newer attempt of the job has committed a checkpoint: this one lost its right to write.
    """
    folder = policy.root / manifest.folder_name(step)
    refused = decided_by_rank_zero(lambda: _make_empty(folder, identity.attempt))
    if refused:
        return SaveFailed(step=step, reason=refused)
    parts = told_by_all(_write_part(folder, state, identity.device))
    return decided_by_rank_zero(lambda: _commit_or_discard(policy, identity, step, state, extra, parts))


def _make_empty(folder: Path, attempt: str) -> str:
    """The reason why not, or ''. What lies there was never committed, or was refused as damaged when this run began."""
    manifest.check_fence(folder.parent, attempt)
    try:
        if folder.exists():
            discard(folder)
        folder.mkdir(parents=True)
    except _UNWRITABLE as error:
        return _reason(error)
    return ""


def _write_part(folder: Path, state: dict[str, torch.Tensor], device: torch.device) -> tuple[FileEntry, ...] | str:
    """This rank's files, read back for their checksums, or why they could not be written."""
    rank = dist.get_rank()
    try:
        save_shards(state, storage_writer=FileSystemWriter(folder, overwrite=False))
    except CheckpointException as error:
        return _reason(next(iter(error.failures.values()))[0])
    try:
        mine = [save_rng(folder, rank, device), *sorted(folder.glob(f"__{rank}_*.distcp"))]
        if rank == 0:
            mine.append(folder / ".metadata")
        return tuple(manifest.entry_of(path) for path in mine)
    except _UNWRITABLE as error:
        return _reason(error)


def _commit_or_discard(
    policy: SavePolicy,
    identity: Identity,
    step: int,
    state: Mapping[str, torch.Tensor],
    extra: Mapping[str, Scalar],
    parts: list[tuple[FileEntry, ...] | str],
) -> Saved | SaveFailed:
    """Commits only what `load` would take: an index that reads with the guard and has exactly the state's tensors."""
    folder = policy.root / manifest.folder_name(step)
    files = tuple(entry for part in parts if not isinstance(part, str) for entry in part)
    reasons = [part for part in parts if isinstance(part, str)]
    if not reasons:
        made = Manifest(step=step, origin=identity.origin, dtype=identity.dtype, extra=extra, files=files, attempt=identity.attempt)
        try:
            check_same(folder, state)
            digest = manifest.commit(folder, made)
            fsync_folder(policy.root)
            manifest.verify(folder, made)
        except (*_UNWRITABLE, CheckpointError) as error:
            reasons.append(_reason(error))
    if reasons:
        _try_discard(folder, identity.attempt)
        return SaveFailed(step=step, reason=reasons[0])
    keep_newest(policy.root, step, policy.keep_last)
    return Saved(step=step, path=str(folder), digest=digest, size_bytes=sum(entry.size_bytes for entry in files))


def _try_discard(folder: Path, attempt: str) -> None:
    """Without a manifest the folder does not count, so failing to remove the rest changes nothing."""
    with contextlib.suppress(OSError, CheckpointError):
        manifest.check_fence(folder.parent, attempt)  # it may be a newer attempt's by now
        discard(folder)


def _reason(error: BaseException) -> str:
    lines = (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
