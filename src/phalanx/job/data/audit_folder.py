"""The audit of a job's folder: its records, its order, and where the data is at hand, every token, or of samples in tars every
checksum, that was delivered."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from phalanx.core.data_audit import DataAudit, Reached
from phalanx.core.errors import DataError, SetupError, StoreUnavailable
from phalanx.core.training_data import CACHE_UNIT_BYTES, DataCache, DataSource, in_store
from phalanx.job.data.cache_place import node_cache
from phalanx.job.data.deliveries import FOLDER, ROW, Fields, Head, content_of, read_deliveries
from phalanx.job.data.draws import Draws
from phalanx.job.data.exactly_once import Contents, audit
from phalanx.job.data.order import Indices
from phalanx.job.data.order_facts import order_from
from phalanx.job.data.sources import Sources, open_sources
from phalanx.job.data.tars.open import SampleData, open_samples

Progress = Callable[[int, int], None]
"""Told how many bytes are looked at, of how many."""

_TOKEN_BYTES: Final = 2
_AT_ONCE: Final = 1024


def audit_folder(
    place: Path, compare: bool = True, progress: Progress | None = None, reached: Sequence[Reached] = (), none: str = ""
) -> DataAudit:
    """place: a job's folder, its folder of checkpoints, or that of the records. compare: read every sample that was delivered again
    and compare it. reached: how far the records have to go. none: why there may be no records. Raises DataError where there are
    none, or damaged ones, or other data than was read."""
    logs = read_deliveries(records_in(place), none)
    newest = max(logs, key=lambda log: (log.head.attempt, log.head.generation)).head
    order = order_from(newest.order)
    contents = _contents(newest) if compare else "not compared: not asked for"
    row_bytes = ROW.itemsize if isinstance(contents, str) else newest.sequence * _TOKEN_BYTES or ROW.itemsize
    return audit(logs, order, contents, progress and (lambda done, total: progress(done * row_bytes, total * row_bytes)), reached)


def records_in(place: Path) -> Path:
    """The folder of the records."""
    for folder in (place, place / FOLDER, place.parent / FOLDER):
        if folder.name == FOLDER and folder.is_dir():
            return folder
    return place


def _contents(head: Head) -> Contents | str:
    """Or why they cannot be compared. What cannot even be opened is damaged in every sample."""
    if head.asked is None:
        return "not compared: where the data lay is not recorded"
    for name, folder in head.asked.paths.items():
        if not in_store(folder) and not Path(folder).is_dir():
            return f"not compared: {name} is not on this machine ({folder})"
    try:
        hashes, contents = _opened(head, head.asked)
    except (SetupError, StoreUnavailable) as error:  # the ranks had the rights to their store, and who asks here may not
        return f"not compared: {error.sentence()}"
    except DataError as error:
        return partial(_raise, error)
    for name, found in hashes.items():
        if found != head.data.get(name):
            fix = f"{head.asked.paths[name]} is not the data that the run has read; put that back, or audit with --no-contents"
            raise DataError(f"data of {name}", found, fix)
    return contents


def _opened(head: Head, asked: DataSource) -> tuple[Mapping[str, str], Contents]:
    """The manifest hash of each source, and what its samples have to be."""
    cache = asked.cache if Path(asked.cache.folder or ".").is_dir() else DataCache()  # of a node, or of this machine
    asked = replace(asked, cache=cache)
    if head.sequence:
        data = open_sources(asked)
        return data.manifests, _Contents(data, head.sequence)
    through = node_cache(cache.folder, cache.limit) if any(in_store(path) for path in asked.paths.values()) else None
    opened = {name: open_samples(path, cache=through) for name, path in asked.paths.items()}
    return {name: one.manifest_hash for name, one in opened.items()}, _SampleContents(opened, head)


def _raise(error: DataError, *_: object) -> NoReturn:
    raise error


class _Contents:
    """What the tokens of samples have to be."""

    def __init__(self, data: Sources, sequence: int) -> None:
        self._data, self._sequence = data, sequence
        self._at_once = _AT_ONCE  # so that memory is bounded
        if data.cache is not None:  # in which all that is gathered at once has to be; samples may lie in a unit each, or two
            self._at_once = max(1, min(_AT_ONCE, data.cache.fair_bytes() // (2 * CACHE_UNIT_BYTES)))

    def __call__(self, source: int, samples: Indices, fields: Fields) -> NDArray[np.uint64]:
        """In the order in which they lie: else each would bring a unit of its own."""
        found = np.empty(len(samples), dtype=np.uint64)
        as_they_lie = np.argsort(samples)
        for first in range(0, len(samples), self._at_once):
            rows = as_they_lie[first : first + self._at_once]
            draws = Draws(np.full(len(rows), source), np.zeros_like(rows), samples[rows])
            numbers = self._data.numbers(draws, "train", self._sequence)
            found[rows] = content_of(self._data.gather("train", numbers, self._sequence))
        return found


class _SampleContents:
    """What samples in tars have to be. Their indices say it, so nothing of the tars is read."""

    def __init__(self, opened: Mapping[str, SampleData], head: Head) -> None:
        self._data = [opened[name] for name in order_from(head.order).names]

    def __call__(self, source: int, samples: Indices, fields: Fields) -> NDArray[np.uint64]:
        """In the order in which they lie, so that few indices are in memory."""
        found, as_they_lie = np.empty(len(samples), dtype=np.uint64), np.argsort(samples)
        for first in range(0, len(samples), _AT_ONCE):
            rows = as_they_lie[first : first + _AT_ONCE]
            found[rows] = self._data[source].contents(samples[rows].tolist(), fields)
        return found
