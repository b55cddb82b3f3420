"""Whole cells: nodes, domains, racks, blocks. Which are whose follows from what runs.

Cells in which a tenant's gangs are at home are bound to it, the oldest first, as many as it is guaranteed; the rest of its
guarantee is spare cells that are bound to nobody, the largest put aside first. What cannot be ended has the cells that are left.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Final, Literal

import numpy as np

from phalanx.core.devices import Placement
from phalanx.core.ids import NodeId
from phalanx.core.policy import TIERS, Cells, Queue
from phalanx.decide.scheduler.snapshot import PendingJob, RunningJob, Snapshot
from phalanx.decide.scheduler.where.ground import Ground

Cell = tuple[int, ...]
"""Rows of its nodes."""

CellTier = Literal["node", "domain", "rack", "block"]
CELL_TIERS: Final[tuple[CellTier, ...]] = ("node", *TIERS)
"""From the smallest to the largest."""


def devices(cells: Cells, ground: Ground) -> int:
    """Devices that the cells have together."""
    sizes = _sizes(cells, ground)
    return cells.count * max(sizes.values(), default=0)


def counts(ground: Ground) -> dict[tuple[str, str], tuple[int, int]]:
    """Whole cells of the fleet and the devices in each, by device type and tier: those of the largest size, since only they are
    alike."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for kind in ground.kinds:
        for tier in CELL_TIERS:
            sizes = _sizes(Cells(type=kind, count=1, tier=tier), ground).values()
            most = max(sizes, default=0)
            found[kind, tier] = sum(size == most for size in sizes), most
    return found


def cells_of(queues: Mapping[str, Queue], name: str) -> Cells:
    cells = queues[name].cells
    assert cells is not None
    return cells


def tenant_of(queues: Mapping[str, Queue], name: str) -> str | None:
    """The queue with cells that it is, or is part of."""
    seen: set[str] = set()
    while name in queues and name not in seen:
        if queues[name].cells is not None:
            return name
        seen.add(name)
        name = queues[name].parent
    return None


def _sizes(cells: Cells, ground: Ground) -> dict[Cell, int]:
    """Devices of the type in each cell that has any. Nodes without the tier's label are in no cell of it."""
    total = ground.total.get(cells.type)
    if total is None:
        return {}
    if cells.tier == "node":
        return {(int(row),): int(total[row]) for row in np.flatnonzero(total)}
    rows: dict[str, list[int]] = {}
    for row in np.flatnonzero(total):
        label = ground.nodes[row].labels.get(cells.tier)
        if label is not None:
            rows.setdefault(label, []).append(int(row))
    return {tuple(found): int(total[found].sum()) for found in rows.values()}


class _Kind:
    """The cells of a device type and tier that are alike: the largest. of: by row. emptiest: in the order in which they are spared,
    those without gangs that cannot be ended first."""

    def __init__(self, cells: Cells, ground: Ground, held: Sequence[int], stuck: Container[int]) -> None:
        sizes = _sizes(cells, ground)
        most = max(sizes.values(), default=0)
        alike = [cell for cell, size in sizes.items() if size == most]
        self.of = {row: cell for cell in alike for row in cell}
        self.emptiest = sorted(alike, key=lambda cell: (any(row in stuck for row in cell), sum(held[row] for row in cell), cell))


class Board:
    """By name of the tenant: `line`, its jobs that wait; `mine`, its own ones, those that are bound first; `at_home`, gangs
    in the bound ones; `away`, its others. owner: of rows that are bound. spared: rows that may be bound by somebody."""

    def __init__(self, snapshot: Snapshot, ground: Ground, tenant: Mapping[str, str]) -> None:
        self.snapshot, self.ground, self.tenant = snapshot, ground, tenant
        self.owner: dict[int, str] = {}
        self.line: dict[str, list[PendingJob]] = {}
        self.at_home: dict[str, list[RunningJob]] = {}
        self.away: dict[str, list[RunningJob]] = {}
        self.mine: dict[str, dict[Cell, None]] = {}
        self.spared: set[int] = set()
        self._gangs: dict[str, list[RunningJob]] = {}
        self._kind: dict[str, _Kind] = {}
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._held = [0] * len(ground.nodes)
        self._devices: dict[int, set[int]] = {}
        self._stuck: set[int] = set()
        for gang in snapshot.running:
            self._gangs.setdefault(tenant.get(gang.facts.queue, ""), []).append(gang)
            for part in gang.placement.slices:
                if (row := ground.row.get(part.node)) is not None:
                    self._devices.setdefault(row, set()).update(part.devices)
            for row in self.rows(gang.placement):
                self._held[row] += 1
                if not gang.facts.preemptible:
                    self._stuck.add(row)
        for job in snapshot.pending:
            self.line.setdefault(tenant.get(job.facts.queue, ""), []).append(job)

    def bind(self, name: str) -> None:
        """Cells with the tenant's gangs that do not borrow, and with devices that are claimed for its jobs, the oldest first."""
        cells = cells_of(self.snapshot.policy.queues, name)
        alike = cells.type, cells.tier
        if alike not in self._kinds:
            self._kinds[alike] = _Kind(cells, self.ground, self._held, self._stuck)
        self._kind[name] = self._kinds[alike]
        self.mine[name], self.at_home[name], self.away[name] = {}, [], []
        for gang in sorted(self._gangs.get(name, ()), key=lambda gang: (gang.facts.preemptible, gang.placed_ms, gang.facts.job)):
            is_at_home = not gang.placement.borrowed and self._taken(name, gang.placement, cells.count)
            (self.at_home if is_at_home else self.away)[name].append(gang)
        claims = [(job.facts.job, job.claim) for job in self.line.get(name, ())] + [
            (gang.facts.job, gang.keeps) for gang in self.away[name]
        ]
        for _, claim in sorted(claims, key=itemgetter(0)):
            if claim is not None and not claim.borrowed:
                self._taken(name, claim, cells.count)

    def _taken(self, name: str, placement: Placement, most: int) -> bool:
        rows, of_row = self.rows(placement), self._kind[name].of
        if not rows or any(row not in of_row or self.owner.get(row, name) != name for row in rows):
            return False
        new = {of_row[row] for row in rows} - self.mine[name].keys()
        if len(self.mine[name]) + len(new) > most:
            return False
        self.mine[name].update(dict.fromkeys(sorted(new)))
        self.owner.update((row, name) for cell in new for row in cell)
        return True

    def spare(self, name: str) -> None:
        """Cells that the tenant may still bind: those without gangs that cannot be ended, the emptiest first."""
        missing = cells_of(self.snapshot.policy.queues, name).count - len(self.mine[name])
        usable = self.ground.schedulable
        unbound = (
            cell
            for cell in self._kind[name].emptiest
            if not any(row in self.owner or row in self.spared or not usable[row] for row in cell)
        )
        more = list(islice(unbound, missing))
        self.mine[name].update(dict.fromkeys(more))
        self.spared.update(row for cell in more for row in cell)

    def stays(self, name: str, gang: RunningJob, home: Placement, starting: Mapping[int, int]) -> bool:
        """Whether the gang need not start again at `home`: it is on those very nodes, or what it borrows can be its tenant's own in
        the place of as many spare cells, for cells of a kind are alike. starting: jobs that start, by row, it included."""
        there = gang.placement
        if _nodes(home) == _nodes(there):
            return home.slices == there.slices or not gang.facts.shape.request.is_share
        found, held = self._by_cell(name, home), self._by_cell(name, there)
        if not held or sorted(found.values()) != sorted(held.values()):
            return False
        if any(row in self.owner for cell in found for row in cell):
            return False
        own = self.rows(home)
        if any(starting.get(row, 0) > (row in own) for cell in (*found, *held) for row in cell):
            return False
        if not all(self._may_bind(name, cell) for cell in held):
            return False
        for one, other in zip(sorted(found.keys() - held.keys()), sorted(held.keys() - found.keys()), strict=True):
            if other not in self.mine[name]:
                del self.mine[name][one]
                self.mine[name][other] = None
                self.spared.difference_update(one)
                self.spared.update(other)
        return True

    def _by_cell(self, name: str, placement: Placement) -> dict[Cell, list[int]]:
        """Which of their nodes it has, by cell; nothing where some of it is in no cell of the tenant's kind."""
        of_row = self._kind[name].of
        rows = [self.ground.row.get(part.node, -1) for part in placement.slices]
        found: dict[Cell, list[int]] = {}
        for row in sorted(rows):
            if row not in of_row:
                return {}
            found.setdefault(of_row[row], []).append(of_row[row].index(row))
        return found

    def _may_bind(self, name: str, cell: Cell) -> bool:
        if cell in self.mine[name]:
            return not any(row in self.owner for row in cell)
        taken = (self.owner, self.spared, self._stuck)
        return all(self.ground.schedulable[row] and not any(row in rows for rows in taken) for row in cell)

    def settle(self, name: str, placement: Placement) -> None:
        """What starts in a spare cell binds it."""
        for row in self.rows(placement):
            self.owner.update((one, name) for one in self._kind[name].of[row])

    def devices(self, row: int) -> Collection[int]:
        """Of the node, those that gangs hold."""
        return self._devices.get(row, ())

    def rows(self, placement: Placement) -> set[int]:
        return {row for part in placement.slices if (row := self.ground.row.get(part.node)) is not None}


def _nodes(placement: Placement) -> dict[NodeId, int]:
    return {part.node: len(part.devices) for part in placement.slices}
