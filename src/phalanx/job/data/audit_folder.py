"""The audit of a job's folder: its records, its order, and where the data is at hand, every token that was delivered."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.data_audit import DataAudit
from phalanx.core.errors import DataError
from phalanx.job.data.deliveries import FOLDER, ROW, Head, content_of, read_deliveries
from phalanx.job.data.exactly_once import audit
from phalanx.job.data.open import TokenData, open_data
from phalanx.job.data.order import Indices
from phalanx.job.data.order_facts import order_from

Progress = Callable[[int, int], None]
"""Told how many bytes are looked at, of how many."""

_TOKEN_BYTES: Final = 2
_AT_ONCE: Final = 1024


def audit_folder(place: Path, compare: bool = True, progress: Progress | None = None) -> DataAudit:
    """place: a job's folder, its folder of checkpoints, or that of the records. compare: read every sample that was delivered again
    and compare it. Raises DataError where there are no records, or damaged ones, or other data than was read."""
    logs = read_deliveries(_records(place))
    newest = max(logs, key=lambda log: (log.head.attempt, log.head.generation)).head
    order = order_from(newest.order)
    contents = _contents(newest, order.names) if compare else "not compared: not asked for"
    row_bytes = ROW.itemsize if isinstance(contents, str) else newest.sequence * _TOKEN_BYTES
    return audit(logs, order, contents, progress and (lambda done, total: progress(done * row_bytes, total * row_bytes)))


def _records(place: Path) -> Path:
    for folder in (place, place / FOLDER, place.parent / FOLDER):
        if folder.name == FOLDER and folder.is_dir():
            return folder
    return place


def _contents(head: Head, names: Sequence[str]) -> "_Contents | str":
    """Or why they cannot be compared."""
    opened: dict[str, TokenData] = {}
    for name in names:
        folder = head.folders.get(name, "")
        if not folder or not Path(folder).is_dir():
            return f"not compared: {name} is not on this machine ({folder or 'its folder is not recorded'})"
        opened[name] = _same(name, Path(folder), head)
    return _Contents(opened, names, head.sequence)


def _same(name: str, folder: Path, head: Head) -> TokenData:
    data = open_data(folder)
    if data.manifest_hash != head.data.get(name):
        fix = f"{folder} is not the data that the run has read; put that back, or audit without comparing contents"
        raise DataError(f"data of {name}", data.manifest_hash, fix)
    return data


class _Contents:
    """What the tokens of samples have to be."""

    def __init__(self, opened: Mapping[str, TokenData], names: Sequence[str], sequence: int) -> None:
        self._opened, self._names, self._sequence = opened, names, sequence

    def __call__(self, source: int, samples: Indices) -> NDArray[np.uint64]:
        found = np.empty(len(samples), dtype=np.uint64)
        for first in range(0, len(samples), _AT_ONCE):  # so that memory is bounded
            part = samples[first : first + _AT_ONCE]
            found[first : first + _AT_ONCE] = content_of(self._opened[self._names[source]].gather("train", part, self._sequence))
        return found
