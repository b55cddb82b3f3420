"""Guarantees in whole cells (after HiveD, OSDI 2020): a tenant, a queue with cells, waits no longer than in a cluster of its own.

Its cells are decided as the private cluster that they stand for, by the very same scheduler: what starts there starts here on the
same nodes, and whoever else is on its devices is ended. So its jobs wait for each other, and for nobody else. What a tenant runs
beyond its cells is extra: there it still waits, and when its turn comes it is brought home, or ended for those whose turn it is.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from phalanx.core.devices import WHOLE, Placement
from phalanx.core.ids import JobId, NodeId
from phalanx.core.policy import Policy
from phalanx.core.reasons import Reason
from phalanx.decide.scheduler.plan import Plan, Start
from phalanx.decide.scheduler.quotas.cells import CELL_TIERS, Board, cells_of, tenant_of
from phalanx.decide.scheduler.snapshot import NodeFacts, PendingJob, RunningJob, Share, Snapshot
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

    def shut(self, job: PendingJob) -> Mask | None:
        """Rows that are not for the job when it is not at home."""
        mine = self.tenant.get(job.facts.queue)
        shut = np.zeros(len(self.closed), np.bool_) if job.facts.preemptible else self.closed.copy()
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

    def marked(self, plan: Plan, snapshot: Snapshot) -> Plan:
        """With what tenants' jobs get beyond their cells known as borrowed, for as long as they run there."""
        claims = {job.facts.job: job.claim for job in snapshot.pending}
        beyond = {job.facts.job for job in snapshot.pending if job.facts.queue in self.tenant}
        beyond |= {gang.facts.job for gang in snapshot.running if gang.placement.borrowed}
        beyond -= {job for job in self.of if claims.get(job) is None}

        def known(job: JobId, placement: Placement) -> Placement:
            return replace(placement, borrowed=True) if job in beyond and placement != claims.get(job) else placement

        return replace(
            plan,
            decisions=tuple(
                replace(one, placement=known(one.job, one.placement)) if one.kind == "start" else one for one in plan.decisions
            ),
            evictions=tuple(replace(one, keeps=known(one.job, one.keeps)) if one.keeps else one for one in plan.evictions),
            claims=tuple(replace(one, placement=known(one.job, one.placement)) if one.placement else one for one in plan.claims),
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
    private = _private(name, board)
    plan = decide(private)
    claims = {claim.job: claim.placement for claim in plan.claims}
    promised = {job.facts.job for job in private.pending if job.claim is not None}
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
    for gang in board.away[name]:
        job = gang.facts.job
        if job in starts and job not in victims and not gang.stopping and board.stays(name, gang, starts):
            starts[job] = replace(gang.placement, borrowed=False)
            board.settle(name, gang.placement)
            found.guaranteed.add(job)
    for job, placement in starts.items():
        found.of[job] = Home(placement, frozenset(victims.get(job, ())))
        board.settle(name, placement)


def _private(name: str, board: Board) -> Snapshot:
    """The tenant's cells as a cluster of their own. There jobs that borrow, or claim what they would, still wait; but for those
    that are asked to end for good."""
    snapshot, queues = board.snapshot, board.snapshot.policy.queues
    rows = sorted(row for cell in board.mine[name] for row in cell)
    used = _used(board.at_home[name])
    known = {(part.node, index) for gang in snapshot.running for part in gang.placement.slices for index in part.devices}
    nodes = tuple(_vacated(board.ground.nodes[row], used, known, board.at_home[name]) for row in rows)
    below = {queue: found for queue, found in queues.items() if board.tenant.get(queue) == name and queue != name}
    own = replace(queues[name], parent="", cells=None, quota={}, borrow=True, lend=True)
    policy = replace(snapshot.policy, queues={name: own, **below}, bookings={}, spares={})
    line = [job for job in snapshot.pending if board.tenant.get(job.facts.queue) == name]
    pending = [replace(job, claim=None) if job.claim is not None and job.claim.borrowed else job for job in line]
    away = [gang for gang in board.away[name] if gang.facts.preemptible and (gang.evicted_for is not None or not gang.stopping)]
    pending += [_waiting(gang) for gang in away]
    return replace(snapshot, nodes=nodes, running=tuple(board.at_home[name]), pending=tuple(pending), policy=policy)


def _waiting(gang: RunningJob) -> PendingJob:
    """A gang that borrows, as it stands in the line of its tenant's own cluster."""
    claim = gang.keeps if gang.keeps is not None and not gang.keeps.borrowed else None
    return PendingJob(
        gang.facts, gang.since_ms, claim=claim, evictions=gang.evictions, served_ms=gang.served_ms, done_ms=gang.done_ms
    )


def _used(gangs: Iterable[RunningJob]) -> dict[tuple[NodeId, int], tuple[int, int]]:
    """Thousandths and bytes of devices that gangs hold."""
    used: dict[tuple[NodeId, int], tuple[int, int]] = {}
    for gang in gangs:
        for part in gang.placement.slices:
            for index in part.devices:
                milli, memory = used.get((part.node, index), (0, 0))
                used[part.node, index] = milli + part.milli, memory + part.memory_bytes
    return used


def _vacated(
    node: NodeFacts,
    used: Mapping[tuple[NodeId, int], tuple[int, int]],
    known: set[tuple[NodeId, int]],
    gangs: Iterable[RunningJob],
) -> NodeFacts:
    """The node as if only `gangs`, which hold `used`, were on it. What neither is free nor held by a gang stays as it is."""
    there = set(node.free) | {share.index for share in node.shares}
    there |= {index for index, _ in node.devices if (node.node, index) in known and index not in node.fenced}
    held = {index: used[node.node, index] for index in there if (node.node, index) in used}
    shares = tuple(
        Share(index, WHOLE - milli, node.device_memory_bytes - memory)
        for index, (milli, memory) in sorted(held.items())
        if milli < WHOLE
    )
    here = [gang.facts.shape for gang in gangs if any(part.node == node.node for part in gang.placement.slices)]
    return replace(
        node,
        free=tuple(sorted(there - held.keys())),
        shares=shares,
        free_cpus=node.cpus - sum(shape.cpus for shape in here),
        free_memory_bytes=node.memory_bytes - sum(shape.memory_bytes for shape in here),
    )
