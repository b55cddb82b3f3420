"""Wait targets of the classes: whose job has waited longer than it should."""

from collections.abc import Mapping

from phalanx.core.policy import PRIORITY_MAX, Policy
from phalanx.decide.scheduler.snapshot import PendingJob


def late_since(policy: Policy, now_ms: int) -> Mapping[int, int]:
    """By priority, for those whose class has a target: a job that began to wait before that Unix time is late."""
    found: dict[int, int] = {}
    above = PRIORITY_MAX
    for one in sorted(policy.classes.values(), key=lambda one: -one.priority):
        if one.wait_target_ms is not None:
            found.update(dict.fromkeys(range(one.priority, above + 1), now_ms - one.wait_target_ms))
        above = one.priority - 1
    return found


def is_late(job: PendingJob, since: Mapping[int, int]) -> bool:
    """since: as of `late_since`."""
    before_ms = since.get(job.facts.priority)
    return before_ms is not None and (job.since_ms or job.facts.submitted_ms) < before_ms
