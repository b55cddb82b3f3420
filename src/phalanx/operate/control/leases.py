"""Leases as the control plane sees them: whose silence means that nothing new is placed there, and whose that what it had is given
up (law 4). Pure but for the draft and the sightings it is given.

A node counts its lease from the sending of what was granted, which is before it was heard here; so when a silence is longer than
the lease, the lease is over there too. What is given up is the attempt. Its devices are another matter: see `fences`.
"""

from typing import Final

from phalanx.core.events import NodeAway, PartLost
from phalanx.operate.control.fold import Draft
from phalanx.operate.control.observed import Sightings, settle
from phalanx.operate.control.world import AttemptRecord

TICK_GAP_MS: Final = 2_000
"""Ticks come every second. Where more lies between two, this control plane did not run for the rest of it (stopped, out of memory,
its database away), and what it did not hear meanwhile is nobody's silence."""

LOSS_MARGIN_MS: Final = 1_000
"""Beyond lease and kill grace: a shim looks at its lease now and then, and a killed process takes a moment to be gone."""


def note_tick(seen: Sightings, monotonic_ms: int) -> None:
    """Takes time in which no tick ran out of every silence. To be called once in a tick, before the silences are judged."""
    excess_ms = monotonic_ms - seen.ticked_ms - TICK_GAP_MS
    if excess_ms > 0:
        seen.heard_ms = {node: min(monotonic_ms, heard_ms + excess_ms) for node, heard_ms in seen.heard_ms.items()}
        seen.start_ms = min(monotonic_ms, seen.start_ms + excess_ms)
        seen.quiet_ms = min(monotonic_ms, seen.quiet_ms + excess_ms)
    seen.ticked_ms = monotonic_ms


def note_away(draft: Draft, seen: Sightings, monotonic_ms: int, lease_ms: int, at_ms: int) -> None:
    """Marks nodes whose lease ran out. A node not heard since this control plane's start has a lease from then."""
    for node, record in list(draft.world.nodes.items()):
        if record.up and monotonic_ms - seen.heard_ms.get(node, seen.start_ms) > lease_ms:
            draft.add(NodeAway(node), at_ms)


def note_lost(draft: Draft, seen: Sightings, monotonic_ms: int, lease_ms: int, loss_ms: int, at_ms: int) -> None:
    """Gives up the parts of gangs on nodes that were silent for longer than `loss_ms` while others were heard.

    While nobody is heard it is this side that may be cut off: then nothing is given up, and when the first node is heard again
    the others have as long as after a start of this control plane, or a healed network would cost every gang but the first.
    """
    if all(monotonic_ms - heard_ms > lease_ms for heard_ms in seen.heard_ms.values()):
        seen.quiet_ms = monotonic_ms
        return
    for _, attempt in list(draft.world.holding()):
        lost = _lost_parts(attempt, seen, monotonic_ms, loss_ms)
        for part in lost:
            draft.add(part, at_ms)
        if lost:
            settle(draft, seen, attempt.id, at_ms)


def _lost_parts(attempt: AttemptRecord, seen: Sightings, monotonic_ms: int, loss_ms: int) -> list[PartLost]:
    """Those of its parts that are lost now, and were not; one whose node said that it ended is no loss."""
    found = []
    for part in attempt.placement.slices:
        silent_ms = monotonic_ms - max(seen.heard_ms.get(part.node, seen.start_ms), seen.quiet_ms)
        report = seen.reports.get((part.node, attempt.id))
        known = part.node in attempt.lost or part.node in attempt.released
        if silent_ms > loss_ms and not known and (report is None or report.phase != "ended"):
            why = f"its lease ended, nothing was heard of it for {silent_ms // 1000} s"
            found.append(PartLost(attempt.job, attempt.id, part.node, why))
    return found
