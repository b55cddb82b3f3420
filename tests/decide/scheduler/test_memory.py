"""What is kept between decisions changes none of them."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.devices import Placement
from phalanx.core.ids import AttemptId
from phalanx.decide.scheduler import JobFacts, NodeFacts, Plan, RunningJob, Snapshot, Start, schedule
from phalanx.decide.scheduler.line.sweeps import Sweeps
from phalanx.decide.scheduler.memory import Memory
from phalanx.decide.scheduler.where.fleet import Fleet
from tests.decide.scheduler.snapshots import snapshots
from tests.drawn import examples


@settings(max_examples=examples(100), deadline=None)
@given(snapshots(), snapshots(), st.randoms(use_true_random=False))
def test_a_row_of_small_changes_is_decided_as_if_each_were_seen_first(
    snapshot: Snapshot, other: Snapshot, choosing: random.Random
) -> None:
    """Plans are carried out or not, gangs end, jobs come and go, time passes."""
    memory = Memory()
    known = {job.facts.job for job in snapshot.pending} | {gang.facts.job for gang in snapshot.running}
    new = [job for job in other.pending if job.facts.job not in known and job.claim is None]
    for _ in range(6):
        plan = schedule(snapshot, memory)
        assert plan == schedule(snapshot)
        number = memory.shapes.number
        assert memory.sweeps.asked(snapshot, number) == Sweeps().asked(snapshot, number), "nothing is left of what is gone"
        match choosing.randrange(4):
            case 0:
                snapshot = ended(snapshot, choosing)
            case 1:
                snapshot = cancelled(snapshot, choosing)
            case 2:
                snapshot = started(snapshot, plan)
            case _ if new:
                snapshot = replace(snapshot, pending=(*snapshot.pending, new.pop()))
        snapshot = replace(snapshot, now_ms=snapshot.now_ms + choosing.choice((0, 1_000, 600_000)))


def ended(snapshot: Snapshot, choosing: random.Random) -> Snapshot:
    if not snapshot.running:
        return snapshot
    gone = choosing.choice(snapshot.running)
    nodes = moved(snapshot.nodes, gone.facts, gone.placement, 1)
    return replace(snapshot, nodes=nodes, running=tuple(gang for gang in snapshot.running if gang is not gone))


def cancelled(snapshot: Snapshot, choosing: random.Random) -> Snapshot:
    gone = choosing.choice(snapshot.pending) if snapshot.pending else None
    return replace(snapshot, pending=tuple(job for job in snapshot.pending if job is not gone))


def started(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """What the plan starts runs."""
    placed = {one.job: one.placement for one in plan.decisions if isinstance(one, Start)}
    nodes, gangs = snapshot.nodes, list(snapshot.running)
    for job in snapshot.pending:
        if job.facts.job in placed:
            placement = placed[job.facts.job]
            nodes = moved(nodes, job.facts, placement, -1)
            gangs.append(RunningJob(job.facts, AttemptId(f"{job.facts.job}.1"), placement, snapshot.now_ms))
    waiting = tuple(job for job in snapshot.pending if job.facts.job not in placed)
    return replace(snapshot, nodes=nodes, running=tuple(gangs), pending=waiting)


def moved(nodes: tuple[NodeFacts, ...], job: JobFacts, placement: Placement, sign: int) -> tuple[NodeFacts, ...]:
    """Nodes once the gang has let go (1), or has started. Those that it is not on stay the same objects."""
    fleet, names = Fleet.of(nodes), {part.node for part in placement.slices}
    if sign > 0:
        fleet.give_back(job.shape, placement)
    else:
        fleet.hold(job.shape, placement)
    return tuple(fleet.node(fleet.ground.row[node.node]) if node.node in names else node for node in nodes)
