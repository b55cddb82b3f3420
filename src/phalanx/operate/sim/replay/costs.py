"""What running costs a gang beside its own work, and how often nodes fail."""

from dataclasses import dataclass

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """start_ms: from the placement of the first attempt to its first step; a trace's durations include it, so it makes no job
    longer. restart_ms: the same of a later attempt, which comes on top. release_ms: a gang that is ended for another saves its
    state and lets go within it. checkpoint_ms: between two checkpoints. saves: a gang that is ended for another saves what it has
    done till then; else it goes back to its last checkpoint, as after a failure. mtbf_ms: mean time between failures of one node, 0
    for none. repair_ms: a failed node is away for so long.
    """

    start_ms: int = 30_000
    restart_ms: int = MINUTE_MS
    release_ms: int = 10_000
    checkpoint_ms: int = 30 * MINUTE_MS
    saves: bool = True
    mtbf_ms: int = 0
    repair_ms: int = 2 * HOUR_MS


FREE = Costs(start_ms=0, restart_ms=0, release_ms=0)
"""Nothing but the work itself, as published simulations count."""
