"""Whether nodes fail so often that a gang hardly ever gets as far as to save what it did: such a replay would have no end."""

import math
from collections.abc import Sequence
from typing import Final

from phalanx.core.errors import SpecError
from phalanx.core.units import count_of, show_duration
from phalanx.decide.scheduler import NodeFacts
from phalanx.operate.sim.replay.costs import MINUTE_MS, Costs
from phalanx.operate.sim.replay.gangs import Gangs
from phalanx.operate.sim.traces.trace import Trace

FAILURES_MAX: Final = 5
"""That a gang may expect in the time in which it must have none: it has to try exp(5), about 150, times."""


def refuse_endless(trace: Trace, nodes: Sequence[NodeFacts], costs: Costs, asked: str) -> None:
    """Raises SpecError about `asked`, the time between failures of a node."""
    if not costs.mtbf_ms:
        return
    shapes = Gangs(nodes)
    sizes = ((shapes.shape(job).num_nodes, _alone_ms(job.duration_ms, costs), job) for job in trace.jobs)
    hardest = max((one for one in sizes if one[0] <= len(nodes)), key=lambda one: one[0] * one[1], default=None)
    if hardest is None or hardest[0] * hardest[1] <= FAILURES_MAX * costs.mtbf_ms:
        return
    num_nodes, alone_ms, job = hardest
    least = math.ceil(num_nodes * alone_ms / FAILURES_MAX / MINUTE_MS)
    fails = (
        f"{job.name} holds {count_of(num_nodes, 'node')} and has to go {show_duration(alone_ms)} without a failure of one to get on"
    )
    raise SpecError(
        "--failures", asked, f"is too often, as jobs would never end: {fails}; write {least}m or more, or a shorter --checkpoint"
    )


def _alone_ms(duration_ms: int, costs: Costs) -> int:
    """A restart, and its work up to the first checkpoint or its end."""
    return costs.restart_ms + min(duration_ms, costs.checkpoint_ms)
