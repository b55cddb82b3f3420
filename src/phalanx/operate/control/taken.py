"""What is not free while a plan is carried out, which was made of a snapshot that may be old now. Pure."""

from collections.abc import Collection
from typing import Final

from phalanx.core.devices import WHOLE, NodeSlice, Placement
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.states import Pending
from phalanx.operate.control.fences import Fences
from phalanx.operate.control.world import Parts, World, part_bytes

Part = tuple[int, int]
"""Thousandths of a device, and bytes of its memory."""

NOTHING: Final = Placement(())


class Taken:
    """What gangs hold, what is promised to jobs, and what is fenced. Nodes are looked at when somebody asks for them."""

    def __init__(self, world: World, fenced: Fences) -> None:
        self._world = world
        self._fenced = fenced
        self._parts = Parts(world)
        self._held: dict[NodeId, dict[int, dict[AttemptId, Part]]] = {}
        self._ports: dict[NodeId, set[int]] = {}
        self._claims: dict[NodeId, dict[int, dict[JobId, Part]]] = {}
        self._claimed: dict[JobId, Placement] = {}
        for job in world.open_jobs.values():
            if job.claim is not None:
                self.claim(job.id, job.claim)

    def ports(self, node: NodeId) -> set[int]:
        """On which gangs meet there."""
        if node not in self._ports:
            known = self._world.attempts
            met = (known[attempt] for attempt in self._world.on_nodes.get(node, ()))
            ports = [attempt.ports for attempt in met if attempt.placement.slices[0].node == node]
            self._ports[node] = set().union(*ports) | (self._fenced[node].ports if node in self._fenced else set())
        return self._ports[node]

    def start(self, attempt: AttemptId, placement: Placement, *ports: int) -> None:
        """A gang that was placed, with what it has of its first node's ports."""
        for part in placement.slices:
            of_node = self._held_on(part.node)
            for index in part.devices:
                of_node.setdefault(index, {})[attempt] = self._part(part, index)
        self.ports(placement.slices[0].node).update(ports)

    def claim(self, job: JobId, placement: Placement | None) -> None:
        """From now on this is kept for the job, and what was is not."""
        for part in self._claimed.pop(job, NOTHING).slices:
            for index in part.devices:
                del self._claims[part.node][index][job]
        if placement is not None:
            self._claimed[job] = placement
            for part in placement.slices:
                for index in part.devices:
                    self._claims.setdefault(part.node, {}).setdefault(index, {})[job] = self._part(part, index)

    def has_room(self, job: JobId, placement: Placement, ending: Collection[AttemptId] = ()) -> bool:
        """Whether each device is there and free for the job, or will be once the attempts `ending` have let go of it: whatever is
        kept for another is not."""
        nodes = [part.node for part in placement.slices]
        if len(set(nodes)) < len(nodes) or any(len(set(part.devices)) < len(part.devices) for part in placement.slices):
            return False
        return all(self._has(job, part, index, ending) for part in placement.slices for index in part.devices)

    def _has(self, job: JobId, part: NodeSlice, index: int, ending: Collection[AttemptId]) -> bool:
        record = self._world.nodes.get(part.node)
        device = next((one for one in record.shape.devices if one.index == index), None) if record else None
        if device is None or (part.node in self._fenced and index in self._fenced[part.node].devices):
            return False
        milli, num_bytes = self._part(part, index)
        for attempt, held in self._held_on(part.node).get(index, {}).items():
            if attempt not in ending:
                milli, num_bytes = milli + held[0], num_bytes + held[1]
        for claimant, kept in self._claims.get(part.node, {}).get(index, {}).items():
            if claimant != job:
                milli, num_bytes = milli + kept[0], num_bytes + kept[1]
        return milli <= WHOLE and (part.milli == WHOLE or num_bytes <= device.memory_bytes)

    def _held_on(self, node: NodeId) -> dict[int, dict[AttemptId, Part]]:
        if node not in self._held:
            of_node = self._held[node] = {}
            for attempt in self._world.on_nodes.get(node, ()):
                part = self._parts.of(attempt, node)
                for index in part.devices:
                    of_node.setdefault(index, {})[attempt] = self._part(part, index)
        return self._held[node]

    def _part(self, part: NodeSlice, index: int) -> Part:
        record = self._world.nodes.get(part.node)
        return part.milli, part_bytes(record.shape if record else None, index, part)


def still_holds(world: World, taken: Taken, ready: Collection[NodeId], job: JobId, placement: Placement) -> bool:
    """Whether a start that was decided on an older snapshot can still be carried out: the job waits, every device is there, free,
    and kept for nobody else; and a job that claimed devices starts on exactly them."""
    record = world.open_jobs.get(job)
    if record is None or not isinstance(record.state, Pending) or not placement.slices:
        return False
    if record.claim is not None and record.claim != placement:
        return False
    return all(part.node in ready for part in placement.slices) and taken.has_room(job, placement)
