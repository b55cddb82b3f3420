"""Exact devices for a gang on nodes that were chosen for it: those that are free, then those that are being let go of, then those
of gangs that are ended for it."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from phalanx.core.devices import WHOLE, NodeSlice, Placement
from phalanx.decide.scheduler.round import Round
from phalanx.decide.scheduler.snapshot import Shape
from phalanx.decide.scheduler.where.ground import CORES_SLACK
from phalanx.decide.scheduler.where.shares import Part


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
        gangs = iter(self._ends(part))
        while True:
            for found in self._choices(part, row):
                if self._has_host(part, row, found):
                    self._note_ending(part, found)
                    return NodeSlice(part.node, found, part.milli, part.memory_bytes)
            number = next(gangs, None)
            if number is None:
                return None
            self.send_away([number])

    def _choices(self, part: NodeSlice, row: int) -> Iterator[tuple[int, ...]]:
        """Devices of the node that are free, before those that will be; or the other way round, since cores and memory come free
        with these. One that shares hold is free once the last of them has gone."""
        fleet, then = self._round.fleet, self._left_then(part, row)
        whole = [index for index, (milli, _) in sorted(then.items()) if milli >= WHOLE]
        if self._shape.request.is_share:
            enough = {index for index, left in then.items() if left[0] >= part.milli and left[1] >= part.memory_bytes}
            if fleet.ground.schedulable[row] and enough.union(whole, fleet.devices(row, self._kind)).issuperset(part.devices):
                yield part.devices
            return
        free, types = fleet.devices(row, self._kind), fleet.ground.types[row]
        more = [index for index in whole if index not in free and types.get(index) == self._kind]
        if len(free) + len(more) >= len(part.devices):
            yield tuple([*free, *more][: len(part.devices)])
            yield tuple([*more, *free][: len(part.devices)])

    def _left_then(self, part: NodeSlice, row: int) -> dict[int, Part]:
        """Of devices that are held, in part or as a whole: what is left of each once all have gone who leave."""
        fleet, victims = self._round.fleet, self._round.victims
        found: dict[int, Part] = {index: fleet.shares.left(row, index) or (0, 0) for index in fleet.ground.types[row]}
        for number in self._leaving(part):
            for freed in victims.releasable(number, {part.node}).slices:
                for index in freed.devices if freed.milli < WHOLE else ():
                    milli, memory = found.get(index, (0, 0))
                    found[index] = (milli + freed.milli, memory + freed.memory_bytes)
                found.update(dict.fromkeys(freed.devices if freed.milli == WHOLE else (), (WHOLE, 0)))
        return found

    def _has_host(self, part: NodeSlice, row: int, found: Iterable[int]) -> bool:
        """Cores and memory: what is free, and what comes free with the devices."""
        shapes = [self._round.victims.gangs[number].facts.shape for number in self._touched(part, found)]
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
        self._ending.extend(number for number in self._touched(part, found) if number not in self.victims)

    def _touched(self, part: NodeSlice, found: Iterable[int]) -> list[int]:
        """Those that leave and hold some of these devices."""
        wanted, gangs = set(found), self._round.victims.gangs
        return [
            number
            for number in self._leaving(part)
            if any(other.node == part.node and wanted & set(other.devices) for other in gangs[number].placement.slices)
        ]
