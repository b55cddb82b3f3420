"""Which checkpoints stay. Called only after a newer one was committed and verified by reading. No torch."""

import contextlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from phalanx.core.errors import CheckpointError
from phalanx.core.spec import BestMode
from phalanx.job.checkpoint import manifest
from phalanx.job.checkpoint.commit import UNWRITABLE, discard
from phalanx.job.checkpoint.folder import Folder, Where


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """last: newest that stay. best: so many with the best `metric` stay too. every: those at a multiple of it stay too; 0 none."""

    last: int = 2
    best: int = 0
    metric: str = ""
    mode: BestMode = "min"
    every: int = 0


def superfluous(root: Where, newest_step: int, keep: Keep, saving: Collection[int] = ()) -> list[Folder]:
    """Checkpoints up to `newest_step` that `keep` does not keep, and folders that never were committed, but those of steps that are
    being saved. Folders after `newest_step` are left alone. Raises as looking into a `Folder` does."""
    upto = [(step, folder) for step, folder in manifest.committed(root) if step <= newest_step]
    kept = {folder for _, folder in upto[: max(keep.last, 1)]}
    kept |= {folder for step, folder in upto if keep.every and step % keep.every == 0}
    kept |= set(_best(upto, keep))
    every = [(step, folder) for step, folder in manifest.step_folders(root) if step <= newest_step]
    return [folder for step, folder in every if folder not in kept and step not in saving]


def remove(folders: Sequence[Where]) -> list[str]:
    """The names removed. What cannot be removed stays and costs only space."""
    removed = []
    for folder in folders:
        with contextlib.suppress(*UNWRITABLE):
            discard(folder)
            removed.append(folder.name)
    return removed


def _best(upto: Sequence[tuple[int, Folder]], keep: Keep) -> list[Folder]:
    """Of equals the newer. One that does not say the metric, or says that it is no number, is no best."""
    if keep.best < 1:
        return []
    sign = 1.0 if keep.mode == "min" else -1.0
    scored = [(sign * value, -step, folder) for step, folder in upto if math.isfinite(value := _metric(folder, keep.metric))]
    return [folder for _, _, folder in sorted(scored)[: keep.best]]


def _metric(folder: Folder, name: str) -> float:
    try:
        return manifest.read(folder)[0].metrics.get(name, math.nan)
    except CheckpointError:
        return math.nan
