"""Step 2, who comes first. Total, so that equals never change places.

Jobs with a claim; then those that are guaranteed what they ask for; then by priority. Of one priority: what a node failed; what has
waited longer than its class should; what has a deadline, the earliest to be started first; then, from the root down, the line with
the smallest share; then the oldest.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

from phalanx.core.devices import WHOLE
from phalanx.core.ids import JobId
from phalanx.decide.scheduler.line.by_service import ServiceOrder
from phalanx.decide.scheduler.line.fair_order import FairOrder
from phalanx.decide.scheduler.line.guarantees import Guarantees, Passed
from phalanx.decide.scheduler.line.sweeps import Batch, alone
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.snapshot import PendingJob, Snapshot

Ordered = Callable[[Sequence[Batch]], Iterator[Batch]]


def in_order(
    snapshot: Snapshot,
    tree: Tree,
    batches: Sequence[Batch],
    at_home: Collection[JobId] = (),
    service: ServiceOrder | None = None,
    may_start: Callable[[PendingJob], bool] = lambda _: True,
) -> Iterator[Batch]:
    """All waiting jobs: those with a claim; those that start in their queue's own cells, in the order of `at_home`; those of
    `batches`, which has all others. Lazy: what the consumer uses of `tree` meanwhile counts for those that follow. may_start:
    whether nothing but devices keeps a job from starting."""
    yield from alone(sorted(snapshot.claimants, key=age))
    if at_home:
        by_name = {job.facts.job: job for job in snapshot.pending if job.claim is None}
        yield from alone(by_name[job] for job in at_home if job in by_name)
    ordered = _ordered(snapshot, tree, batches, service)
    if not tree.has_quotas:
        yield from ordered(batches)
        return
    guarantees, passed, later, moves = Guarantees(tree), Passed(tree, may_start), list[Batch](), tree.moves
    for batch in ordered(batches):
        if guarantees.lack(batch.ask):
            passed.add(batch.first, batch.ask)
            later.append(batch.rest())
        elif passed.would_be_by(batch.ask):
            later.append(batch.rest())
        else:
            yield batch
    at = 0
    while at < len(later) and tree.moves == moves:  # then they are in order already
        yield later[at]
        at += later[at].at == len(later[at].jobs)
    yield from ordered(later[at:])


def age(job: PendingJob) -> tuple[int, int, JobId]:
    facts = job.facts
    return facts.submitted_ms, facts.sequence, facts.job


def _ordered(snapshot: Snapshot, tree: Tree, batches: Sequence[Batch], service: ServiceOrder | None) -> Ordered:
    if snapshot.policy.order == "fair":
        return FairOrder(batches, snapshot.policy, snapshot.now_ms, tree).of
    if snapshot.policy.order == "fifo":
        return _by_age
    known = service or ServiceOrder(snapshot, sum(tree.capacity.values()) // WHOLE)
    return lambda batches: alone(known.waiting(_jobs(batches)))


def _by_age(batches: Sequence[Batch]) -> Iterator[Batch]:
    return alone(sorted(_jobs(batches), key=lambda job: (-job.facts.priority, not job.repair, *age(job))))


def _jobs(batches: Sequence[Batch]) -> list[PendingJob]:
    return [job for batch in batches for job in batch.jobs[batch.at :]]
