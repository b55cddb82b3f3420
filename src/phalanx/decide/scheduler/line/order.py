"""Step 2, who comes first. Total, so that equals never change places.

Jobs with a claim; then those that are guaranteed what they ask for; then by priority. Of one priority: what a node failed; what has
waited longer than its class should; what has a deadline, the earliest to be started first; then, from the root down, the line with
the smallest share; then the oldest.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence

from phalanx.core.devices import WHOLE
from phalanx.core.ids import JobId
from phalanx.decide.scheduler.line.by_service import ServiceOrder
from phalanx.decide.scheduler.line.fair_order import FairOrder
from phalanx.decide.scheduler.line.sweeps import Batch, alone
from phalanx.decide.scheduler.quotas.fair import Ask
from phalanx.decide.scheduler.quotas.saving import Account
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.snapshot import PendingJob, Snapshot

Ordered = Callable[[Sequence[Batch]], Iterator[Batch]]


def in_order(
    snapshot: Snapshot, tree: Tree, batches: Sequence[Batch], at_home: Collection[JobId] = (), service: ServiceOrder | None = None
) -> Iterator[Batch]:
    """All waiting jobs: those with a claim; those that start in their queue's own cells, in the order of `at_home`; those of
    `batches`, which has all others. Lazy: what the consumer uses of `tree` meanwhile counts for those that follow."""
    yield from alone(sorted(snapshot.claimants, key=age))
    if at_home:
        by_name = {job.facts.job: job for job in snapshot.pending if job.claim is None}
        yield from alone(by_name[job] for job in at_home if job in by_name)
    ordered = _ordered(snapshot, tree, batches, service)
    if not tree.has_quotas:
        yield from ordered(batches)
        return
    guarantees, later, saved, moves = _Guarantees(tree), list[Batch](), set[Account](), tree.moves
    for batch in ordered(batches):
        ask = batch.ask
        if guarantees.lack(ask):
            saved |= tree.saves_for(batch.first)
            later.append(batch.rest())
        elif saved and guarantees.draws_on(ask, saved):
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


class _Guarantees:
    """Whether jobs are guaranteed what they ask for. Who is not would take what nobody is guaranteed, or borrow: all these stand in
    one line, else those who need not borrow would pass for ever one that asks for more. What is not guaranteed once is not for the
    whole decision, since what is used only grows, but for evictions; nor is more of the same."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._moves = -1
        self._bounds: dict[tuple[str, tuple[str, ...]], tuple[float, int]] = {}  # the least that is not, the most that is
        self._draws: dict[tuple[str, tuple[str, ...], int], bool] = {}

    def draws_on(self, ask: Ask, saved: set[Account]) -> bool:
        """Whether what it would have is saved for others; more and more is."""
        alike = (*ask[:2], len(saved))
        if alike not in self._draws:
            self._draws[alike] = self._tree.draws_on(*ask[:2], saved)
        return self._draws[alike]

    def lack(self, ask: Ask) -> bool:
        if self._tree.moves != self._moves:
            self._moves = self._tree.moves
            self._bounds = {alike: (least, -1) for alike, (least, _) in self._bounds.items()}
        queue, types, amount = ask
        least, most = self._bounds.get((queue, types), (math.inf, -1))
        if amount >= least:
            return True
        if amount <= most:
            return False
        found = not self._tree.is_within(queue, types, amount)
        self._bounds[queue, types] = (amount, most) if found else (least, amount)
        return found
