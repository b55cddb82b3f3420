"""By when waiting jobs start at the latest: what limits and the policy's own times say, if nobody comes before them. Pure."""

from typing import Final

from phalanx.core.ids import JobId
from phalanx.core.reasons import Kept
from phalanx.decide.scheduler.plan import Plan, Start, Wait
from phalanx.decide.scheduler.snapshot import Snapshot

_OUTLIVED_MS: Final = 2 * 60_000
"""Beyond its limit no gang lives for so long, if limits end gangs at all."""


def latest_starts(snapshot: Snapshot, plan: Plan) -> dict[JobId, int]:
    """Unix time, for the head of a pool whose way limits clear by then, and for who would start on what is free now, were it not
    kept until then; not for the others."""
    found = _kept_until(snapshot, plan)
    believed = limits_hold(snapshot)
    for one in plan.reservations:
        if believed and one.job is not None and one.start_ms is not None:
            found[one.job] = min(one.start_ms, found.get(one.job, one.start_ms))
    return found


def limits_hold(snapshot: Snapshot) -> bool:
    """Whether no gang has outlived its limit: in replays limits may be mere estimates."""
    return all(
        gang.facts.limit_ms is None or snapshot.now_ms <= gang.placed_ms + gang.facts.limit_ms + _OUTLIVED_MS
        for gang in snapshot.running
    )


def _kept_until(snapshot: Snapshot, plan: Plan) -> dict[JobId, int]:
    """Where what is free now is enough for all that wait before the job as well."""
    kept = {one.job: one.reason.until_ms for one in plan.decisions if isinstance(one, Wait) and isinstance(one.reason, Kept)}
    if not kept:
        return {}
    jobs, found = {job.facts.job: job.facts for job in snapshot.pending}, dict[JobId, int]()
    left = sum(len(node.free) for node in snapshot.nodes if node.schedulable)
    left -= sum(one.placement.world_size for one in plan.decisions if isinstance(one, Start))
    for wait in plan.decisions:
        if isinstance(wait, Wait) and wait.position is not None:
            shape = jobs[wait.job].shape
            left -= shape.fewest_nodes * shape.request.count
            until_ms = kept.get(wait.job)
            if until_ms is not None and left >= 0:
                found[wait.job] = until_ms
    return found
