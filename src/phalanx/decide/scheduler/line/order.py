"""Step 2, who comes first. Total, so that equals never change places.

Jobs with a claim; then those that do not borrow; then by priority. Of one priority: what a node failed; what has waited longer than
its class should; what has a deadline, the earliest to be started first; then, from the root down, the line with the smallest share;
then the oldest.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

from phalanx.core.devices import WHOLE
from phalanx.core.ids import JobId
from phalanx.decide.scheduler.line import fair_order
from phalanx.decide.scheduler.line.by_service import ServiceOrder
from phalanx.decide.scheduler.quotas.saving import Account
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.snapshot import PendingJob, Snapshot

Ordered = Callable[[Sequence[PendingJob]], Iterator[PendingJob]]


def in_order(
    snapshot: Snapshot, tree: Tree, at_home: Collection[JobId] = (), service: ServiceOrder | None = None
) -> Iterator[PendingJob]:
    """All waiting jobs; after those with a claim, those that start in their queue's own cells, in the order of `at_home`. Lazy:
    what the consumer uses of `tree` meanwhile counts for those that follow."""
    yield from sorted((job for job in snapshot.pending if job.claim is not None), key=age)
    waiting = [job for job in snapshot.pending if job.claim is None]
    if at_home:
        by_name = {job.facts.job: job for job in waiting}
        yield from (by_name[job] for job in at_home if job in by_name)
        waiting = [job for job in waiting if job.facts.job not in at_home]
    ordered = _ordered(snapshot, tree, service)
    if not tree.has_quotas:
        yield from ordered(waiting)
        return
    borrowing, later, saved = _Borrowing(tree), list[PendingJob](), set[Account]()
    for job in ordered(waiting):
        if borrowing.would(job):
            later.append(job)
            saved |= tree.saves_for(job)
        elif saved and borrowing.draws_on(job, saved):
            later.append(job)
        else:
            yield job
    yield from ordered(later)


def age(job: PendingJob) -> tuple[int, int, JobId]:
    facts = job.facts
    return facts.submitted_ms, facts.sequence, facts.job


def _ordered(snapshot: Snapshot, tree: Tree, service: ServiceOrder | None) -> Ordered:
    if snapshot.policy.order == "fifo":
        return _by_age
    if snapshot.policy.order != "fair":
        return (service or ServiceOrder(snapshot, sum(tree.capacity.values()) // WHOLE)).waiting
    return lambda jobs: fair_order.in_order(jobs, snapshot.policy, snapshot.now_ms, tree)


def _by_age(jobs: Sequence[PendingJob]) -> Iterator[PendingJob]:
    return iter(sorted(jobs, key=lambda job: (-job.facts.priority, not job.repair, *age(job))))


class _Borrowing:
    """Whether jobs would borrow now, found out once for jobs that are alike. What would borrow once does so for the whole decision,
    since what is used only grows, but for evictions."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._version = -1
        self._would: set[tuple[str, str, tuple[str, ...], int]] = set()
        self._draws: dict[tuple[str, tuple[str, ...], int], bool] = {}
        self._would_not: set[tuple[str, str, tuple[str, ...], int]] = set()

    def draws_on(self, job: PendingJob, saved: set[Account]) -> bool:
        """Whether what it would have is saved for others; more and more is."""
        alike = (job.facts.queue, job.facts.shape.request.types, len(saved))
        if alike not in self._draws:
            self._draws[alike] = self._tree.draws_on(job.facts, saved)
        return self._draws[alike]

    def would(self, job: PendingJob) -> bool:
        tree, shape = self._tree, job.facts.shape
        if tree.version != self._version:
            self._version = tree.version
            self._would_not.clear()
        request = shape.request
        alike = (job.facts.queue, job.facts.user, request.types, shape.num_nodes * request.count * request.milli)
        if alike in self._would:
            return True
        if alike in self._would_not:
            return False
        found = tree.borrows_for(job.facts)
        (self._would if found else self._would_not).add(alike)
        return found
