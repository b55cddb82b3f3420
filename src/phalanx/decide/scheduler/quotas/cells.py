"""Whole cells: nodes, domains, racks, blocks. Which are whose follows from what runs.

Cells with a tenant's gangs are bound to it, the oldest first, as many as it is guaranteed; the rest of its guarantee is spare cells
that are bound to nobody. What cannot be ended has no more cells than nobody is guaranteed.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np

from phalanx.core.devices import Placement
from phalanx.core.policy import TIERS, Cells, Queue
from phalanx.decide.scheduler.snapshot import RunningJob, Snapshot
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


def counts(ground: Ground) -> dict[tuple[str, str], int]:
    """Whole cells of the fleet, by device type and tier: those of the largest size, since only they are alike."""
    found: dict[tuple[str, str], int] = {}
    for kind in ground.kinds:
        for tier in CELL_TIERS:
            sizes = _sizes(Cells(type=kind, count=1, tier=tier), ground)
            found[kind, tier] = sum(size == max(sizes.values()) for size in sizes.values()) if sizes else 0
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


class Board:
    """By name of the tenant: `standard`, all cells of its kind; `mine`, its own ones, those that are bound first; `at_home`, gangs
    in the bound ones. owner: of rows that are bound. firm: rows of cells that may carry what cannot be ended."""

    def __init__(self, snapshot: Snapshot, ground: Ground, tenant: Mapping[str, str]) -> None:
        self.snapshot, self.ground, self.tenant = snapshot, ground, tenant
        self.owner: dict[int, str] = {}
        self.firm: set[int] = set()
        self.standard: dict[str, list[Cell]] = {}
        self.at_home: dict[str, list[RunningJob]] = {}
        self.mine: dict[str, list[Cell]] = {}
        self.spared: set[int] = set()
        self._held = np.zeros(len(ground.nodes), np.int64)
        self._stuck: set[int] = set()
        for gang in snapshot.running:
            for row in self._rows(gang.placement):
                self._held[row] += 1
                if not gang.facts.preemptible:
                    self._stuck.add(row)

    def bind(self, name: str) -> None:
        """Cells with the tenant's gangs, and with devices that are claimed for its jobs, the oldest first."""
        cells = cells_of(self.snapshot.policy.queues, name)
        sizes = _sizes(cells, self.ground)
        most = max(sizes.values(), default=0)
        self.standard[name] = sorted(cell for cell, size in sizes.items() if size == most)
        of_row = {row: cell for cell in self.standard[name] for row in cell}
        self.mine[name], self.at_home[name] = [], []
        gangs = [gang for gang in self.snapshot.running if self.tenant.get(gang.facts.queue) == name]
        for gang in sorted(gangs, key=lambda gang: (gang.facts.preemptible, gang.placed_ms, gang.facts.job)):
            if self._taken(name, of_row, gang.placement, cells.count):
                self.at_home[name].append(gang)
        for job in sorted(self.snapshot.pending, key=lambda job: job.facts.job):
            if job.claim is not None and self.tenant.get(job.facts.queue) == name:
                self._taken(name, of_row, job.claim, cells.count)

    def _taken(self, name: str, of_row: Mapping[int, Cell], placement: Placement, most: int) -> bool:
        rows = self._rows(placement)
        if not rows or any(row not in of_row or self.owner.get(row, name) != name for row in rows):
            return False
        new = {of_row[row] for row in rows} - set(self.mine[name])
        if len(self.mine[name]) + len(new) > most:
            return False
        self.mine[name].extend(sorted(new))
        self.owner.update((row, name) for cell in new for row in cell)
        return True

    def keep_firm(self, names: Sequence[str]) -> None:
        """As many cells as nobody is guaranteed may carry what cannot be ended: first those that do."""
        kinds = {
            (cells_of(self.snapshot.policy.queues, name).type, cells_of(self.snapshot.policy.queues, name).tier) for name in names
        }
        for kind, tier in sorted(kinds):
            of_kind = [
                name for name in names if (one := cells_of(self.snapshot.policy.queues, name)).type == kind and one.tier == tier
            ]
            cells = self.standard[of_kind[0]]
            promised = sum(cells_of(self.snapshot.policy.queues, name).count for name in of_kind)
            unbound = [cell for cell in cells if not any(row in self.owner for row in cell)]
            unbound.sort(key=lambda cell: (not any(row in self._stuck for row in cell), -int(self._held[list(cell)].sum()), cell))
            self.firm.update(row for cell in unbound[: max(0, len(cells) - promised)] for row in cell)

    def spare(self, name: str) -> None:
        """Cells that the tenant may still bind, the emptiest first."""
        cells = cells_of(self.snapshot.policy.queues, name)
        usable = self.ground.schedulable
        unbound = [
            cell
            for cell in self.standard[name]
            if not any(row in self.owner or row in self.firm or row in self.spared or not usable[row] for row in cell)
        ]
        unbound.sort(key=lambda cell: (int(self._held[list(cell)].sum()), cell))
        more = unbound[: cells.count - len(self.mine[name])]
        self.mine[name].extend(more)
        self.spared.update(row for cell in more for row in cell)

    def settle(self, name: str, placement: Placement) -> None:
        """What starts in a spare cell binds it."""
        of_row = {row: cell for cell in self.mine[name] for row in cell}
        for row in self._rows(placement):
            self.owner.update((one, name) for one in of_row[row])

    def _rows(self, placement: Placement) -> set[int]:
        return {row for part in placement.slices if (row := self.ground.row.get(part.node)) is not None}
