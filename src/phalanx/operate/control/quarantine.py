"""Nodes that the platform drains by itself, since a rank on them was found slow or corrupt and the policy says so. Pure."""

from typing import Final

from phalanx.core.events import EventBody, NodeDrained, StopRequested
from phalanx.core.health import QUARANTINE as SIGN
from phalanx.core.ids import NodeId
from phalanx.core.states import Running
from phalanx.operate.control.observed import PLATFORM
from phalanx.operate.control.world import AttemptRecord, World

QUARANTINED_OF: Final = 10
"""Of the nodes that are up, one in so many may stand drained by this, and one in a small fleet: a rule that errs must not empty a
fleet."""


def may_quarantine(world: World, node: NodeId) -> bool:
    """Not the last node, nor more than a few: then somebody has to look."""
    up = {name: one for name, one in world.nodes.items() if one.up}
    stand = sum(one.drained.startswith(SIGN) for one in up.values())
    others = [name for name, one in up.items() if name != node and not one.drained]
    return node in up and not up[node].drained and bool(others) and stand < max(1, len(up) // QUARANTINED_OF)


def quarantined(world: World, attempt: AttemptRecord, node: NodeId, why: str) -> list[EventBody]:
    """The node is drained, and the attempt's job leaves it as drained jobs do; others there run to their end."""
    events: list[EventBody] = [NodeDrained(node, f"{SIGN}{why}", PLATFORM)]
    job = world.jobs[attempt.job]
    if job.attempt == attempt.id and isinstance(job.state, Running):
        events.append(StopRequested(job.id, "drain", PLATFORM))
    return events


def seats(attempt: AttemptRecord) -> list[tuple[NodeId, int]]:
    """(node, device) of each rank."""
    return [(part.node, device) for part in attempt.placement.slices for device in part.devices]
