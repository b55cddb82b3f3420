"""A tenant's cells as the cluster of its own that they stand for: its nodes as if nobody else were on them, its line, its rules."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from phalanx.core.devices import WHOLE
from phalanx.core.ids import NodeId
from phalanx.decide.scheduler.quotas.cells import Board
from phalanx.decide.scheduler.snapshot import NodeFacts, PendingJob, RunningJob, Shape, Share, Snapshot


def private(name: str, board: Board) -> Snapshot:
    """The tenant's cells as a cluster of their own. There jobs that borrow, or claim what they would, still wait; but for those
    that are asked to end for good."""
    snapshot, queues = board.snapshot, board.snapshot.policy.queues
    rows = sorted(row for cell in board.mine[name] for row in cell)
    used, shapes = _used(board.at_home[name]), _shapes(board.at_home[name])
    nodes = tuple(_vacated(board.ground.nodes[row], used, board.devices(row), shapes) for row in rows)
    below = {queue: found for queue, found in queues.items() if board.tenant.get(queue) == name and queue != name}
    own = replace(queues[name], parent="", cells=None, quota={}, borrow=True, lend=True)
    policy = replace(snapshot.policy, queues={name: own, **below}, bookings={}, spares={})
    line = board.line.get(name, ())
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


def _shapes(gangs: Iterable[RunningJob]) -> dict[NodeId, list[Shape]]:
    """Of the gangs on each node."""
    found: dict[NodeId, list[Shape]] = {}
    for gang in gangs:
        for part in gang.placement.slices:
            found.setdefault(part.node, []).append(gang.facts.shape)
    return found


def _vacated(
    node: NodeFacts,
    used: Mapping[tuple[NodeId, int], tuple[int, int]],
    known: Collection[int],
    shapes: Mapping[NodeId, Collection[Shape]],
) -> NodeFacts:
    """The node as if only gangs at home were on it, which hold `used` and have `shapes`. What is neither free nor `known`, as held
    by some gang, stays as it is."""
    there = set(node.free) | {share.index for share in node.shares}
    there |= {index for index, _ in node.devices if index in known and index not in node.fenced}
    held = {index: used[node.node, index] for index in there if (node.node, index) in used}
    shares = tuple(
        Share(index, WHOLE - milli, node.device_memory_bytes - memory)
        for index, (milli, memory) in sorted(held.items())
        if milli < WHOLE
    )
    here = shapes.get(node.node, ())
    return replace(
        node,
        free=tuple(sorted(there - held.keys())),
        shares=shares,
        free_cpus=node.cpus - sum(shape.cpus for shape in here),
        free_memory_bytes=node.memory_bytes - sum(shape.memory_bytes for shape in here),
    )
