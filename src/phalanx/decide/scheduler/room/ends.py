"""When devices come free, as far as limits tell: running gangs, what was promised, and what this decision has started."""

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.devices import WHOLE, Placement
from phalanx.core.ids import JobId
from phalanx.decide.scheduler.room.gangs import UNLIMITED, Gangs
from phalanx.decide.scheduler.snapshot import JobFacts, RunningJob, Shape
from phalanx.decide.scheduler.where.fleet import CORES_SLACK, Counts, Fleet, Rows

Times = NDArray[np.int64]
Amounts = NDArray[np.float64]

_Entry = tuple[int, int, int, int, int]
"""Row, time, devices, type, bytes."""

NEVER: Final = UNLIMITED
"""Later than any time: what a gang without a limit holds."""

_CORES: Final = " cores"
_MEMORY: Final = " memory"
"""No types of devices: those have no spaces in front."""

SOON_MS: Final = 60_000
"""A gang that was asked to end makes a checkpoint and lets go within about so long."""


def end_ms(gang: RunningJob, now_ms: int) -> int:
    """When the gang lets go of its devices at the latest; one that is past its limit, or was asked to end, does so soon."""
    limit_ms = gang.facts.limit_ms
    by_limit_ms = NEVER if limit_ms is None else max(gang.placed_ms + limit_ms, now_ms + SOON_MS)
    return min(by_limit_ms, now_ms + SOON_MS) if gang.stopping else by_limit_ms


def all_end_ms(gangs: Gangs, now_ms: int) -> Times:
    """The same of each."""
    soon_ms = now_ms + SOON_MS
    is_endless = gangs.limit_ms == UNLIMITED
    by_limit_ms = np.where(is_endless, NEVER, np.maximum(np.where(is_endless, 0, gangs.placed_ms + gangs.limit_ms), soon_ms))
    return np.where(gangs.stopping, np.minimum(by_limit_ms, soon_ms), by_limit_ms)


class Ends:
    """Releases: so many devices of a type, cores and bytes come free on a row at a time. A device that shares hold is whole again
    when the last of them ends."""

    def __init__(self, gangs: Gangs, fleet: Fleet, now_ms: int) -> None:
        self._fleet = fleet
        self._now_ms = now_ms
        self._entries: list[_Entry] = []
        self._cores: list[float] = []
        self._sorted: tuple[NDArray[np.int64], Amounts, Rows] | None = None
        self._known: dict[str, Amounts] = {}
        self._number = {kind: number for number, kind in enumerate(fleet.ground.kinds)}
        self._sharing: dict[tuple[int, int], dict[JobId, int]] = {}
        """By row and device, when each job that holds some of it ends."""
        ends_ms, slices, self._place = all_end_ms(gangs, now_ms), gangs.slices, gangs.place
        devices = np.where(gangs.shares[slices.gang], 0, slices.devices)
        held = slices.devices > 0
        self._gang = slices.gang[held]
        self._gangs_whole = np.array([slices.row, ends_ms[slices.gang], devices, slices.kind, slices.memory])[:, held]
        self._gangs_cores = slices.cpus[held]
        for number in np.flatnonzero(gangs.shares).tolist():
            self._shares(gangs.jobs[number], gangs.all[number].placement, int(ends_ms[number]))

    def starts(self, job: JobFacts, placement: Placement, after_ms: int = 0) -> None:
        """The job starts on it now, or a little later: it is free again when the job's limit is over."""
        self._sorted = None
        ends_ms = NEVER if job.limit_ms is None else self._now_ms + after_ms + job.limit_ms
        is_share = any(part.milli < WHOLE for part in placement.slices)
        for row, devices, kind in self._parts(placement):
            self._enter((row, ends_ms, 0 if is_share else devices, kind, job.shape.memory_bytes), job.shape.cpus)
        if is_share:
            self._shares(job.job, placement, ends_ms)

    def ends(self, gang: RunningJob) -> None:
        """The gang is asked to end now."""
        self._sorted = None
        soon_ms = min(end_ms(gang, self._now_ms), self._now_ms + SOON_MS)
        self._gangs_whole[1, self._gang == self._place[gang.facts.job]] = soon_ms
        self._shares(gang.facts.job, gang.placement, soon_ms)

    def claimed(self, placement: Placement, holders: Iterable[RunningJob]) -> None:
        """These devices, which gangs have yet to let go of, come free for nobody else then."""
        self._sorted = None
        wanted, rows = {part.node: set(part.devices) for part in placement.slices}, self._fleet.ground.row
        soon_ms = self._now_ms + SOON_MS
        for gang in holders:
            for part in gang.placement.slices:
                taken = wanted.get(part.node, set()) & set(part.devices)
                row = rows.get(part.node)
                if taken and row is not None and part.milli == WHOLE:
                    self._enter((row, soon_ms, -len(taken), self._kind(row, min(taken)), 0), 0.0)
        for part in placement.slices:
            for index in part.devices if part.milli == WHOLE else ():
                self._sharing.pop((rows.get(part.node, -1), index), None)

    def ready(self, shape: Shape, kind: str, free: Counts, spare: tuple[Amounts, NDArray[np.int64]]) -> Times:
        """The time from which each row holds one node's share: 0 where it does now, NEVER where no limit says so. free: devices
        of the type now; spare: cores and bytes now."""
        whole, _, starts = self._columns()
        row, at_ms, num_rows = whole[0], whole[1], len(free)
        count = shape.request.count
        enough = free[row] + self._come_free(kind) >= count
        now = free >= count
        if shape.cpus > 0:
            enough &= spare[0][row] + self._come_free(_CORES) + CORES_SLACK >= shape.cpus
            now &= spare[0] + CORES_SLACK >= shape.cpus
        if shape.memory_bytes > 0:
            enough &= spare[1][row] + self._come_free(_MEMORY) >= shape.memory_bytes
            now &= spare[1] >= shape.memory_bytes
        first = starts[:-1] + np.bincount(row[~enough], minlength=num_rows)
        padded = np.append(at_ms, NEVER)
        later = np.where(first < starts[1:], padded[np.minimum(first, len(at_ms))], NEVER)
        return np.where(now, 0, later)

    def _come_free(self, of: str) -> Amounts:
        """Of a type of devices, cores or bytes: with each entry, what came free on its row until then."""
        whole, cores, starts = self._columns()
        if of not in self._known:
            given = {_CORES: cores, _MEMORY: whole[4]}.get(of)
            if given is None:
                given = np.where(whole[3] == self._number[of], whole[2], 0)
            before = np.concatenate([[0.0], np.cumsum(given, dtype=np.float64)])
            self._known[of] = before[1:] - before[starts[whole[0]]]
        return self._known[of]

    def by(self, when_ms: int, kind: str) -> Counts:
        """Devices of the type that come free on each row until then."""
        whole = self._columns()[0]
        due = (whole[1] <= when_ms) & (whole[3] == self._number[kind])
        freed = np.bincount(whole[0][due], weights=whole[2][due], minlength=len(self._fleet.ground.nodes))
        return freed.astype(np.int32)

    def room_by(self, when_ms: int) -> tuple[Amounts, NDArray[np.int64]]:
        """Cores and bytes that come free on each row until then."""
        whole, cores, _ = self._columns()
        due, num_rows = whole[1] <= when_ms, len(self._fleet.ground.nodes)
        freed = np.bincount(whole[0][due], weights=cores[due], minlength=num_rows).astype(np.float64)
        return freed, np.bincount(whole[0][due], weights=whole[4][due], minlength=num_rows).astype(np.int64)

    def _columns(self) -> tuple[NDArray[np.int64], Amounts, Rows]:
        """Rows, times, devices, types, bytes; and cores: by row, time, and what is taken before what is given. And where each row
        of the fleet begins."""
        if self._sorted is None:
            whole_again = [
                (row, max(ends_ms.values()), 1, self._kind(row, index), 0) for (row, index), ends_ms in self._sharing.items()
            ]
            more = np.array([*self._entries, *whole_again], np.int64).reshape(-1, 5).T
            whole = np.concatenate([self._gangs_whole, more], axis=1)
            cores = np.concatenate([self._gangs_cores, self._cores, np.zeros(len(whole_again))])
            order = np.lexsort((whole[2], whole[1], whole[0]))
            whole = whole[:, order]
            starts = np.searchsorted(whole[0], np.arange(len(self._fleet.ground.nodes) + 1))
            self._sorted = whole, cores[order], starts
            self._known.clear()
        return self._sorted

    def _shares(self, job: JobId, placement: Placement, ends_ms: int) -> None:
        """The job holds its parts of these devices until then."""
        for part in placement.slices:
            row = self._fleet.ground.row.get(part.node, -1)
            for index in part.devices if row >= 0 and part.milli < WHOLE else ():
                self._sharing.setdefault((row, index), {})[job] = ends_ms

    def _enter(self, entry: _Entry, cpus: float) -> None:
        self._entries.append(entry)
        self._cores.append(cpus)

    def _parts(self, placement: Placement) -> Iterable[tuple[int, int, int]]:
        """Row, devices and type of each."""
        rows, kind = self._fleet.ground.row, -1
        for part in placement.slices:
            row = rows.get(part.node)
            if row is not None and part.devices:
                kind = self._kind(row, part.devices[0]) if kind < 0 else kind
                yield row, len(part.devices), kind

    def _kind(self, row: int, index: int) -> int:
        return self._number.get(self._fleet.ground.types[row].get(index, ""), -1)
