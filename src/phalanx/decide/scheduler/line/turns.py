"""Whose turn it is on which nodes, where devices are shared in time: the orders `shortest` and `blind`.

In each pool, the devices of one type, gangs that run and gangs that wait are put in one order, and `rotation` says who has to make
room for whom. A job takes part in the pool of the type that it likes best; shares of devices and gangs of groups do not, and are
decided as in any other order. A gang that loses its place waits again and gets another one when it is its turn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from phalanx.core.devices import WHOLE, NodeSlice
from phalanx.core.ids import NodeId
from phalanx.decide.scheduler.gates import Gates
from phalanx.decide.scheduler.line.by_service import ServiceOrder, Turn, Turns
from phalanx.decide.scheduler.line.rotation import Gang, rotate
from phalanx.decide.scheduler.plan import Claim, Start
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.room import preemption
from phalanx.decide.scheduler.room.taking import Taking
from phalanx.decide.scheduler.room.victims import Cause
from phalanx.decide.scheduler.round import Round
from phalanx.decide.scheduler.snapshot import PendingJob, RunningJob, Shape
from phalanx.decide.scheduler.where.eligible import eligible_types
from phalanx.decide.scheduler.where.fleet import Mask

LOOKS_MAX: Final = 200_000
"""Waiting gangs times nodes that are looked at in one decision: about half a second. What stands further back in line is decided as
in any other order."""

Cells = tuple[frozenset[NodeId], ...]


def share_in_time(round_: Round) -> None:
    """Whose turn it is, before anybody is considered and once it is known which devices are promised to somebody. Nothing to do in
    other orders."""
    if round_.snapshot.policy.shares_in_time:
        round_.service = ServiceOrder(round_.snapshot, sum(round_.tree.capacity.values()) // WHOLE)
        round_.turns = _turns(round_.service, round_)


def _turns(order: ServiceOrder, round_: Round) -> Turns:
    found = Turns()
    for kind, waits in sorted(_candidates(order, round_).items()):
        if not waits:
            continue
        jobs: list[PendingJob | RunningJob] = [*waits, *_running(kind, round_)]
        line = sorted(jobs, key=order.place)
        found.place.update((job.facts.job, order.place(job)) for job in line)
        pool = _Pool(kind, round_)
        rotation = rotate([gang for job in line if (gang := pool.gang(job)) is not None], pool.free(), may_move=False)
        found.leave.update(rotation.evicts)
        found.of.update((job, Turn(kind, nodes)) for job, nodes in rotation.starts if job not in round_.running)
    return found


def _candidates(order: ServiceOrder, round_: Round) -> dict[str, list[PendingJob]]:
    """Jobs that could start at all, by pool and in order. As many of a queue as it may have, were they all to start."""
    snapshot, gates = round_.snapshot, Gates(round_.snapshot)
    homes = round_.kept.homes.of if round_.kept.homes is not None else {}
    tree = Tree(snapshot, round_.fleet.ground, round_.tree.held) if snapshot.policy.queues else None
    found: dict[str, list[PendingJob]] = {}
    most = LOOKS_MAX // max(1, len(round_.fleet.ground.nodes))
    for job in order.waiting([job for job in snapshot.pending if job.claim is None and job.facts.job not in homes]):
        kind = _pool(job.facts.shape, round_)
        if kind is None or len(found.setdefault(kind, [])) >= most or gates.why(job) is not None:
            continue
        if tree is not None:
            num_devices = job.facts.shape.num_devices
            if not tree.admit(job.facts, kind, num_devices).ok:
                continue
            tree.use(job.facts, kind, num_devices)
        gates.started(job)
        found[kind].append(job)
    return found


def _pool(shape: Shape, round_: Round) -> str | None:
    """The type of which it takes part in the rotation."""
    kinds = () if shape.request.is_share or shape.group > 1 else eligible_types(shape, round_.fleet)
    return kinds[0] if kinds else None


def _running(kind: str, round_: Round) -> Iterator[RunningJob]:
    for gang in round_.victims.gangs:
        is_ending = round_.victims.ending[round_.victims.place[gang.facts.job]]
        if not (is_ending or gang.facts.shape.request.is_share) and round_.tree.kind(gang.placement) == kind:
            yield gang


class _Pool:
    """Nodes and gangs of one type, as `rotate` wants them."""

    def __init__(self, kind: str, round_: Round) -> None:
        self._kind, self._round = kind, round_
        ground = round_.fleet.ground
        self._usable: Mask = ground.schedulable & (ground.total[kind] > 0)
        self._cells: dict[object, Cells | None] = {}

    def free(self) -> dict[NodeId, int]:
        """What nobody holds, or somebody lets go of without its being promised to anybody."""
        fleet, victims = self._round.fleet, self._round.victims
        nodes, free = fleet.ground.nodes, fleet.free[self._kind]
        found = {nodes[row].node: int(free[row]) for row in np.flatnonzero(self._usable)}
        for number in np.flatnonzero(victims.ending):
            for part in victims.releasable(int(number)).slices:
                if part.node in found and part.milli == WHOLE:
                    types = fleet.ground.types[fleet.ground.row[part.node]]
                    found[part.node] += sum(types.get(index) == self._kind for index in part.devices)
        return found

    def gang(self, job: PendingJob | RunningJob) -> Gang | None:
        shape, victims = job.facts.shape, self._round.victims
        gang = Gang(job.facts.job, shape.num_nodes, shape.request.count)
        if isinstance(job, RunningJob):
            held = tuple(part.node for part in job.placement.slices)
            return replace(gang, num_nodes=len(held), held=held, settled=victims.rotates(victims.place[job.facts.job]))
        cells = self._cells_of(job)
        return None if cells is None else replace(gang, cells=cells)

    def _cells_of(self, job: PendingJob) -> Cells | None:
        """Where the job may be and nothing is kept from it; None where that is nowhere."""
        shape, kept = job.facts.shape, self._round.kept
        key = (shape, kept.alike(job), job.avoids)
        if key not in self._cells:
            rows = self._usable & self._round.fleet.could_hold(shape, self._kind) & kept.open(job, self._kind)
            for node in job.avoids:
                if node in self._round.fleet.ground.row:
                    rows[self._round.fleet.ground.row[node]] = False
            self._cells[key] = self._in_tiers(shape, rows)
        return self._cells[key]

    def _in_tiers(self, shape: Shape, rows: Mask) -> Cells | None:
        ground = self._round.fleet.ground
        if shape.within is None:
            if np.array_equal(rows, self._usable):
                return ()
            groups = [np.flatnonzero(rows)]
        else:
            tier, inside = ground.tier(shape.within), np.flatnonzero(rows)
            groups = [inside[tier[inside] == number] for number in np.unique(tier[inside])]
        cells = tuple(frozenset(ground.nodes[row].node for row in group) for group in groups if len(group) >= shape.num_nodes)
        return cells or None


def take_turn(job: PendingJob, round_: Round) -> Start | Claim | None:
    """On the nodes of its turn: it starts, or gangs make room for it. None when it is not its turn, or not to be: then it is
    considered like any other. While a gang that is in the way is too young to be ended, what is free there is kept for it."""
    turn = round_.turns.of.get(job.facts.job)
    if turn is None or not _may_have(job, turn, round_):
        return None
    taking = Taking(job.facts.shape, turn.kind, lambda part: _others(job, turn, part, round_), round_)
    devices = tuple(range(job.facts.shape.request.count))
    placement = taking.placed(NodeSlice(node, devices) for node in turn.nodes)
    if placement is None or len(taking.victims) > round_.snapshot.policy.preemption.max_victims:
        return None
    old_enough_ms = max((round_.victims.may_end_ms(number) for number in taking.victims), default=0)
    if old_enough_ms > round_.snapshot.now_ms:
        round_.kept.keep_for(job, turn.kind, placement, old_enough_ms)
        return None
    if taking.victims or taking.ending:
        victims: tuple[tuple[int, Cause], ...] = tuple((number, "order") for number in sorted(taking.victims))
        return preemption.settle(job, preemption.Offer(turn.kind, 0.0, victims, taking.ending, placement), round_)
    round_.fleet.hold(job.facts.shape, placement)
    round_.tree.use(job.facts, turn.kind, placement.world_size)
    round_.kept.started(job, turn.kind, placement)
    return Start(job.facts.job, placement)


def _may_have(job: PendingJob, turn: Turn, round_: Round) -> bool:
    """Whether its queue may have as much, and nothing is kept from it there by now."""
    rows = [round_.fleet.ground.row[node] for node in turn.nodes]
    is_open = round_.kept.open(job, turn.kind)[rows].all()
    return bool(is_open) and round_.tree.admit(job.facts, turn.kind, job.facts.shape.num_devices).ok


def _others(job: PendingJob, turn: Turn, part: NodeSlice, round_: Round) -> Sequence[int]:
    """Gangs on the node that make room for it: those that lost their place and come after it, the last one first."""
    victims, turns = round_.victims, round_.turns
    stays, own = victims.within_guarantee(job, turn.kind), turns.place[job.facts.job]
    found = []
    for number in victims.on_node(part.node):
        name = victims.gangs[number].facts.job
        if name in turns.leave and turns.place[name] > own and victims.rotates(number) and not stays[number]:
            found.append((turns.place[name], number))
    return [number for _, number in sorted(found, reverse=True)]
