"""Gangs on nodes that were announced to go away: they save, let go, and wait again, before the node takes their work with it."""

from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.ids import NodeId
from phalanx.decide.scheduler.plan import Evict
from phalanx.decide.scheduler.room.elastic import resize
from phalanx.decide.scheduler.room.spot import LEAVES_MS
from phalanx.decide.scheduler.room.victims import lost_ms
from phalanx.decide.scheduler.round import Round
from phalanx.decide.scheduler.snapshot import RunningJob


def leave(round_: Round) -> None:
    """Whoever is on such a node, whether or not it may be ended for others: the node goes in any case. An elastic gang keeps the
    rest of its nodes."""
    now_ms = round_.snapshot.now_ms
    closing = [round_.fleet.ground.nodes[row] for row in round_.fleet.ground.closing]
    soon = {node.node for node in closing if (node.closing_ms or 0) - now_ms <= LEAVES_MS}
    if not soon:
        return
    for gang in sorted(round_.snapshot.running, key=lambda gang: gang.facts.job):
        if not gang.stopping and any(part.node in soon for part in gang.placement.slices):
            keeps = _rest(gang, soon)
            resize(gang, Evict(gang.facts.job, gang.attempt, gang.facts.job, "spot", lost_ms(gang, now_ms), keeps), round_)


def _rest(gang: RunningJob, soon: set[NodeId]) -> Placement | None:
    """Its nodes that stay, where they are enough and make whole groups."""
    group, slices = max(1, gang.facts.shape.group), gang.placement.slices
    stay = [part for number, part in enumerate(slices) if not _goes(slices[number // group * group :][:group], soon)]
    return Placement(tuple(stay)) if len(stay) >= gang.facts.shape.fewest_nodes else None


def _goes(group: tuple[NodeSlice, ...], soon: set[NodeId]) -> bool:
    return any(part.node in soon for part in group)
