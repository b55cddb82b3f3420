"""Writes one checkpoint: every rank its own shard, then rank 0 the manifest. Synchronous; a collective of all ranks.

The files need none (see commit): here the ranks wait for each other so that all give the same answer.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from phalanx.core.errors import CheckpointError
from phalanx.job.checkpoint import commit, manifest, shard_file
from phalanx.job.checkpoint.commit import UNWRITABLE, Content, Saved, SaveFailed, reason_of
from phalanx.job.checkpoint.fence import Holder
from phalanx.job.checkpoint.folder import Folder, Where, folder_at
from phalanx.job.checkpoint.manifest import Origin, Scalar
from phalanx.job.checkpoint.owners import host_bytes, local_parts, specs_of
from phalanx.job.checkpoint.retention import Keep, remove, superfluous
from phalanx.job.checkpoint.rng import rng_parts
from phalanx.job.checkpoint.shard_file import SaveKey, ShardIndex
from phalanx.job.checkpoint.together import decided_by_rank_zero, told_by_all
from phalanx.job.checkpoint.whole import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePolicy:
    """Where and when to save, every `every` steps (0: never) and at the last, and what stays. root: a folder, or one of an object
    store (folder.folder_at)."""

    root: Where
    every: int
    keep: Keep = field(default_factory=Keep)

    def due(self, step: int, total_steps: int) -> bool:
        return step == total_steps or (self.every > 0 and step % self.every == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What of a checkpoint is the same at every step of a run. `attempt`: its id, '' outside Phalanx. mesh: of the whole gang,
    needed where some tensors lie on a part of its axes only; in a pipeline of the ranks with the same stages. tensors: of the whole
    run, where ranks do not have the same ones (a pipeline's stages); None: each has a part of every one."""

    origin: Origin
    dtype: str
    device: torch.device
    attempt: str = ""
    generation: int = 0
    mesh: DeviceMesh | None = None
    tensors: Mapping[str, TensorSpec] | None = None

    @property
    def holder(self) -> Holder:
        return Holder(attempt=self.attempt, generation=self.generation)


def save(
    policy: SavePolicy,
    identity: Identity,
    step: int,
    state: Mapping[str, torch.Tensor],
    extra: Mapping[str, Scalar],
    metrics: Mapping[str, float] | None = None,
) -> Saved | SaveFailed:
    """Saves and then applies the policy's retention. The same answer on every rank.

    Raises CheckpointError once a newer attempt of the job holds its checkpoints: this one lost its right to write.
    """
    root = folder_at(policy.root)
    folder = root / manifest.folder_name(step)
    begun = decided_by_rank_zero(lambda: _begin(folder, identity, step))
    if isinstance(begun, str):
        return SaveFailed(step=step, reason=begun)
    key = begun
    mine = _write(folder, key, state, identity)
    reasons = [told for told in told_by_all(mine if isinstance(mine, str) else "") if told]
    content = Content(
        origin=identity.origin, dtype=identity.dtype, extra=extra, metrics=metrics or {},
        tensors=identity.tensors or specs_of(state),
    )  # fmt: skip
    saved = decided_by_rank_zero(lambda: _commit(folder, key, content, reasons))
    if isinstance(saved, Saved) and not isinstance(mine, str):
        return _retain(policy, identity.holder, folder, mine, saved)
    return saved


def _begin(folder: Folder, identity: Identity, step: int) -> SaveKey | str:
    """The key of this save, or why there will be none."""
    try:
        folder.prepare()
        manifest.check_fence(folder.parent, identity.holder)
    except UNWRITABLE as error:
        return reason_of(error)
    return SaveKey(step=step, save=secrets.token_hex(4), attempt=identity.attempt, generation=identity.generation)


def _write(folder: Folder, key: SaveKey, state: Mapping[str, torch.Tensor], identity: Identity) -> ShardIndex | str:
    """This rank's index, or why it could not be written."""
    rank = dist.get_rank()
    parts = [(part, host_bytes(tensor)) for part, tensor in (*local_parts(state, identity.mesh), *rng_parts(rank, identity.device))]
    try:
        index = shard_file.write(folder, parts, key=key, rank=rank)
        commit.announce(folder, index)
    except UNWRITABLE as error:
        return reason_of(error)
    return index


def _commit(folder: Folder, key: SaveKey, content: Content, reasons: list[str]) -> Saved | SaveFailed:
    """All that will ever be there is there."""
    if not reasons:
        return commit.commit_when_whole(folder, key, content, patience_s=0)
    commit.discard_save(folder, key)
    return SaveFailed(step=key.step, reason=reasons[0])


def _retain(policy: SavePolicy, holder: Holder, folder: Folder, mine: ShardIndex, saved: Saved) -> Saved | SaveFailed:
    """Older ones go only after every rank has read back what it wrote; without any to go nobody reads."""
    doomed = decided_by_rank_zero(lambda: superfluous(policy.root, saved.step, policy.keep))
    if not doomed:
        return saved
    reasons = [told for told in told_by_all(_read_back(folder, mine)) if told]
    return decided_by_rank_zero(lambda: _remove_or_withdraw(folder, holder, doomed, reasons, saved))


def _read_back(folder: Folder, index: ShardIndex) -> str:
    try:
        shard_file.verify(folder, index)
    except CheckpointError as error:
        return reason_of(error)
    return ""


def _remove_or_withdraw(
    folder: Folder, holder: Holder, doomed: list[Folder], reasons: list[str], saved: Saved
) -> Saved | SaveFailed:
    """What looks left over may by now be a newer attempt's, which is saving that step: the fence is looked at once more."""
    manifest.check_fence(folder.parent, holder)
    remove([folder] if reasons else doomed)
    return SaveFailed(step=saved.step, reason=f"read back it was damaged: {reasons[0]}") if reasons else saved
