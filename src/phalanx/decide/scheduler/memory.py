"""What whoever decides again and again may keep, so that the next decision is faster. It changes none."""

from itertools import compress
from operator import is_not

from phalanx.decide.scheduler.known import Shapes
from phalanx.decide.scheduler.line.sweeps import Sweeps
from phalanx.decide.scheduler.quotas.holds import Holds
from phalanx.decide.scheduler.refusals import Refusals
from phalanx.decide.scheduler.room.gangs import Gangs
from phalanx.decide.scheduler.snapshot import NodeFacts, Snapshot
from phalanx.decide.scheduler.told import Told
from phalanx.decide.scheduler.where.fleet import Fleet, Ground
from phalanx.decide.scheduler.where.packing import Packing

_SHAPES_MAX = 100_000


class Memory:
    """Of the last snapshot: the fleet as columns, of which only nodes that are other objects now are read again; and the numbers of
    shapes. sweeps: how the line is cut; told: what jobs in it heard; refusals: what queues may not have. holds: what gangs hold.
    packing: nodes as the packer sees them. decided: the last snapshot and its whole decision (a `Round`), for what-if questions."""

    def __init__(self) -> None:
        self.shapes = Shapes()
        self.sweeps = Sweeps()
        self.told = Told()
        self.refusals = Refusals()
        self.holds = Holds()
        self.packing = Packing()
        self.decided: tuple[Snapshot, object] | None = None
        self._nodes: tuple[NodeFacts, ...] = ()
        self._fleet: Fleet | None = None
        self._gangs: Gangs | None = None

    def fleet(self, snapshot: Snapshot) -> Fleet:
        """Before anything is taken of it."""
        forgotten = self.shapes.forget(_SHAPES_MAX)  # and with the numbers all that is known by them
        renewed = None if forgotten else self._renewed(snapshot.nodes)
        if renewed is None:
            self.holds, self._gangs = Holds(), None
        self._fleet = Fleet.of(snapshot.nodes) if renewed is None else renewed
        self._nodes = snapshot.nodes
        return self._fleet.copy()

    def gangs(self, snapshot: Snapshot, ground: Ground) -> Gangs:
        """Of the snapshot whose fleet was asked for last."""
        known = self._gangs
        self._gangs = Gangs.of(snapshot.running, ground) if known is None else known.renewed(snapshot.running, ground)
        return self._gangs

    def _renewed(self, nodes: tuple[NodeFacts, ...]) -> Fleet | None:
        """None when reading all of them again is right, or cheaper."""
        if self._fleet is None or len(nodes) != len(self._nodes):
            return None
        changed = list(compress(range(len(nodes)), map(is_not, nodes, self._nodes)))
        if not changed:
            return self._fleet
        if len(changed) > len(nodes) // 4 or any(_lasting(nodes[at]) != _lasting(self._nodes[at]) for at in changed):
            return None
        return self._fleet.renewed([nodes[at] for at in changed])


def _lasting(node: NodeFacts) -> tuple[object, ...]:
    """What columns are not renewed of."""
    has = (node.devices, node.cpus, node.memory_bytes, node.device_memory_bytes)
    return node.node, *has, node.features, node.labels, node.spot, node.gone
