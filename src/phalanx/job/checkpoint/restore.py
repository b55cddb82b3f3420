"""Finds the newest whole checkpoint and loads it, onto whatever gang this is. Every rank verifies what it reads while it reads."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from phalanx.core.errors import Bug, CheckpointError, PhalanxError, StoreUnavailable
from phalanx.job.checkpoint import manifest
from phalanx.job.checkpoint.commit import RNG, backoff_s, reason_of
from phalanx.job.checkpoint.folder import Folder, Where, folder_at
from phalanx.job.checkpoint.load_plan import BoxPlanner, boxes_of
from phalanx.job.checkpoint.manifest import Manifest, Origin
from phalanx.job.checkpoint.owners import specs_of
from phalanx.job.checkpoint.reader import PartReader, read_whole
from phalanx.job.checkpoint.rng import rng_name, set_rng
from phalanx.job.checkpoint.shard_file import Damaged
from phalanx.job.checkpoint.state import set_training_state, training_state
from phalanx.job.checkpoint.together import decided_by_rank_zero, told_by_all
from phalanx.job.checkpoint.whole import Checkpoint, TensorSpec, check_same, open_checkpoint, spec_of

_log: Final = logging.getLogger(__name__)
T = TypeVar("T")
_KINDS: Final = ("cpu", "cuda")

ANY_DATA: Final = ""
"""Of an origin that is looked for: whether its data may go on is judged by who looks, such as by a data cursor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A checkpoint that this run may continue. path: a URL in a store. skipped: which newer ones are damaged and where, newest
    first."""

    path: str
    digest: str
    manifest: Manifest
    skipped: tuple[str, ...]

    @property
    def name(self) -> str:
        return folder_at(self.path).name


@dataclass(frozen=True, slots=True)
class Patience:
    """seconds: for how long a store that is away is asked again. said: told why, once an act, when it has to be."""

    seconds: float
    said: Callable[[str], None]


AT_ONCE: Final = Patience(0.0, lambda _: None)


def find(root: Where, origin: Origin, patience: Patience = AT_ONCE) -> Found | None:
    """The newest checkpoint under `root` whose indexes and sizes are whole, the same on every rank; None when none was ever
    committed. Its tensors are verified when they are read, by `load`. patience: with a store that is away.

    Raises CheckpointError when that one belongs to another run, when one is of another version, or when all are damaged: work that
    was paid for is never dropped silently. Raises StoreUnavailable when the store stays away, SetupError when it refuses.
    """
    return decided_by_rank_zero(lambda: patiently(lambda: _choose(root, origin, None, ()), patience))


def load(
    found: Found,
    origin: Origin,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    patience: Patience = AT_ONCE,
    tensors: Mapping[str, TensorSpec] | None = None,
) -> Found:
    """Puts a checkpoint's weights, moments and random generators in place; a collective of all ranks. What was loaded: `found`, or
    the one before it when a rank meets damage in it, and so on. tensors: see save.Identity.

    Raises CheckpointError when names, shapes or dtypes differ in the least, or when all are damaged; StoreUnavailable when a store
    stays away for longer than `patience`.
    """
    state = training_state(model, optimizer)
    found = load_tensors(found, origin, state, device, patience, tensors)
    set_training_state(model, optimizer, state)
    return found


def load_tensors(
    found: Found,
    origin: Origin,
    state: dict[str, torch.Tensor],
    device: torch.device,
    patience: Patience = AT_ONCE,
    tensors: Mapping[str, TensorSpec] | None = None,
    also: Callable[[Checkpoint], None] | None = None,
) -> Found:
    """As `load`, for whatever tensors a checkpoint holds: it fills these, sharded as they are.

    also: what else this rank reads of a checkpoint, with the same patience: damage that one rank meets there is told to all. It is
    called again for each checkpoint that is tried."""
    while True:
        loaded = _loaded(lambda at=found: _fill(at, state, device, tensors, also), found, patience)  # type: ignore[misc]  # bound
        if loaded is None:
            return found
        place, skipped = folder_at(found.path), (*found.skipped, loaded)
        found = decided_by_rank_zero(lambda at=place, but=skipped: patiently(lambda: _before(at, origin, but), patience))  # type: ignore[misc]  # bound


def load_state(checkpoint: Checkpoint, state: dict[str, torch.Tensor], tensors: Mapping[str, TensorSpec] | None = None) -> None:
    """Fills this rank's tensors, sharded as they are, without a collective. tensors: see save.Identity.

    Raises CheckpointError for a difference in names, types or shapes before anything is changed, and for a damaged part."""
    saved = {name: spec_of(parts) for name, parts in checkpoint.tensors.items() if not name.startswith(RNG)}
    own = specs_of(state)
    check_same(checkpoint.folder, saved, own if tensors is None else {**tensors, **own})
    reader = PartReader(checkpoint)
    planner = BoxPlanner(state, boxes_of(state), reader.read_metadata())
    reader.read_data(planner.finish_plan(planner.create_local_plan()), planner)


def patiently(act: Callable[[], T], patience: Patience, pause: Callable[[float], None] = time.sleep) -> T:
    """What `act` answers, asked again while a store is away. Raises StoreUnavailable when it stays away that long."""
    told, until_s = False, time.monotonic() + patience.seconds
    for pause_s in backoff_s():
        try:
            return act()
        except StoreUnavailable as error:
            if time.monotonic() >= until_s:
                raise
            if not told:
                patience.said(reason_of(error))
            told = True
        pause(pause_s)
    raise Bug("pauses end")


def _loaded(fill: Callable[[], None], found: Found, patience: Patience) -> str | None:
    """None when every rank has its part; else where the damage is that the first of the ranks met."""
    mine = _told(lambda: patiently(fill, patience))
    told = [one for one in told_by_all(mine) if one is not None]
    for one in told:
        if not isinstance(one, Damaged):
            raise one
    damages = [one for one in told if isinstance(one, Damaged)]
    return f"{found.name}/{damages[0].value} {damages[0].fix}" if damages else None


def _told(act: Callable[[], None]) -> PhalanxError | None:
    try:
        act()
    except PhalanxError as error:
        return error
    return None


def _fill(
    found: Found,
    state: dict[str, torch.Tensor],
    device: torch.device,
    tensors: Mapping[str, TensorSpec] | None,
    also: Callable[[Checkpoint], None] | None,
) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    checkpoint = open_checkpoint(folder_at(found.path))
    if checkpoint.digest != found.digest:
        raise CheckpointError(f"checkpoint {found.name}", manifest.MANIFEST, f"is not what rank 0 read: rank {rank} sees another")
    load_state(checkpoint, state, tensors)
    same = world_size == found.manifest.origin.world_size
    saved = read_whole(checkpoint, {kind: rng_name(rank, kind) for kind in _KINDS} if same else {})
    set_rng(saved, found.digest, rank, world_size, device)
    if also is not None:
        also(checkpoint)


def _choose(root: Where, origin: Origin, before: int | None, skipped: tuple[str, ...]) -> Found | None:
    """Of those before a step, if any."""
    for step, folder in manifest.committed(root):
        if before is not None and step >= before:
            continue
        try:
            checkpoint = open_checkpoint(folder)
        except Damaged as error:
            skipped = (*skipped, f"{folder.name}/{error.value} {error.fix}")
            continue
        _check_origin(folder, checkpoint.manifest, origin)
        return Found(path=str(folder), digest=checkpoint.digest, manifest=checkpoint.manifest, skipped=skipped)
    if skipped:
        fix = f"every one is damaged ({'; '.join(skipped)}); move the folder away to start over"
        raise CheckpointError("checkpoints", str(root), fix)
    return None


def _before(place: Folder, origin: Origin, skipped: tuple[str, ...]) -> Found:
    found = _choose(place.parent, origin, manifest.step_of(place), skipped)
    if found is None:
        raise Bug("something was skipped and nothing is damaged")
    return found


def _check_origin(folder: Folder, read: Manifest, origin: Origin) -> None:
    pairs = (
        ("config", read.origin.config, origin.config, "other hyperparameters: those of this run have"),
        ("data", read.origin.data, origin.data, "other data: that of this run has"),
    )
    for name, was, now, what in pairs:
        if was != now and not (name == "data" and origin.data == ANY_DATA):
            fix = f"the checkpoint was made with {what} the hash {now}; use what it was made with, or another job folder"
            raise CheckpointError(f"{name} of checkpoint {folder.name}", was, fix)
