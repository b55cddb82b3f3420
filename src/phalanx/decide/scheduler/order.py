"""Step 2, who comes first: priority, then age. Total, so that equals never change places."""

from collections.abc import Iterable

from phalanx.decide.scheduler.snapshot import PendingJob


def in_order(pending: Iterable[PendingJob]) -> list[PendingJob]:
    """Higher priority first, then the earlier submitted; the order of `pending` itself means nothing."""
    return sorted(pending, key=lambda job: (-job.priority, job.submitted_ms, job.sequence, job.job))
