"""Guarantees in whole cells (after HiveD, OSDI 2020): a tenant, a queue with cells, waits no longer than in a cluster of its own.

Its cells are decided as the private cluster that they stand for, by the very same scheduler: what starts there starts here on the
same nodes, and whoever else is on its devices is ended. So its jobs wait for each other, and for nobody else. What a tenant runs
beyond its cells is extra: there it still waits, and when its turn comes it is brought home, or ended for those whose turn it is.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from phalanx.core.devices import Placement
from phalanx.core.ids import JobId
from phalanx.core.policy import Policy
from phalanx.core.reasons import Reason
from phalanx.decide.scheduler.plan import Plan, Start
from phalanx.decide.scheduler.quotas.cells import CELL_TIERS, Board, cells_of, tenant_of
from phalanx.decide.scheduler.quotas.private import private
from phalanx.decide.scheduler.snapshot import PendingJob, Snapshot
from phalanx.decide.scheduler.where.ground import Ground, Mask

Decide = Callable[[Snapshot], Plan]


@dataclass(frozen=True, slots=True)
class Home:
    """Where a tenant's job starts in its own cells, be it that it borrows meanwhile; and which gangs of the tenant that are at home
    make room for it."""

    placement: Placement
    victims: frozenset[JobId] = frozenset()


@dataclass(slots=True)
class Homes:
    """of: jobs that start in their tenant's cells, in the order they are considered. reasons: why others have to wait there.
    guaranteed: gangs that run there, which nobody else ends. tenant: by queue. bound: the tenant of rows that have one. closed:
    rows on which nothing may be started that cannot be ended."""

    of: dict[JobId, Home] = field(default_factory=dict)
    reasons: dict[JobId, Reason] = field(default_factory=dict)
    guaranteed: set[JobId] = field(default_factory=set)
    tenant: dict[str, str] = field(default_factory=dict)
    bound: dict[int, str] = field(default_factory=dict)
    closed: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))
    _shut: dict[tuple[str | None, bool], Mask | None] = field(default_factory=dict)

    def shut(self, job: PendingJob) -> Mask | None:
        """Rows that are not for the job when it is not at home."""
        alike = self.tenant.get(job.facts.queue), job.facts.preemptible
        if alike not in self._shut:
            self._shut[alike] = self._shut_to(*alike)
        return self._shut[alike]

    def _shut_to(self, mine: str | None, preemptible: bool) -> Mask | None:
        shut = np.zeros(len(self.closed), np.bool_) if preemptible else self.closed.copy()
        if mine is not None:
            shut[[row for row, tenant in self.bound.items() if tenant != mine]] = True
        return shut if shut.any() else None

    def must_stay(self, job: PendingJob, policy: Policy) -> Reason | None:
        """Why a tenant's job has to wait, where it may not borrow."""
        reason = self.reasons.get(job.facts.job)
        if reason is None:
            return None
        tenant = policy.queues[self.tenant[job.facts.queue]]
        return None if tenant.borrow and job.facts.preemptible else reason

    def marked(self, plan: Plan, snapshot: Snapshot, ground: Ground) -> Plan:
        """With what tenants' jobs get beyond their cells known as borrowed, for as long as they run there, and with the cells."""
        claims = {job.facts.job: job.claim for job in snapshot.pending}
        beyond = {job.facts.job for job in snapshot.pending if job.facts.queue in self.tenant}
        beyond |= {gang.facts.job for gang in snapshot.running if gang.placement.borrowed}
        beyond -= {job for job in self.of if claims.get(job) is None}

        def known(job: JobId, placement: Placement) -> Placement:
            return replace(placement, borrowed=True) if job in beyond and placement != claims.get(job) else placement

        rows = {*np.flatnonzero(self.closed).tolist(), *self.bound}
        return replace(
            plan,
            decisions=tuple(
                replace(one, placement=known(one.job, one.placement)) if one.kind == "start" else one for one in plan.decisions
            ),
            evictions=tuple(replace(one, keeps=known(one.job, one.keeps)) if one.keeps else one for one in plan.evictions),
            claims=tuple(replace(one, placement=known(one.job, one.placement)) if one.placement else one for one in plan.claims),
            cells=tuple((ground.nodes[row].node, self.bound.get(row, "")) for row in sorted(rows)),
        )


def homes(snapshot: Snapshot, ground: Ground, decide: Decide) -> Homes | None:
    """None where nobody is guaranteed cells."""
    queues = snapshot.policy.queues
    names = [name for name, queue in queues.items() if queue.cells is not None]
    if not names:
        return None
    names.sort(key=lambda name: (-CELL_TIERS.index(cells_of(queues, name).tier), name))
    tenant = {queue: owner for queue in sorted(queues) if (owner := tenant_of(queues, queue)) is not None}
    found = Homes(tenant=tenant)
    board = Board(snapshot, ground, tenant)
    for name in names:
        board.bind(name)
    for name in names:
        board.spare(name)
    for name in names:
        _decide(name, board, decide, found)
    found.guaranteed |= {gang.facts.job for name in names for gang in board.at_home[name]}
    found.bound = dict(board.owner)
    found.closed = np.zeros(len(ground.nodes), np.bool_)
    found.closed[[row for name in names for cell in board.mine[name] for row in cell]] = True
    return found


def _decide(name: str, board: Board, decide: Decide, found: Homes) -> None:
    own = private(name, board)
    plan = decide(own)
    claims = {claim.job: claim.placement for claim in plan.claims}
    promised = {job.facts.job for job in own.pending if job.claim is not None}
    starts = dict[JobId, Placement]()
    for decision in plan.decisions:
        if decision.job in promised:  # in the fleet it starts on what was claimed there
            continue
        placement = decision.placement if isinstance(decision, Start) else claims.get(decision.job)
        if placement is not None:
            starts[decision.job] = placement
        elif not isinstance(decision, Start):
            found.reasons[decision.job] = decision.reason
    victims: dict[JobId, set[JobId]] = {}
    for evict in plan.evictions:
        victims.setdefault(evict.claimant, set()).add(evict.job)
    starting = Counter(row for placement in starts.values() for row in board.rows(placement))
    for gang in board.away[name]:
        job = gang.facts.job
        if job in starts and job not in victims and not gang.stopping and board.stays(name, gang, starts[job], starting):
            starting.subtract(board.rows(starts[job]))
            starting.update(board.rows(gang.placement))
            starts[job] = replace(gang.placement, borrowed=False)
            board.settle(name, gang.placement)
            found.guaranteed.add(job)
    for job, placement in starts.items():
        found.of[job] = Home(placement, frozenset(victims.get(job, ())))
        board.settle(name, placement)
