"""Checkpoints as they lie in a folder: what `phalanx checkpoint` shows, and the names that more than one room must know."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

FENCE: Final = "attempt.json"
"""Beside a job's checkpoints: which attempt may commit. Part of them, and gone only with the last of them."""


CHECKPOINTS: Final = "checkpoints"
"""In the job's folder, where a job saves unless its `checkpoint.store` or the policy says otherwise."""
JOBS_FOLDER: Final = "folder"
"""As a `checkpoint.store`: in the job's folder, whatever the policy says."""
STORE_CHARS_MAX: Final = 300
STORE_FORM: Final = (
    "write s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, an absolute folder that every node has, or `folder` for"
    " the job's own; credentials come from the environment"
)
_STORE: Final = re.compile(r"(?:(?:s3a?|gs|az)://[^/@?#\s]+|abfss?://[^/@?#\s]+@[^/@?#\s]+)/[^?#\s]*[^?#\s/]/?")


def is_store(text: str) -> bool:
    """Whether it looks like a place for checkpoints; `storage.places` knows the rules of each."""
    if len(text) > STORE_CHARS_MAX or not text.isprintable():
        return False
    path = PurePosixPath(text.removeprefix("file://"))
    is_folder = path.is_absolute() and ".." not in path.parts and len(path.parts) > 1
    return text == JOBS_FOLDER or is_store_url(text) or is_folder


def is_store_url(text: str) -> bool:
    """Whether it looks like a folder in an object store, without what a URL may hide."""
    return text.isprintable() and _STORE.fullmatch(text) is not None and ".." not in text.split("/")


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
