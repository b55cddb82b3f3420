"""What holds of evictions, claims and reservations, for any fleet, any line and any policy."""

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.devices import WHOLE, DeviceRequest, Placement
from phalanx.core.ids import JobId
from phalanx.core.policy import Policy, Preemption, Queue
from phalanx.decide.scheduler import Plan, Snapshot, schedule
from phalanx.decide.scheduler.memory import Memory
from phalanx.decide.scheduler.room.preemption import make_room
from phalanx.decide.scheduler.room.victims import lost_ms
from phalanx.decide.scheduler.round import Round
from phalanx.decide.scheduler.snapshot import JobFacts, PendingJob, Shape
from phalanx.decide.scheduler.where.fit import fit
from tests.decide.scheduler.closed_loop import MINUTE, NOW, Loop, fleet
from tests.decide.scheduler.snapshots import snapshots
from tests.drawn import examples

FOR_OTHERS = ("priority", "target", "reclaim", "booking", "shrink", "order")


SHAPES = st.builds(
    lambda count, milli, nodes, fewest, cpus, within: Shape(
        DeviceRequest(("H100",), 1 if milli < WHOLE else count, milli), nodes, min(nodes, fewest), float(cpus), within=within
    ),
    st.sampled_from([1, 2, 4, 4]),
    st.sampled_from([WHOLE, WHOLE, WHOLE, WHOLE, 500]),
    st.sampled_from([1, 1, 1, 2, 3]),
    st.sampled_from([0, 0, 1]),
    st.sampled_from([0, 0, 1, 10]),
    st.sampled_from([None, None, None, "domain"]),
)
ONES = st.tuples(
    SHAPES,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from([0, 0, 50, 60]),
    st.integers(0, 5),
    st.sampled_from([None, 90 * MINUTE]),
)
WAYS = st.builds(
    Policy,
    queues=st.sampled_from([{}, {"a": Queue(quota={"H100": 8}), "b": Queue(quota={"H100": 4})}, {"a": Queue(weight=3.0)}]),
    preemption=st.builds(
        Preemption, enabled=st.sampled_from([True, True, False]), max_victims=st.sampled_from([1, 3, 64]), max_evictions=st.just(3)
    ),
)


def job_of(name: str, number: int, one: tuple[Shape, str, int, int, int | None]) -> JobFacts:
    shape, queue, priority, stays, limit_ms = one
    more = {"queue": queue, "priority": priority, "preemptible": stays > 0, "limit_ms": limit_ms}
    return JobFacts(JobId(f"{name}-{number}"), shape, submitted_ms=NOW - 1000 + number, sequence=number, **more)  # type: ignore[arg-type]


@st.composite
def crowded(draw: st.DrawFn) -> Snapshot:
    """Gangs fill most of a small fleet, in the way that the scheduler itself puts them there; a line of others wants in, of which
    some come before them. Some gangs were evicted often, some have just started, some are ending."""
    nodes = [replace(node, cpus=32.0, labels={"domain": f"d{number // 2}"}) for number, node in enumerate(fleet(4, 4))]
    loop = Loop(tuple(nodes))
    held = draw(st.lists(ONES, min_size=3, max_size=12))
    loop.pending = [PendingJob(job_of("r", number, one)) for number, one in enumerate(held)]
    loop.step(0)
    running = [
        replace(
            gang,
            placed_ms=NOW - draw(st.sampled_from([1, 30, 60])) * MINUTE,
            saved_ms=draw(st.sampled_from([0, NOW - MINUTE])),
            evictions=draw(st.sampled_from([0, 0, 3])),
            stopping=draw(st.integers(0, 6)) == 0,
        )
        for gang in loop.running
    ]
    loop.running, loop.policy = running, draw(WAYS)
    line = draw(st.lists(ONES, min_size=1, max_size=5))
    loop.pending = [
        PendingJob(replace(facts, priority=facts.priority + draw(st.sampled_from([0, 25, 25]))))
        for facts in (job_of("j", 100 + number, one) for number, one in enumerate(line))
    ]
    return loop.snapshot()


def promised(snapshot: Snapshot, plan: Plan) -> dict[JobId, Placement]:
    """Who will have what, once all of the plan is done: of starts, claims and what gangs of another size keep."""
    found = {job.facts.job: job.claim for job in snapshot.pending if job.claim is not None}
    for claim in plan.claims:
        if claim.placement is None:
            found.pop(claim.job, None)
    found.update({claim.job: claim.placement for claim in plan.claims if claim.placement is not None})
    found.update({one.job: one.placement for one in plan.decisions if one.kind == "start"})
    found.update({one.job: one.keeps for one in plan.evictions if one.keeps is not None})
    return found


@settings(max_examples=examples(200), deadline=None)
@given(crowded() | snapshots())
def test_nobody_is_ended_unless_a_placement_results(snapshot: Snapshot) -> None:
    """Once the victims and those that end anyway are gone, every claim is free and whole, and holds of each victim."""
    plan = schedule(snapshot)
    jobs = {job.facts.job: job for job in snapshot.pending}
    gangs = {gang.facts.job: gang for gang in snapshot.running}
    nodes = {node.node: node for node in snapshot.nodes}
    ended = {one.job for one in plan.evictions}
    has = promised(snapshot, plan)
    held, cpus = Counter[tuple[str, int]](), Counter[str]()
    stay = {job: gang.placement for job, gang in gangs.items() if job not in ended and not gang.stopping}
    shapes = {job: gang.facts.shape for job, gang in gangs.items()} | {job: one.facts.shape for job, one in jobs.items()}
    for job, placement in (*stay.items(), *has.items()):
        for part in placement.slices:
            cpus[part.node] += int(shapes[job].cpus)
            for index in part.devices:
                held[part.node, index] += part.milli
    assert all(milli <= WHOLE for milli in held.values())
    claims = {claim.job: claim.placement for claim in plan.claims if claim.placement is not None}
    for job, claim in claims.items():
        shape = shapes[job]
        assert shape.fewest_nodes <= len(claim.slices) <= shape.num_nodes
        for part in claim.slices:
            assert len(part.devices) == shape.request.count and part.milli == shape.request.milli
            assert nodes[part.node].schedulable and cpus[part.node] <= nodes[part.node].cpus
            assert part.node not in jobs[job].avoids
    for one in plan.evictions:
        if one.cause in FOR_OTHERS:
            assert {part.node for part in claims[one.claimant].slices} & {part.node for part in gangs[one.job].placement.slices}


@settings(max_examples=examples(200), deadline=None)
@given(crowded() | snapshots())
def test_who_is_ended_and_how_many(snapshot: Snapshot) -> None:
    plan, preemption = schedule(snapshot), snapshot.policy.preemption
    gangs = {gang.facts.job: gang for gang in snapshot.running}
    priority = {job.facts.job: job.facts.priority for job in snapshot.pending}
    bounds = sorted(one.priority for one in snapshot.policy.classes.values())
    assert len({one.job for one in plan.evictions}) == len(plan.evictions)
    assert all(count <= preemption.max_victims for count in Counter(one.claimant for one in plan.evictions).values())
    for one in plan.evictions:
        gang = gangs[one.job]
        assert gang.facts.preemptible and not gang.stopping
        assert snapshot.now_ms - gang.placed_ms >= preemption.min_runtime_ms
        assert one.lost_ms == lost_ms(gang, snapshot.now_ms)
        if one.cause in ("priority", "target"):
            assert preemption.enabled
            assert any(gang.facts.priority < bound <= priority[one.claimant] for bound in bounds), "of a lower class"
        if one.cause == "reclaim":
            assert preemption.reclaim
        if one.cause == "shrink":
            assert gang.facts.priority <= priority[one.claimant]
        if one.keeps is not None:
            assert gang.facts.shape.fewest_nodes <= len(one.keeps.slices) <= gang.facts.shape.num_nodes


@settings(max_examples=examples(200), deadline=None)
@given(crowded())
def test_room_is_made_wherever_all_who_may_be_ended_leave_enough(snapshot: Snapshot) -> None:
    """Found out device by device. Nobody is ended where what ends anyway is enough."""
    policy = Policy(preemption=Preemption(max_victims=64, reclaim=False))
    for job in snapshot.pending:
        round_ = Round.of(replace(snapshot, policy=policy), Memory())
        victims, shape = round_.victims, job.facts.shape
        lower = np.flatnonzero(victims.causes(job, "H100", 1)[1]).tolist()
        if "H100" not in round_.eligible(shape):
            continue
        trial, fitting = round_.fleet.copy(), list[bool]()
        for leaving in (np.flatnonzero(victims.ending).tolist(), lower):
            for number in leaving:
                trial.give_back(victims.gangs[number].facts.shape, victims.releasable(number))
            fitting.append(fit(shape, "H100", trial, trial.free["H100"]) is not None)
        claim = make_room(job, ("H100",), round_)
        assert (claim is not None) == (fitting == [False, True])


LIMITS = st.sampled_from([None, 10 * MINUTE, 30 * MINUTE, 60 * MINUTE, 200 * MINUTE])
LINE = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), LIMITS), min_size=1, max_size=10)


def asks(name: str, sequence: int, count: int, num_nodes: int, limit_ms: int | None) -> JobFacts:
    shape = Shape(DeviceRequest(("H100",), count), num_nodes)
    return JobFacts(JobId(name), shape, submitted_ms=NOW - 1000 + sequence, sequence=sequence, limit_ms=limit_ms)


@settings(max_examples=examples(150), deadline=None)
@given(LINE, LINE)
def test_nothing_that_starts_behind_the_head_delays_it(
    held: list[tuple[int, int, int | None]], line: list[tuple[int, int, int | None]]
) -> None:
    """Where the head's start is known, it is as early when all that was started with it is there as if it were alone."""
    first = Loop(fleet(4, 4))
    for number, one in enumerate(held):
        first.pending.append(PendingJob(asks(f"r-{number}", number, *one)))
    first.step(0)
    first.now_ms += 5 * MINUTE
    loop = Loop(first.nodes, running=first.running, now_ms=first.now_ms)
    loop.pending = [PendingJob(asks(f"j-{number}", 100 + number, *one)) for number, one in enumerate(line)]
    plan = loop.step(0)
    for kept in plan.reservations:
        loop.pending = [job for job in loop.pending if job.facts.job == kept.job]
        for again in schedule(loop.snapshot()).reservations:
            if kept.start_ms is not None:
                assert again.start_ms is not None and again.start_ms <= kept.start_ms


@settings(max_examples=examples(20), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 12)), min_size=4, max_size=12),
    st.booleans(),
    st.integers(2, 4),
    st.sampled_from([0, 4, 8]),
)
def test_a_stream_of_small_jobs_starves_no_gang(
    stream: list[tuple[int, int]], are_limited: bool, num_nodes: int, idle_quota: int
) -> None:
    """The wait is bounded by what runs and stands before it: none of the stream that comes later goes on for longer. Nor does it
    matter that another queue, which has no jobs, is guaranteed some, which only the large one would need to borrow."""
    owner = {"owner": Queue(quota={"H100": idle_quota})} if idle_quota else {}
    loop = Loop(fleet(4, 4), policy=Policy(queues=owner))
    longest_ms = max(ms for _, ms in stream) * 10 * MINUTE
    number = 0

    def more() -> None:
        nonlocal number
        count, tens = stream[number % len(stream)]
        loop.runs_ms[f"s-{number}"] = tens * 10 * MINUTE
        loop.submit(replace(asks(f"s-{number}", number, count, 1, tens * 10 * MINUTE if are_limited else None), priority=50))
        number += 1

    for _ in range(6):
        more()
    loop.step()
    loop.submit(replace(asks("wide", 0, 4, num_nodes, None), priority=50))
    came_ms = loop.now_ms
    while not loop.where("wide"):
        more()
        more()
        loop.step(5 * MINUTE)
        assert loop.now_ms - came_ms <= 4 * longest_ms + 60 * MINUTE


QUEUED = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 4]), st.integers(1, 3), st.sampled_from("abc"), st.sampled_from([0, 50, 80]), st.integers(0, 30)
    ),
    min_size=6,
    max_size=16,
)


@settings(max_examples=examples(15), deadline=None)
@given(QUEUED, WAYS)
def test_nobody_ends_the_one_it_was_ended_for_and_it_comes_to_rest(
    line: list[tuple[int, int, str, int, int]], policy: Policy
) -> None:
    """Jobs that never end arrive over half an hour, in queues with quotas, weights or neither. Then, hours later, nothing moves."""
    loop = Loop(fleet(4, 4), policy, saves_ms=MINUTE)
    for minute in range(31):
        for number, (count, num_nodes, queue, priority, at) in enumerate(line):
            if at == minute:
                loop.submit(replace(asks(f"j-{number}", number, count, num_nodes, None), queue=queue, priority=priority))
        loop.step()
    loop.ended_for.clear()  # who comes may change what queues deserve, and turn round who makes room for whom
    loop.steps(60, 5 * MINUTE)
    evicted = len(loop.evicted)
    loop.steps(60, 5 * MINUTE)
    assert len(loop.evicted) == evicted
    assert not {(claimant, victim) for victim, claimant in loop.ended_for} & loop.ended_for
