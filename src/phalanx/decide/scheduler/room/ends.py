"""When devices come free, as far as limits tell: running gangs, what was promised, and what this decision has started."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.devices import WHOLE, Placement
from phalanx.decide.scheduler.snapshot import JobFacts, RunningJob, Shape
from phalanx.decide.scheduler.where.fleet import CORES_SLACK, Counts, Fleet, Rows

Times = NDArray[np.int64]
Amounts = NDArray[np.float64]

NEVER: Final = 2**62
"""Later than any time: what a gang without a limit holds."""

SOON_MS: Final = 60_000
"""A gang that was asked to end makes a checkpoint and lets go within about so long."""


def end_ms(gang: RunningJob, now_ms: int) -> int:
    """When the gang lets go of its devices at the latest; one that is past its limit, or was asked to end, does so soon."""
    limit_ms = gang.facts.limit_ms
    by_limit_ms = NEVER if limit_ms is None else max(gang.placed_ms + limit_ms, now_ms + SOON_MS)
    return min(by_limit_ms, now_ms + SOON_MS) if gang.stopping else by_limit_ms


class Ends:
    """Releases: so many devices of a type, cores and bytes come free on a row at a time. A device that shares hold is whole again
    when the last of them ends."""

    def __init__(self, running: Iterable[RunningJob], fleet: Fleet, now_ms: int) -> None:
        self._fleet = fleet
        self._now_ms = now_ms
        self._entries: list[tuple[int, int, int, int, float, int]] = []
        self._sorted: tuple[NDArray[np.int64], Amounts] | None = None
        self._number = {kind: number for number, kind in enumerate(fleet.ground.kinds)}
        shared: dict[tuple[int, int, int], int] = defaultdict(int)
        for gang in running:
            self._release(gang.facts.shape, gang.placement, end_ms(gang, now_ms), shared)
        for (row, _, kind), last_ms in shared.items():
            self._entries.append((row, last_ms, 1, kind, 0.0, 0))

    def starts(self, job: JobFacts, placement: Placement, after_ms: int = 0) -> None:
        """The job starts on it now, or a little later: it is free again when the job's limit is over."""
        self._sorted = None
        ends_ms = NEVER if job.limit_ms is None else self._now_ms + after_ms + job.limit_ms
        self._release(job.shape, placement, ends_ms, {})

    def ends(self, gang: RunningJob) -> None:
        """The gang is asked to end now."""
        self._sorted = None
        was_ms, soon_ms = end_ms(gang, self._now_ms), self._now_ms + SOON_MS
        for row, at_ms, devices, kind, cpus, memory in self._parts(gang.facts.shape, gang.placement, was_ms):
            self._entries.append((row, at_ms, -devices, kind, -cpus, -memory))
            self._entries.append((row, min(at_ms, soon_ms), devices, kind, cpus, memory))

    def claimed(self, placement: Placement, holders: Iterable[RunningJob]) -> None:
        """These devices, which gangs have yet to let go of, come free for nobody else then."""
        self._sorted = None
        wanted = {part.node: set(part.devices) for part in placement.slices}
        soon_ms = self._now_ms + SOON_MS
        for gang in holders:
            for part in gang.placement.slices:
                taken = wanted.get(part.node, set()) & set(part.devices)
                row = self._fleet.ground.row.get(part.node)
                if taken and row is not None and part.milli == WHOLE:
                    self._entries.append((row, soon_ms, -len(taken), self._kind(row, min(taken)), 0.0, 0))

    def ready(self, shape: Shape, kind: str, free: Counts, spare: tuple[Amounts, NDArray[np.int64]]) -> Times:
        """The time from which each row holds one node's share: 0 where it does now, NEVER where no limit says so. free: devices
        of the type now; spare: cores and bytes now."""
        whole, cores = self._columns()
        row, at_ms = whole[0], whole[1]
        num_rows = len(free)
        starts = np.searchsorted(row, np.arange(num_rows + 1))
        count = shape.request.count
        devices = np.where(whole[3] == self._number[kind], whole[2], 0).astype(np.float64)
        enough = _had(free.astype(np.float64), devices, row, starts) >= count
        now = free >= count
        if shape.cpus > 0:
            enough &= _had(spare[0], cores, row, starts) + CORES_SLACK >= shape.cpus
            now &= spare[0] + CORES_SLACK >= shape.cpus
        if shape.memory_bytes > 0:
            enough &= _had(spare[1].astype(np.float64), whole[4].astype(np.float64), row, starts) >= shape.memory_bytes
            now &= spare[1] >= shape.memory_bytes
        first = starts[:-1] + np.bincount(row[~enough], minlength=num_rows)
        padded = np.append(at_ms, NEVER)
        later = np.where(first < starts[1:], padded[np.minimum(first, len(at_ms))], NEVER)
        return np.where(now, 0, later)

    def by(self, when_ms: int, kind: str) -> Counts:
        """Devices of the type that come free on each row until then."""
        whole, _ = self._columns()
        due = (whole[1] <= when_ms) & (whole[3] == self._number[kind])
        freed = np.bincount(whole[0][due], weights=whole[2][due], minlength=len(self._fleet.ground.nodes))
        return freed.astype(np.int32)

    def room_by(self, when_ms: int) -> tuple[Amounts, NDArray[np.int64]]:
        """Cores and bytes that come free on each row until then."""
        whole, cores = self._columns()
        due, num_rows = whole[1] <= when_ms, len(self._fleet.ground.nodes)
        freed = np.bincount(whole[0][due], weights=cores[due], minlength=num_rows).astype(np.float64)
        return freed, np.bincount(whole[0][due], weights=whole[4][due], minlength=num_rows).astype(np.int64)

    def _columns(self) -> tuple[NDArray[np.int64], Amounts]:
        """Rows, times, devices, types, bytes; and cores: by row, time, and what is taken before what is given."""
        if self._sorted is None:
            whole = np.array([(entry[0], entry[1], entry[2], entry[3], entry[5]) for entry in self._entries], np.int64)
            whole = whole.reshape(-1, 5).T
            order = np.lexsort((whole[2], whole[1], whole[0]))
            self._sorted = whole[:, order], np.array([entry[4] for entry in self._entries], np.float64)[order]
        return self._sorted

    def _release(self, shape: Shape, placement: Placement, at_ms: int, shared: dict[tuple[int, int, int], int]) -> None:
        if placement.slices and placement.slices[0].milli == WHOLE:
            self._entries.extend(self._parts(shape, placement, at_ms))
            return
        for row, _, _, kind, cpus, memory in self._parts(shape, placement, at_ms):
            self._entries.append((row, at_ms, 0, kind, cpus, memory))
        for part in placement.slices:
            found = self._fleet.ground.row.get(part.node)
            if found is not None:
                for index in part.devices:
                    at = (found, index, self._kind(found, index))
                    shared[at] = max(shared.get(at, 0), at_ms)

    def _parts(self, shape: Shape, placement: Placement, at_ms: int) -> Iterable[tuple[int, int, int, int, float, int]]:
        rows, kind = self._fleet.ground.row, -1
        for part in placement.slices:
            row = rows.get(part.node)
            if row is not None and part.devices:
                kind = self._kind(row, part.devices[0]) if kind < 0 else kind
                yield row, at_ms, len(part.devices), kind, shape.cpus, shape.memory_bytes

    def _kind(self, row: int, index: int) -> int:
        return self._number.get(self._fleet.ground.types[row].get(index, ""), -1)


def _had(now: Amounts, given: Amounts, row: Rows, starts: Rows) -> Amounts:
    """What each entry's row has right after it."""
    before = np.concatenate([[0.0], np.cumsum(given)])
    return np.asarray(now[row] + before[1:] - before[starts[row]])
