"""How a checkpoint comes to exist without a collective: each rank's writer announces its shard, one of them commits. No torch.

A writer puts its shard and then its index into the folder. Whoever commits waits until every rank's index of the same save is
there, checks that together they are what the run wanted to save, and commits the manifest behind the fence.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from blake3 import blake3

from phalanx.core import wire
from phalanx.core.errors import CheckpointError, PhalanxError, SetupError, StoreUnavailable
from phalanx.job.checkpoint import manifest
from phalanx.job.checkpoint.manifest import MANIFEST, IndexFile, Manifest, Origin, Scalar
from phalanx.job.checkpoint.shard_file import SaveKey, ShardIndex, token
from phalanx.job.checkpoint.whole import TensorSpec, check_same, merged, parse_index, spec_of
from phalanx.storage.atomic import write_atomic

UNWRITABLE: Final = (OSError, SetupError, StoreUnavailable)
"""What a write raises when the place, not the program, is at fault."""
RNG: Final = "rng."
"""Names that begin so are a rank's random generators: a gang of another size has others, and no run asks for them by name."""
AGAIN_S: Final = 1.0
"""Between two tries to write where it failed: soon after a disk has room again, and no load on one that has none."""
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The checkpoint of `step` is durable; `digest` is its manifest's SHA-256."""

    step: int
    path: str
    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailed:
    """Nothing of this save is left; older checkpoints are untouched. `reason` is one line."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a save shall hold besides its bytes. tensors: all of the run's, by name; a save that lacks one is not committed."""

    origin: Origin
    dtype: str
    extra: Mapping[str, Scalar]
    tensors: Mapping[str, TensorSpec]
    metrics: Mapping[str, float] = field(default_factory=dict)


def announce(folder: Path, index: ShardIndex) -> None:
    """Says that this rank's shard is durable. Raises SetupError or StoreUnavailable."""
    write_atomic(folder / _index_name(index.key, index.rank), wire.dumps(ShardIndex, index).encode())


def announce_failure(folder: Path, key: SaveKey, rank: int, reason: str) -> None:
    """Says that this rank's shard will not come, so that nobody waits for it. A disk too full even for this says nothing."""
    with contextlib.suppress(*UNWRITABLE):
        write_atomic(folder / _failure_name(key, rank), reason.encode(errors="replace"))


def commit_when_whole(
    folder: Path,
    key: SaveKey,
    content: Content,
    *,
    patience_s: float,
    clock_s: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    given_up: Callable[[], str] = lambda: "",
    troubled: Callable[[str], None] = lambda _: None,
) -> Saved | SaveFailed:
    """Waits for every rank's index, then commits. Called by one process of the gang.

    Within its patience it tries again where the place cannot be written, and says so to `troubled`. given_up: why nobody needs
    this save any more, or ''.

    Raises CheckpointError once a newer attempt or generation holds the job's checkpoints: this one lost its right to write.
    """
    until_s = clock_s() + patience_s
    while missing := _missing(folder, key, content.origin.world_size):
        if reason := _failure(folder, key, missing) or given_up():
            return _failed(folder, key, reason)
        if clock_s() >= until_s:
            return _failed(folder, key, f"no shard of {_ranks(missing)} within {patience_s:g} s")
        pause(_POLL_S)
    while True:
        try:
            return _commit(folder, key, content)
        except UNWRITABLE as error:
            reason = reason_of(error)
        if clock_s() >= until_s:
            return _failed(folder, key, reason)
        troubled(reason)
        pause(AGAIN_S)


def _missing(folder: Path, key: SaveKey, world_size: int) -> list[int]:
    """Ranks whose index is not there, or not to be seen for now."""
    try:
        return [rank for rank in range(world_size) if not (folder / _index_name(key, rank)).exists()]
    except OSError:
        return list(range(world_size))


def _commit(folder: Path, key: SaveKey, content: Content) -> Saved | SaveFailed:
    files, shards = [], []
    try:
        for rank in range(content.origin.world_size):
            name = _index_name(key, rank)
            data = manifest.read_bounded(folder, name)
            index = parse_index(folder, name, data)
            shards.append(index)
            digest = blake3(data).hexdigest()
            files.append(IndexFile(name=name, size_bytes=len(data), blake3=digest, shard_bytes=index.size_bytes))
        saved = {name: spec_of(parts) for name, parts in merged(folder, shards).items() if not name.startswith(RNG)}
        check_same(folder, saved, content.tensors)
    except CheckpointError as error:
        return _failed(folder, key, reason_of(error))
    made = Manifest(
        key=key, origin=content.origin, dtype=content.dtype, extra=content.extra, metrics=content.metrics, indexes=tuple(files)
    )
    digest = manifest.commit(folder, made)
    _clear_others(folder, {MANIFEST, *(one.name for one in files), *(shard.file for shard in shards)})
    return Saved(step=key.step, path=str(folder), digest=digest, size_bytes=made.size_bytes)


def discard_save(folder: Path, key: SaveKey) -> None:
    """Removes what this save left in the folder, and the folder where nothing else is in it. What cannot be removed costs space."""
    for path in [*folder.glob(f"*-{token(key)}.*"), *folder.glob(f".*-{token(key)}.*")]:
        with contextlib.suppress(OSError):
            path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def discard(folder: Path) -> None:
    """Removes a checkpoint folder, its manifest first: a crash half-way leaves one that does not exist. Raises OSError."""
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder)


def reason_of(error: BaseException) -> str:
    lines = (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).splitlines()
    kind = "" if isinstance(error, PhalanxError) else f"{type(error).__name__}: "
    return f"{kind}{lines[0] if lines else 'no message'}"


def _clear_others(folder: Path, keep: set[str]) -> None:
    """What tries of this step left that were given up."""
    for path in folder.iterdir():
        if path.name not in keep:
            with contextlib.suppress(OSError):
                path.unlink()


def _failed(folder: Path, key: SaveKey, reason: str) -> SaveFailed:
    discard_save(folder, key)
    return SaveFailed(step=key.step, reason=reason)


def _failure(folder: Path, key: SaveKey, missing: list[int]) -> str:
    for rank in missing:
        with contextlib.suppress(OSError):
            return f"rank {rank}: {(folder / _failure_name(key, rank)).read_text(errors='replace')}"
    return ""


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:5]))
    return f"rank {shown}" + (f" and {len(ranks) - 5} more" if len(ranks) > 5 else "")


def _index_name(key: SaveKey, rank: int) -> str:
    return f"part-{rank:05d}-{token(key)}.json"


def _failure_name(key: SaveKey, rank: int) -> str:
    return f"failed-{rank:05d}-{token(key)}.txt"
