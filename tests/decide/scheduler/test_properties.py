"""What holds for any fleet, any line and any policy."""

import random
from collections import Counter, defaultdict
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from phalanx.core import wire
from phalanx.core.devices import WHOLE, Placement
from phalanx.core.ids import JobId
from phalanx.core.policy import ANY, Queue
from phalanx.decide.scheduler import Plan, Snapshot, Start, schedule
from phalanx.decide.scheduler.memory import Memory
from tests.decide.scheduler.sharing import gang, job, world
from tests.decide.scheduler.snapshots import OF_TENANTS, snapshots
from tests.drawn import examples

SNAPSHOTS = snapshots() | snapshots(OF_TENANTS)


def devices(placement: Placement) -> set[tuple[str, int]]:
    return {(part.node, index) for part in placement.slices for index in part.devices}


def starts(plan: Plan) -> list[Start]:
    return [decision for decision in plan.decisions if isinstance(decision, Start)]


@settings(max_examples=examples(100), deadline=None)
@given(SNAPSHOTS)
def test_every_pending_job_gets_exactly_one_decision(snapshot: Snapshot) -> None:
    plan = schedule(snapshot)
    assert sorted(decision.job for decision in plan.decisions) == sorted(job.facts.job for job in snapshot.pending)


@settings(max_examples=examples(150), deadline=None)
@given(SNAPSHOTS)
def test_no_device_is_given_twice_and_shares_stay_within_the_device(snapshot: Snapshot) -> None:
    """Together with what running gangs hold: at most 1000 thousandths and the device's memory, in whole devices or in shares."""
    nodes = {str(node.node): node for node in snapshot.nodes}
    milli, memory = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    placements = [gang.placement for gang in snapshot.running] + [start.placement for start in starts(schedule(snapshot))]
    for part in (part for placement in placements for part in placement.slices):
        for index in part.devices:
            milli[part.node, index] += part.milli
            memory[part.node, index] += part.memory_bytes
    assert all(used <= WHOLE for used in milli.values())
    assert all(used <= nodes[name].device_memory_bytes for (name, _), used in memory.items())


@settings(max_examples=examples(150), deadline=None)
@given(SNAPSHOTS)
def test_a_gang_is_whole_on_nodes_that_will_do_or_absent(snapshot: Snapshot) -> None:
    jobs, nodes = {job.facts.job: job for job in snapshot.pending}, {str(node.node): node for node in snapshot.nodes}
    cpus, memory = defaultdict[str, float](float), Counter[str]()
    for start in starts(schedule(snapshot)):
        job, slices = jobs[start.job], start.placement.slices
        shape, request = job.facts.shape, job.facts.shape.request
        assert shape.fewest_nodes <= len(slices) <= shape.num_nodes
        assert len({part.node for part in slices}) == len(slices)
        kinds = {dict(nodes[part.node].devices)[index] for part in slices for index in part.devices}
        assert len(kinds) == 1
        assert not request.types or kinds <= set(request.types)
        for part in slices:
            assert len(set(part.devices)) == len(part.devices) == request.count
            assert part.milli == request.milli
            assert nodes[part.node].schedulable
            cpus[part.node] += shape.cpus
            memory[part.node] += shape.memory_bytes
            if job.claim is None:
                assert shape.needs <= nodes[part.node].features
                assert part.node not in job.avoids
                assert shape.spot != "never" or not nodes[part.node].spot
    assert all(used <= max(0.0, nodes[name].free_cpus) + 1e-6 for name, used in cpus.items())
    assert all(used <= nodes[name].free_memory_bytes for name, used in memory.items())


@settings(max_examples=examples(150), deadline=None)
@given(SNAPSHOTS)
def test_a_gang_lies_in_the_tiers_it_asks_for(snapshot: Snapshot) -> None:
    jobs, nodes = {job.facts.job: job for job in snapshot.pending}, {str(node.node): node for node in snapshot.nodes}

    def together(names: list[str], tier: str) -> bool:
        found = {nodes[name].labels.get(tier, f"alone {name}") for name in names}
        return len(found) <= 1

    for start in starts(schedule(snapshot)):
        job, names = jobs[start.job], [str(part.node) for part in start.placement.slices]
        shape = job.facts.shape
        if job.claim is None and shape.within is not None:
            assert together(names, shape.within)
        if job.claim is None and shape.group > 1:
            groups = [names[at : at + shape.group] for at in range(0, len(names), shape.group)]
            assert all(together(group, shape.group_within) for group in groups)


@settings(max_examples=examples(100), deadline=None)
@given(SNAPSHOTS, st.randoms(use_true_random=False))
def test_the_order_of_the_input_means_nothing(snapshot: Snapshot, shuffling: random.Random) -> None:
    nodes, running, pending = list(snapshot.nodes), list(snapshot.running), list(snapshot.pending)
    shuffling.shuffle(nodes)
    shuffling.shuffle(running)
    shuffling.shuffle(pending)
    shuffled = replace(snapshot, nodes=tuple(nodes), running=tuple(running), pending=tuple(pending))
    assert schedule(shuffled) == schedule(snapshot)


@settings(max_examples=examples(60), deadline=None)
@given(SNAPSHOTS)
def test_a_snapshot_that_travelled_is_decided_alike(snapshot: Snapshot) -> None:
    """Deterministic, and nothing hangs on which objects are the same."""
    again = wire.loads(Snapshot, wire.dumps(Snapshot, snapshot))
    assert schedule(again) == schedule(snapshot)


@settings(max_examples=examples(60), deadline=None)
@given(SNAPSHOTS, SNAPSHOTS, st.randoms(use_true_random=False))
def test_memory_changes_no_decision(first: Snapshot, second: Snapshot, choosing: random.Random) -> None:
    """Neither of the same fleet in part changed, nor of another one."""
    memory = Memory()
    schedule(first, memory)
    changed = tuple(
        replace(node, free=node.free[1:], schedulable=choosing.random() < 0.8) if choosing.random() < 0.2 else node
        for node in first.nodes
    )
    line = tuple(job for job in first.pending if choosing.random() < 0.8)
    for snapshot in (replace(first, nodes=changed, pending=line), first, second, first):
        assert schedule(snapshot, memory) == schedule(snapshot)


TIGHT = {"b": Queue(limit={"*": 3}), "b-1": Queue(parent="b"), "a": Queue(parent="b"), "default": Queue(limit={"H100": 2, "*": 1})}


@settings(max_examples=examples(120), deadline=None)
@given(snapshots())
def test_limits_hold_at_every_level(snapshot: Snapshot) -> None:
    """Nothing brings a queue, or one that it is part of, above its limit, whatever has yet to let go: who is ended for a job, and
    holds some of what that gets, is gone when it starts."""
    snapshot = replace(snapshot, policy=replace(snapshot.policy, queues=TIGHT))  # else few of them come near a limit
    plan, queues = schedule(snapshot), snapshot.policy.queues
    kinds = {(node.node, index): kind for node in snapshot.nodes for index, kind in node.devices}
    queue_of = {gang.facts.job: gang.facts.queue for gang in snapshot.running}
    queue_of |= {job.facts.job: job.facts.queue for job in snapshot.pending}
    before = [(gang.facts.job, gang.placement) for gang in snapshot.running]
    before += [(job.facts.job, job.claim) for job in snapshot.pending if job.claim is not None]
    now = {start.job: start.placement for start in starts(plan)} | {one.job: one.placement for one in plan.claims if one.placement}
    given_up = {one.job for one in plan.claims if one.placement is None}
    stay = [(job, held) for job, held in before if job not in now and job not in given_up]
    gangs, claims = {gang.facts.job: gang.placement for gang in snapshot.running}, {one.job: one.placement for one in plan.claims}
    gone = {one.job for one in plan.evictions if (claim := claims.get(one.claimant)) and devices(claim) & devices(gangs[one.job])}
    at_first = stay + [(start.job, start.placement) for start in starts(plan)]
    in_the_end = [(job, held) for job, held in stay if job not in gone] + list(now.items())

    def held(placements: list[tuple[JobId, Placement]], name: str, entry: str) -> int:
        limit = queues[name].limit
        return sum(
            part.milli
            for job, placement in placements
            if name in (queue_of[job], queues.get(queue_of[job], Queue()).parent)
            for part in placement.slices
            for index in part.devices
            if (kind := kinds[part.node, index]) == entry or (entry == ANY and kind not in limit)
        )

    for name, queue in queues.items():
        for entry, limit in queue.limit.items():
            most = max(limit * WHOLE, held(before, name, entry))
            assert held(at_first, name, entry) <= most and held(in_the_end, name, entry) <= most


ALIKE = st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([10, 50, 90]), st.sampled_from([(1, 1), (4, 1), (8, 1), (8, 2)]))
WAYS = st.sampled_from(
    [
        {},
        {"order": "fifo"},
        {"backfill": False},
        {"queues": {"a": {"weight": 3.0}}},
        {"queues": {"a": {"quota": {"H100": 12}}, "b": {"borrow": False}}, "preemption": {"min_runtime": "0s"}},
        {"queues": {"a": {"quota": {"H100": 8}, "lend": False}, "b": {"limit": {"H100": 10}}}},
    ]
)


@settings(max_examples=examples(300), deadline=None)
@given(WAYS, st.lists(ALIKE, max_size=5), st.lists(ALIKE, max_size=14))
def test_priority_is_never_inverted_and_equals_never_change_places(
    policy: dict[str, object], held: list[tuple[str, int, tuple[int, int]]], line: list[tuple[str, int, tuple[int, int]]]
) -> None:
    """Of jobs of one queue and one shape none starts while a higher one, or an equal and older one, has to wait."""
    running, left = [], 24
    for number, (queue, priority, (count, num_nodes)) in enumerate(held):
        if (num_nodes == 1 and count <= left % 8) or (left >= 16 and left % 8 == 0):
            running.append(gang(f"r-{number}", queue, count, num_nodes, priority=priority))
            left -= count * num_nodes
    pending = [
        job(f"j-{number}", queue, count, num_nodes, priority=priority)
        for number, (queue, priority, (count, num_nodes)) in enumerate(line)
    ]
    plan = schedule(world(policy, running, pending, nodes=3))
    started = {decision.job for decision in starts(plan)}
    promised = {one.job for one in plan.claims}
    for one in pending:
        for other in pending:
            first, then = one.facts, other.facts
            if (first.queue, first.shape) == (then.queue, then.shape) and then.job in started:
                before = (-first.priority, first.sequence) < (-then.priority, then.sequence)
                assert not before or first.job in started | promised


SMALL = st.tuples(st.sampled_from(["a", "b", "c", "d"]), st.sampled_from([10, 50, 90]), st.integers(0, 3).map(bool))


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(SMALL, max_size=8), st.lists(SMALL, max_size=10))
def test_a_guarantee_is_never_denied_while_borrowers_run(
    held: list[tuple[str, int, bool]], line: list[tuple[str, int, bool]]
) -> None:
    """Jobs of one device: whoever is within a quota starts, or gets the room of one that may be ended and that no quota covers."""
    quota = {"a": 3, "b": 2, "d": 1}
    policy = {"queues": {name: {"quota": {"H100": count}} for name, count in quota.items()}, "preemption": {"min_runtime": "0s"}}
    running = [
        gang(f"r-{number}", queue, priority=priority, preemptible=preemptible)
        for number, (queue, priority, preemptible) in enumerate(held)
    ]
    pending = [
        job(f"j-{number + 10}", queue, priority=priority, preemptible=preemptible)
        for number, (queue, priority, preemptible) in enumerate(line)
    ]
    firm = Counter(one.facts.queue for one in running if not one.facts.preemptible)
    assume(all(count <= quota.get(name, 0) for name, count in firm.items()))  # such jobs never borrow
    plan = schedule(world(policy, running, pending))
    got = {decision.job for decision in starts(plan)} | {one.job for one in plan.claims if one.placement is not None}
    ended = {evict.job for evict in plan.evictions}
    holds = Counter(one.facts.queue for one in running if one.facts.job not in ended)
    holds.update(one.facts.queue for one in pending if one.facts.job in got)
    denied = [job for job in pending if job.facts.job not in got and holds[job.facts.queue] < quota.get(job.facts.queue, 0)]
    for name in "abcd" if denied else "":
        stay = [one for one in running if one.facts.queue == name and one.facts.job not in ended]
        stay.sort(key=lambda one: (one.facts.preemptible, -one.facts.priority, one.facts.job))
        assert not any(one.facts.preemptible for one in stay[quota.get(name, 0) :])
