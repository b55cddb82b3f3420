"""Checkpoints as they lie in a folder: what `phalanx checkpoint` shows, and the file names that more than one room must know."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

FENCE: Final = "attempt.json"
"""Beside a job's checkpoints: which attempt may commit. Part of them, and gone only with the last of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint:
    """One folder of a checkpoint.

    problem: '' when nothing was found wrong, else the damaged file and, where one is known, the part of it. committed: it has a
    manifest; without one there is no checkpoint, and that is no damage. verified: every byte was
    read and matched; without it only manifest, indexes and sizes were looked at. ranks, tensors, size_bytes, metrics: 0 and empty
    where the checkpoint cannot be opened.
    """

    name: str
    path: str
    step: int
    committed: bool
    attempt: str = ""
    ranks: int = 0
    tensors: int = 0
    size_bytes: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    verified: bool = False
    problem: str = ""
