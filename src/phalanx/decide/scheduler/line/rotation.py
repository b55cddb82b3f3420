"""Time-sharing by order: which gangs keep their devices, which make room, and which start where. Whole gangs, counted in devices of
one type a node."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from phalanx.core.ids import JobId, NodeId

Nodes = tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Gang:
    """One job that runs on `held`, or waits if that is empty. per_node: devices on each of its nodes. settled: it has run for long
    enough to be evicted or moved; a gang that has not keeps its place whoever comes. cells: where it may be placed, all of it in
    one of them; empty is anywhere."""

    job: JobId
    num_nodes: int
    per_node: int
    held: Nodes = ()
    settled: bool = True
    cells: tuple[frozenset[NodeId], ...] = ()


@dataclass(frozen=True, slots=True)
class Rotation:
    """keeps: run on as they are. evicts: lose their devices. starts: get these nodes. A gang that moves is in the latter two."""

    keeps: tuple[JobId, ...]
    evicts: tuple[JobId, ...]
    starts: tuple[tuple[JobId, Nodes], ...]


def rotate(gangs: Sequence[Gang], free: Mapping[NodeId, int], may_move: bool = True) -> Rotation:
    """`gangs`: running and waiting ones, the first to be served first. `free`: devices that nobody holds on nodes that may be given
    work; on other nodes gangs stay, and nobody starts.

    Each gang in turn claims room: its own nodes if it runs, else where it displaces whoever comes latest in the order. If it finds
    none, those before it are packed closer (`may_move`); if that does not help either, the next one may try, so that nothing stands
    idle behind a gang that waits. Nobody is evicted but for a gang before it that starts or moves. Equals are kept apart by the
    caller's order alone.
    """
    board = _Board(gangs, free)
    for place in sorted(range(len(gangs)), key=lambda place: bool(not gangs[place].held or gangs[place].settled)):
        gang = gangs[place]
        if gang.held and board.stay(place):
            continue
        if not board.is_hopeless(gang) and not board.settle(place) and not (may_move and board.pack(place)):
            board.give_up(gang)
    return board.result()


_NOBODY: Final = 1 << 62


class _Board:
    """Claims so far. room: devices that nobody has claimed, by node, whoever holds them now."""

    def __init__(self, gangs: Sequence[Gang], free: Mapping[NodeId, int]) -> None:
        self._gangs, self._free = gangs, free
        self._usable = sorted(free)
        self._room: dict[NodeId, int] = dict(free)
        self._holders: dict[NodeId, list[int]] = {}
        for place, gang in enumerate(gangs):
            for node in gang.held:
                self._room[node] = self._room.get(node, 0) + gang.per_node
                self._holders.setdefault(node, []).append(place)
        self._total = dict(self._room)
        self._claims: dict[int, Nodes] = {}
        self._left = sum(self._room[node] for node in self._usable)
        self._hopeless: set[tuple[int, int, tuple[frozenset[NodeId], ...]]] = set()

    def stay(self, place: int) -> bool:
        """It keeps its nodes, if nobody has claimed them."""
        gang = self._gangs[place]
        if any(self._room[node] < gang.per_node for node in gang.held):
            return False
        self._claim(place, gang.held)
        return True

    def is_hopeless(self, gang: Gang) -> bool:
        """Whether one that asks for no more has failed: room only shrinks."""
        if gang.num_nodes * gang.per_node > self._left:
            return True
        return any(
            nodes <= gang.num_nodes and devices <= gang.per_node and cells in ((), gang.cells)
            for nodes, devices, cells in self._hopeless
        )

    def give_up(self, gang: Gang) -> None:
        self._hopeless.add((gang.num_nodes, gang.per_node, gang.cells))

    def settle(self, place: int) -> bool:
        """It claims the nodes where it displaces whoever comes latest, and of these the fullest."""
        gang, found = self._gangs[place], list[tuple[int, Nodes]]()
        for roomy in self._roomy(gang, self._room):
            displaced = {node: self._displaced(place, node) for node in roomy}
            best = sorted(roomy, key=lambda node: (-displaced[node], self._room[node], node))[: gang.num_nodes]
            found.append((min(displaced[node] for node in best), tuple(sorted(best))))
        if not found:
            return False
        self._claim(place, max(found, key=lambda one: one[0])[1])
        return True

    def pack(self, place: int) -> bool:
        """All claims so far and this one, the largest first, each where it is if it can be; unsettled gangs stay. Whole or not at
        all."""
        fixed = {other: nodes for other, nodes in self._claims.items() if self._is_fixed(other)}
        room = dict(self._total)
        for other, nodes in fixed.items():
            _take(room, nodes, self._gangs[other].per_node)
        claims = dict(fixed)
        movable = [other for other in (*self._claims, place) if other not in fixed]
        for other in sorted(movable, key=lambda one: (-self._gangs[one].per_node, -self._gangs[one].num_nodes, one)):
            found = self._packed(other, room)
            if found is None:
                return False
            _take(room, found, self._gangs[other].per_node)
            claims[other] = found
        self._claims, self._room = claims, room
        self._left = sum(room[node] for node in self._usable)
        return True

    def result(self) -> Rotation:
        keeps, evicts, starts = list[JobId](), list[JobId](), list[tuple[JobId, Nodes]]()
        for place, gang in enumerate(self._gangs):
            nodes = self._claims.get(place)
            if nodes is not None and nodes == gang.held:
                keeps.append(gang.job)
                continue
            if gang.held:
                evicts.append(gang.job)
            if nodes is not None:
                starts.append((gang.job, nodes))
        return Rotation(tuple(keeps), tuple(evicts), tuple(starts))

    def _claim(self, place: int, nodes: Nodes) -> None:
        self._claims[place] = nodes
        _take(self._room, nodes, self._gangs[place].per_node)
        self._left -= self._gangs[place].per_node * len(nodes)

    def _is_fixed(self, place: int) -> bool:
        gang = self._gangs[place]
        return bool(gang.held) and (not gang.settled or any(node not in self._free for node in gang.held))

    def _displaced(self, place: int, node: NodeId) -> int:
        """The first in the order that would lose its place on `node` if this gang claimed a share of it."""
        gang, used = self._gangs[place], 0
        spare = self._room[node] - gang.per_node
        for other in self._holders.get(node, ()):
            if other not in self._claims and other != place:
                if used + self._gangs[other].per_node > spare:
                    return other
                used += self._gangs[other].per_node
        return _NOBODY

    def _packed(self, place: int, room: Mapping[NodeId, int]) -> Nodes | None:
        gang = self._gangs[place]
        for wish in (self._claims.get(place, ()), gang.held):
            if wish and all(room[node] >= gang.per_node for node in wish):
                return wish
        roomy = next(self._roomy(gang, room), None)
        if roomy is None:
            return None
        claimed = self._claimed_on(roomy)
        best = sorted(roomy, key=lambda node: (room[node], claimed[node], node))[: gang.num_nodes]
        return tuple(sorted(best))

    def _roomy(self, gang: Gang, room: Mapping[NodeId, int]) -> Iterator[list[NodeId]]:
        """Nodes that hold a part of the gang, in each cell that holds enough of them."""
        roomy = [node for node in self._usable if room[node] >= gang.per_node]
        for cell in gang.cells or (self._free,):
            inside = [node for node in roomy if node in cell] if gang.cells else roomy
            if len(inside) >= gang.num_nodes:
                yield inside

    def _claimed_on(self, nodes: Iterable[NodeId]) -> dict[NodeId, int]:
        """Devices that are claimed now: the fewer, the fewer have to move."""
        return {node: self._total[node] - self._room[node] for node in nodes}


def _take(room: dict[NodeId, int], nodes: Nodes, devices: int) -> None:
    for node in nodes:
        room[node] -= devices
