"""Exact devices for a gang on nodes that were chosen for it: those that are free, then those that are being let go of, then those
of gangs that are ended for it."""

from collections.abc import Callable, Iterable, Sequence

from phalanx.core.devices import NodeSlice, Placement
from phalanx.decide.scheduler.ground import CORES_SLACK
from phalanx.decide.scheduler.round import Round
from phalanx.decide.scheduler.snapshot import Shape


class Taking:
    """One look. `others`: gangs on the node of a slice that may be ended, by place among the victims, the first one first. victims,
    ending: who is to be ended for it, and who of those that end anyway holds some of it."""

    def __init__(self, shape: Shape, kind: str, others: Callable[[NodeSlice], Sequence[int]], round_: Round) -> None:
        self._shape, self._kind, self._ends, self._round = shape, kind, others, round_
        self.victims: list[int] = []
        self._ending: list[int] = []

    @property
    def ending(self) -> tuple[int, ...]:
        return tuple(sorted(set(self._ending)))

    def placed(self, slices: Iterable[NodeSlice]) -> Placement | None:
        """As many devices of each node, of which a share has to be of the very ones; None when there are not."""
        found = [self._slice(part) for part in slices]
        whole = tuple(part for part in found if part is not None)
        return Placement(whole) if len(whole) == len(found) else None

    def send_away(self, numbers: Iterable[int]) -> None:
        self.victims.extend(number for number in numbers if number not in self.victims)

    def _slice(self, part: NodeSlice) -> NodeSlice | None:
        row = self._round.fleet.ground.row[part.node]
        is_share = self._shape.request.is_share
        gangs = iter(self._ends(part))
        while True:
            free = self._coming_free(part, row)
            whole = tuple(free[: len(part.devices)])
            found = whole if not is_share else part.devices if set(part.devices) <= set(free) else ()
            if len(found) == len(part.devices) and self._has_host(part, row):
                self._note_ending(part, found)
                return NodeSlice(part.node, found, part.milli, part.memory_bytes)
            number = next(gangs, None)
            if number is None:
                return None
            self.send_away([number])

    def _coming_free(self, part: NodeSlice, row: int) -> list[int]:
        fleet, victims = self._round.fleet, self._round.victims
        if self._shape.request.is_share:
            trial = fleet.copy()
            for number in self._leaving(part):
                trial.give_back(victims.gangs[number].facts.shape, victims.releasable(number))
            return list(part.devices) if trial.is_free(Placement((part,))) else []
        free = fleet.devices(row, self._kind)
        types = fleet.ground.types[row]
        more = [
            index
            for number in self._leaving(part)
            for other in victims.releasable(number).slices
            if other.node == part.node
            for index in other.devices
            if types.get(index) == self._kind and index not in free
        ]
        return [*free, *dict.fromkeys(more)]

    def _has_host(self, part: NodeSlice, row: int) -> bool:
        """Cores and memory."""
        shapes = [self._round.victims.gangs[number].facts.shape for number in self._leaving(part)]
        cpus = self._round.fleet.free_cpus[row] + sum(shape.cpus for shape in shapes)
        memory = self._round.fleet.free_memory_bytes[row] + sum(shape.memory_bytes for shape in shapes)
        return bool(cpus + CORES_SLACK >= self._shape.cpus and memory >= self._shape.memory_bytes)

    def _leaving(self, part: NodeSlice) -> list[int]:
        """Gangs on the node that are ending, those first that are so already."""
        on_it = self._round.victims.on_node(part.node)
        return [number for number in on_it if self._round.victims.ending[number]] + [
            number for number in on_it if number in self.victims and not self._round.victims.ending[number]
        ]

    def _note_ending(self, part: NodeSlice, found: Iterable[int]) -> None:
        wanted = set(found)
        for number in self._leaving(part):
            gang = self._round.victims.gangs[number]
            touches = any(other.node == part.node and wanted & set(other.devices) for other in gang.placement.slices)
            if number not in self.victims and touches:
                self._ending.append(number)
