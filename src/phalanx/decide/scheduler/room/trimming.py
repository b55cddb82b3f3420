"""A set of gangs that would make room for a job, and who of them is not needed for it."""

from collections.abc import Iterable, Sequence

import numpy as np

from phalanx.core.devices import Placement
from phalanx.core.ids import NodeId
from phalanx.decide.scheduler.round import Round
from phalanx.decide.scheduler.snapshot import PendingJob, Shape
from phalanx.decide.scheduler.where.fit import fit
from phalanx.decide.scheduler.where.fleet import CORES_SLACK, Counts, Mask, Rows


class Trimming:
    """On a copy of the fleet, as if all of them had let go. In it whole devices are only counted, and which ones the job gets is
    found out on its own nodes in the end; what holds shares is given back one by one."""

    def __init__(
        self, job: PendingJob, shape: Shape, kind: str, where: tuple[Mask, Counts], ends: Sequence[int], round_: Round
    ) -> None:
        """where: nodes on which gangs may be ended for the job, and what it may use of the others. ends: by place."""
        self._job, self._shape, self._kind, self._victims = job, shape, kind, round_.victims
        self._open, self._base = where
        self._ends = set(ends)
        self._fleet, self._trial = round_.fleet, round_.fleet.copy()
        self._columns = self._victims.columns(kind)
        at = self._of(ends)
        self._counts_only = not (shape.request.is_share or self._columns.shared[at].any())
        if self._counts_only:
            self._count(at, 1)
        else:
            for number in ends:
                self._trial.give_back(self._victims.gangs[number].facts.shape, self._victims.releasable(number))
        self._placement: Placement | None = None
        self._look()

    def fits(self) -> bool:
        is_loose = self._shape.within is None and self._shape.group <= 1
        return self._num_roomy >= self._shape.fewest_nodes and (is_loose or self._rows() is not None)

    def needed(self, dearest_first: Sequence[int]) -> tuple[int, ...]:
        """Those without whose end the job does not fit; the others are not ended, one after the other."""
        maybe = self._may_stay(dearest_first)
        return tuple(sorted(number for number in dearest_first if not (number in maybe and self._stays(number))))

    def placed(self) -> Placement:
        """What the job gets. To be asked once nobody is looked for any more."""
        if self._placement is None:
            self._placement = self._place()
        return self._placement

    def _place(self) -> Placement:
        found = self._rows()
        assert found is not None
        rows = [int(row) for row in found]
        if not self._counts_only:
            return self._trial.take(self._shape, self._kind, rows)
        fleet, names = self._fleet, {self._fleet.ground.nodes[row].node for row in rows}
        at, freed = self._of(self._ends), dict[NodeId, list[int]]()
        for number in np.unique(self._columns.slice_gang[at[np.isin(self._columns.slice_row[at], rows)]]).tolist():
            for part in self._victims.releasable(number, names).slices:
                freed.setdefault(part.node, []).extend(part.devices)
        parts = [(row, freed.get(fleet.ground.nodes[row].node, ())) for row in rows]
        return Placement(tuple(fleet.slice_of(self._shape.request, self._kind, row, more) for row, more in parts))

    def _may_stay(self, numbers: Sequence[int]) -> set[int]:
        """Gangs of which each alone would leave enough nodes with room. Others never may, whoever else stays."""
        columns, shape, at = self._columns, self._shape, self._of(numbers)
        if not self._counts_only:
            return set(numbers)
        gang, row = columns.slice_gang[at], columns.slice_row[at]
        left = np.where(self._open[row], self._trial.free[self._kind][row] - columns.slice_devices[at], self._base[row])
        has_room = left >= shape.request.count
        if shape.cpus > 0:
            has_room &= self._trial.free_cpus[row] - columns.slice_cpus[at] + CORES_SLACK >= shape.cpus
        if shape.memory_bytes > 0:
            has_room &= self._trial.free_memory_bytes[row] - columns.slice_memory[at] >= shape.memory_bytes
        lost = np.bincount(gang, self._roomy[row] & ~has_room, len(self._victims.gangs))
        return {number for number in numbers if self._num_roomy - lost[number] >= shape.fewest_nodes}

    def _stays(self, number: int) -> bool:
        """Whether the job fits without that gang being ended; then it is not."""
        gang, at = self._victims.gangs[number], self._of((number,))
        if self._counts_only:
            self._count(at, -1)
        else:
            self._trial.hold(gang.facts.shape, gang.placement)
        self._look()
        if self.fits():
            self._ends.remove(number)
            return True
        if self._counts_only:
            self._count(at, 1)
        else:
            self._trial.give_back(gang.facts.shape, gang.placement)
        self._look()
        return False

    def _of(self, numbers: Iterable[int]) -> Rows:
        """Slices of these gangs."""
        chosen = np.zeros(len(self._victims.gangs), np.bool_)
        chosen[list(numbers)] = True
        return np.flatnonzero(chosen[self._columns.slice_gang])

    def _count(self, at: Rows, sign: int) -> None:
        """So much more is free on the nodes of the slices, or less."""
        columns, trial = self._columns, self._trial
        row = columns.slice_row[at]
        trial.version += 1
        freed = (columns.slice_devices[at] * trial.ground.schedulable[row]).astype(np.int32)
        np.add.at(trial.free[self._kind], row, sign * freed)
        np.add.at(trial.free_cpus, row, sign * columns.slice_cpus[at])
        np.add.at(trial.free_memory_bytes, row, sign * columns.slice_memory[at].astype(np.int64))

    def _look(self) -> None:
        """Where the job has room now."""
        self._roomy = self._trial.roomy(self._shape, self._kind, self._free())
        for node in self._job.avoids:
            if node in self._trial.ground.row:
                self._roomy[self._trial.ground.row[node]] = False
        self._num_roomy = int(np.count_nonzero(self._roomy))

    def _rows(self) -> Rows | None:
        return fit(self._shape, self._kind, self._trial, self._free(), self._job.avoids)

    def _free(self) -> Counts:
        return np.where(self._open, self._trial.free[self._kind], self._base)
