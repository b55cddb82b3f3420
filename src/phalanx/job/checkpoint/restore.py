"""Finds the newest whole checkpoint and loads it. Rank 0 verifies and decides, every rank loads its part."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_shards

from phalanx.core.errors import CheckpointError
from phalanx.job.checkpoint import manifest
from phalanx.job.checkpoint.index import GuardedReader, check_same
from phalanx.job.checkpoint.manifest import Manifest, Origin
from phalanx.job.checkpoint.rng import load_rng
from phalanx.job.checkpoint.state import set_training_state, training_state
from phalanx.job.checkpoint.together import decided_by_rank_zero


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A whole checkpoint that this run may continue. `skipped` says, newest first, which newer ones are damaged and where."""

    path: str
    digest: str
    manifest: Manifest
    skipped: tuple[str, ...]

    @property
    def name(self) -> str:
        return Path(self.path).name


def find(root: Path, origin: Origin) -> Found | None:
    """The newest whole checkpoint under `root`, the same on every rank; None when none was ever committed.

    Raises CheckpointError when the newest whole one belongs to another run, or when all are damaged: work that was paid for is
    never dropped silently.
    """
    return decided_by_rank_zero(lambda: _choose(root, origin))


def load(found: Found, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Puts the checkpoint's weights, moments and this rank's random generators in place.

    Raises CheckpointError when names, shapes or dtypes differ in the least.
    """
    folder = Path(found.path)
    state = training_state(model, optimizer)
    check_same(folder, state)
    try:
        load_shards(state, storage_reader=GuardedReader(folder))
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        raise CheckpointError(f"checkpoint {folder.name}", str(folder), f"cannot be loaded: {first}") from error
    set_training_state(model, optimizer, state)
    load_rng(folder, dist.get_rank(), device)


def _choose(root: Path, origin: Origin) -> Found | None:
    skipped: list[str] = []
    for _, folder in manifest.committed(root):
        try:
            read, digest = manifest.read(folder)
            manifest.verify(folder, read)
        except CheckpointError as error:
            skipped.append(f"{folder.name}/{error.value} {error.fix}")
            continue
        _check_origin(folder, read, origin)
        return Found(path=str(folder), digest=digest, manifest=read, skipped=tuple(skipped))
    if skipped:
        raise CheckpointError(
            "checkpoints", str(root), f"every one is damaged ({'; '.join(skipped)}); move the folder away to start over"
        )
    return None


def _check_origin(folder: Path, read: Manifest, origin: Origin) -> None:
    pairs = (
        ("config", read.origin.config, origin.config, "the run's hyperparameters"),
        ("data", read.origin.data, origin.data, "the run's data"),
        ("world size", read.origin.world_size, origin.world_size, "this gang"),
        ("layout", dict(read.origin.layout), dict(origin.layout), "this gang's layout"),
    )
    for name, was, now, whose in pairs:
        if was != now:
            fix = f"was made with {was}, {whose} is {now}; use what it was made with, or another job folder"
            raise CheckpointError(f"{name} of checkpoint {folder.name}", was, fix)
