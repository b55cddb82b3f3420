"""How a checkpoint comes to exist without a collective: each rank's writer announces its shard, one of them commits. No torch.

A writer puts its shard and then its index into the folder. Whoever commits waits until every rank's index of the same save is
there, checks that together they are what the run wanted to save, and commits the manifest behind the fence.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from blake3 import blake3

from phalanx.core import wire
from phalanx.core.errors import Bug, CheckpointError, PhalanxError, SetupError, StoreUnavailable
from phalanx.job.checkpoint import manifest
from phalanx.job.checkpoint.folder import Folder, Unreadable, Where, folder_at
from phalanx.job.checkpoint.manifest import MANIFEST, IndexFile, Manifest, Origin, Scalar
from phalanx.job.checkpoint.shard_file import SaveKey, ShardIndex, token
from phalanx.job.checkpoint.whole import TensorSpec, check_same, merged, parse_index, spec_of

UNWRITABLE: Final = (OSError, SetupError, StoreUnavailable)
"""What a write raises when the place, not the program, is at fault."""
RNG: Final = "rng."
"""Names that begin so are a rank's random generators: a gang of another size has others, and no run asks for them by name."""
_REASON_BYTES_MAX: Final = 4096
AGAIN_S: Final = 1.0
AGAIN_S_MAX: Final = 10.0
"""Between two tries where it failed: soon after a disk has room or a store is back, and no load on one that is not."""


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


def announce(folder: Where, index: ShardIndex) -> None:
    """Says that this rank's shard is durable. Raises SetupError or StoreUnavailable."""
    folder_at(folder).write(_index_name(index.key, index.rank), wire.dumps(ShardIndex, index).encode())


def announce_failure(folder: Where, key: SaveKey, rank: int, reason: str) -> None:
    """Says that this rank's shard will not come, so that nobody waits for it. A disk too full even for this says nothing."""
    with contextlib.suppress(*UNWRITABLE):
        folder_at(folder).write(_failure_name(key, rank), reason.encode(errors="replace"))


def commit_when_whole(
    where: Where,
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
    folder, until_s = folder_at(where), clock_s() + patience_s
    while missing := _missing(folder, key, content.origin.world_size):
        if reason := _failure(folder, key, missing) or given_up():
            if not _missing(folder, key, content.origin.world_size):  # the last came while we asked
                break
            return _failed(folder, key, reason)
        if clock_s() >= until_s:
            return _failed(folder, key, f"no shard of {_ranks(missing)} within {patience_s:g} s")
        pause(folder.poll_s)
    for pause_s in backoff_s():
        try:
            return _commit(folder, key, content)
        except UNWRITABLE as error:
            reason = reason_of(error)
        over = given_up()
        if over or clock_s() >= until_s:
            return _failed(folder, key, f"{over}: {reason}" if over else reason)
        troubled(reason)
        pause(pause_s)
    raise Bug("pauses end")


def backoff_s() -> Iterator[float]:
    """Pauses between tries, without end."""
    pause_s = AGAIN_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, AGAIN_S_MAX)


def _missing(folder: Folder, key: SaveKey, world_size: int) -> list[int]:
    """Ranks whose index is not there, or not to be seen for now."""
    try:
        there = set(folder.names())
    except UNWRITABLE:
        there = set()
    return [rank for rank in range(world_size) if _index_name(key, rank) not in there]


def _commit(folder: Folder, key: SaveKey, content: Content) -> Saved | SaveFailed:
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
    _clear_others(folder, {MANIFEST, *(one.name for one in files), *(shard.file for shard in shards)}, made)
    return Saved(step=key.step, path=str(folder), digest=digest, size_bytes=made.size_bytes)


def discard_save(where: Where, key: SaveKey) -> None:
    """Removes what this save left in the folder, and the folder where nothing else is in it. What cannot be removed costs space."""
    folder = folder_at(where)
    _remove(folder, lambda name: _is_of(key, name))
    folder.remove_if_empty()


def discard(where: Where) -> None:
    """Removes a checkpoint folder, its manifest first: a crash half-way leaves one that does not exist. Raises SetupError or
    StoreUnavailable."""
    folder = folder_at(where)
    folder.remove(MANIFEST)
    folder.remove_all()


def reason_of(error: BaseException) -> str:
    lines = (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).splitlines()
    kind = "" if isinstance(error, PhalanxError) else f"{type(error).__name__}: "
    return f"{kind}{lines[0] if lines else 'no message'}"


def _clear_others(folder: Folder, keep: set[str], made: Manifest) -> None:
    """What tries of this step left that were given up. A newer holder may have the folder by now: its files came after the names
    were listed or after its claim, and what the manifest that is there names is never removed."""
    with contextlib.suppress(CheckpointError, *UNWRITABLE):
        others = [name for name in folder.names() if name not in keep]
        manifest.check_fence(folder.parent, made.holder)
        there, _ = manifest.read(folder)
        for name in others:
            if not _is_of(there.key, name):
                folder.remove(name)


def _remove(folder: Folder, which: Callable[[str], bool]) -> None:
    with contextlib.suppress(*UNWRITABLE):
        for name in [name for name in folder.names() if which(name)]:
            folder.remove(name)


def _is_of(key: SaveKey, name: str) -> bool:
    return f"-{token(key)}." in name


def _failed(folder: Folder, key: SaveKey, reason: str) -> SaveFailed:
    discard_save(folder, key)
    return SaveFailed(step=key.step, reason=reason)


def _failure(folder: Folder, key: SaveKey, missing: list[int]) -> str:
    with contextlib.suppress(*UNWRITABLE, Unreadable):
        there = set(folder.names())
        for rank in missing:
            if (name := _failure_name(key, rank)) in there:
                return f"rank {rank}: {folder.read(name, _REASON_BYTES_MAX).decode(errors='replace')}"
    return ""


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:5]))
    return f"rank {shown}" + (f" and {len(ranks) - 5} more" if len(ranks) > 5 else "")


def _index_name(key: SaveKey, rank: int) -> str:
    return f"part-{rank:05d}-{token(key)}.json"


def _failure_name(key: SaveKey, rank: int) -> str:
    return f"failed-{rank:05d}-{token(key)}.txt"
