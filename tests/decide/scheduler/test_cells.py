"""Guarantees in whole cells: a tenant waits no longer than in a private cluster of its own."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.ids import JobId, NodeId
from phalanx.core.policy import Cells
from phalanx.core.reasons import NoRoom
from phalanx.decide.scheduler import schedule
from phalanx.decide.scheduler.plan import Start
from phalanx.decide.scheduler.quotas.cells import counts, devices
from phalanx.decide.scheduler.snapshot import JobFacts, PendingJob, Snapshot
from phalanx.decide.scheduler.where.ground import survey
from tests.decide.scheduler.sharing import HOUR, NOW, after, evicted, gang, job, reasons, settled, started, world

AT_ONCE = {"preemption": {"min_runtime": "0s"}}


def cells(count: int, tier: str = "node", **more: Any) -> dict[str, Any]:
    return {"cells": {"type": "H100", "count": count, "tier": tier}, "borrow": False, **more}


def policy(**queues: dict[str, Any]) -> dict[str, Any]:
    return {"queues": queues, **AT_ONCE}


def where(snapshot: Snapshot, name: str) -> set[str]:
    return {part.node for one in snapshot.running if one.facts.job == name for part in one.placement.slices}


def racked(snapshot: Snapshot, size: int = 2) -> Snapshot:
    nodes = tuple(replace(node, labels={"rack": str(number // size)}) for number, node in enumerate(snapshot.nodes))
    return replace(snapshot, nodes=nodes)


def test_cells_are_counted_in_those_of_the_largest_size() -> None:
    snapshot = racked(world({}, nodes=5))
    ground = survey(snapshot.nodes)
    assert counts(ground) == {("H100", "node"): 5, ("H100", "domain"): 0, ("H100", "rack"): 2, ("H100", "block"): 0}
    assert devices(Cells(type="H100", count=2, tier="rack"), ground) == 32
    assert devices(Cells(type="T4", count=2), ground) == 0


def test_small_jobs_of_others_do_not_scatter_what_is_guaranteed() -> None:
    """Eight small gangs, one on each of eight nodes: the tenant's gang of four whole nodes gets four of them at once."""
    lodgers = [
        replace(gang(f"s-{number}", "z"), placement=Placement((NodeSlice(NodeId(f"h100-{number}"), (0,)),))) for number in range(8)
    ]
    snapshot = world(policy(a=cells(4)), lodgers, [job("wide-9", "a", 8, 4)], nodes=8)
    plan = schedule(snapshot)
    assert len(evicted(plan)) == 4
    assert {one.cause for one in plan.evictions} == {"reclaim"}
    last, _ = settled(snapshot)
    assert "wide-9" in {one.facts.job for one in last.running}
    assert len(last.running) == 9, "the others found room again"


def test_a_tenant_without_a_right_to_borrow_waits_for_its_own_cells_and_is_told_so() -> None:
    plan = schedule(world(policy(a=cells(1)), [gang("a-1", "a", 6)], [job("a-2", "a", 4), job("a-3", "a", 2)], nodes=3))
    assert reasons(plan)["a-2"] == NoRoom(asked=4, free=2, held=6)
    assert started(plan) == [] or started(plan) == ["a-3"]


def test_a_tenant_that_may_borrow_does_and_gives_back() -> None:
    own = policy(a=cells(1, borrow=True), b=cells(1))
    last, _ = settled(world(own, [], [job("a-1", "a", 8), job("a-2", "a", 8)], nodes=2))
    assert {one.facts.job for one in last.running} == {"a-1", "a-2"}
    asked = replace(last, pending=(job("b-3", "b", 8),))
    plan = schedule(asked)
    assert evicted(plan) == ["a-2"], "the older one is at home"
    last, _ = settled(asked)
    assert {one.facts.job for one in last.running} == {"a-1", "b-3"}


def test_what_cannot_be_ended_has_no_more_cells_than_nobody_is_guaranteed() -> None:
    line = [job(f"z-{number}", "z", 8, preemptible=False) for number in range(4)]
    last, _ = settled(world(policy(a=cells(2)), [], line, nodes=3))
    assert [one.facts.job for one in last.running] == ["z-0"]
    soft = [job(f"y-{number}", "z", 8) for number in range(4)]
    last, _ = settled(world(policy(a=cells(2)), [], soft, nodes=3))
    assert len(last.running) == 3
    last, _ = settled(replace(last, pending=(job("a-9", "a", 8, 2),)))
    assert "a-9" in {one.facts.job for one in last.running}


def test_cells_of_racks_are_taken_whole() -> None:
    snapshot = racked(world(policy(a=cells(1, "rack")), [gang("z-1", "z", 8)], [job("a-2", "a", 8, 2)], nodes=4))
    last, plans = settled(snapshot)
    assert not any(plan.evictions for plan in plans), "the other rack is empty"
    assert where(last, "a-2") == {"h100-2", "h100-3"}
    full = racked(world(policy(a=cells(1, "rack")), [gang("z-1", "z", 8, 3)], [job("a-2", "a", 8, 2)], nodes=4))
    last, plans = settled(full)
    assert [evicted(plan) for plan in plans if plan.evictions] == [["z-1"]]
    assert len(where(last, "a-2")) == 2


def test_nobody_elses_priority_ends_a_gang_at_home() -> None:
    snapshot = world(policy(a=cells(1)), [gang("a-1", "a", 8, priority=0)], [job("z-2", "z", 8, priority=100)])
    assert evicted(schedule(snapshot)) == []
    own = world(policy(a=cells(1)), [gang("a-1", "a", 8, priority=0)], [job("a-2", "a", 8, priority=100)])
    last, _ = settled(own)
    assert [one.facts.job for one in last.running] == ["a-2"], "among themselves priority decides"


@dataclass(frozen=True)
class Work:
    """A job that comes `at_ms` and runs for `lasts_ms`."""

    facts: JobFacts
    at_ms: int
    lasts_ms: int


def first_starts(start: Snapshot, work: Sequence[Work]) -> dict[str, int]:
    """When each job starts for the first time: a loop over arrivals and ends, deciding at each until nothing changes. A gang that
    is evicted does all again."""
    snapshot, begun, first = start, dict[str, int](), dict[str, int]()
    lasts = {one.facts.job: one.lasts_ms for one in work}
    coming = sorted(work, key=lambda one: (one.at_ms, one.facts.sequence))
    now = NOW
    for _ in range(2000):
        ended = {name for name, at in begun.items() if at + lasts[JobId(name)] <= now}
        begun = {name: at for name, at in begun.items() if name not in ended}
        arrived = [PendingJob(one.facts) for one in coming if one.at_ms <= now]
        coming = [one for one in coming if one.at_ms > now]
        running = tuple(one for one in snapshot.running if one.facts.job not in ended)
        snapshot = freed(replace(snapshot, now_ms=now, running=running, pending=(*snapshot.pending, *arrived)))
        for _ in range(30):
            plan = schedule(snapshot)
            if not plan.evictions and not plan.claims and not any(isinstance(one, Start) for one in plan.decisions):
                break
            snapshot = after(snapshot, plan, passed_ms=0)
            for gone in plan.evictions:
                begun.pop(gone.job, None)
            for decision in plan.decisions:
                if isinstance(decision, Start):
                    begun[decision.job] = now
                    first.setdefault(decision.job, now)
        else:
            raise AssertionError("not settled")
        moments = [at + lasts[JobId(name)] for name, at in begun.items()] + [one.at_ms for one in coming]
        if not moments:
            return first
        now = min(moments)
    raise AssertionError("no end")


def freed(snapshot: Snapshot) -> Snapshot:
    held = {(part.node, index) for one in snapshot.running for part in one.placement.slices for index in part.devices}
    nodes = tuple(
        replace(node, free=tuple(index for index, _ in node.devices if (node.node, index) not in held)) for node in snapshot.nodes
    )
    return replace(snapshot, nodes=nodes)


SHAPES = st.sampled_from([(1, 1), (3, 1), (4, 1), (8, 1), (4, 2), (8, 2)])
LINES = st.sampled_from(["a", "a", "b", "z", "y"])
PARTS = st.tuples(LINES, SHAPES, st.integers(0, 8), st.integers(1, 6), st.booleans(), st.sampled_from([10, 50, 80]))
WAYS = st.sampled_from([{}, {"order": "fifo"}, {"backfill": False}, {"classes": {}}])
Part = tuple[str, tuple[int, int], int, int, bool, int]


def works(parts: Iterable[Part], guaranteed: Mapping[str, int]) -> list[Work]:
    """Tenants' jobs are of one priority, and of whole nodes where there are several: else which of two nodes that are as full a job
    is put on hangs on their names, and that they have other names here than there may do good or harm."""
    found = []
    for number, (queue, (count, num_nodes), at, lasts, preemptible, priority) in enumerate(parts):
        devices_each = 8 if guaranteed.get(queue, 0) > 1 else count
        level = 50 if queue in guaranteed else priority
        asks = job(f"j-{number}", queue, devices_each, num_nodes, preemptible=preemptible, priority=level).facts
        found.append(Work(replace(asks, submitted_ms=NOW + at * HOUR), NOW + at * HOUR, lasts * HOUR))
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(PARTS, min_size=2, max_size=14), WAYS, st.integers(1, 2), st.integers(1, 2))
def test_a_tenant_waits_no_longer_than_in_a_private_cluster_of_its_quota(
    parts: list[Part], way: dict[str, Any], of_a: int, of_b: int
) -> None:
    """Whatever the others do (HiveD's test)."""
    guaranteed = {"a": of_a, "b": of_b}
    work = works(parts, guaranteed)
    shared = first_starts(world({**policy(a=cells(of_a), b=cells(of_b)), **way}, nodes=4), work)
    for tenant, count in guaranteed.items():
        own = [one for one in work if one.facts.queue == tenant]
        private = first_starts(world({**AT_ONCE, **way}, nodes=count), own)
        for name, start_ms in private.items():
            assert shared[name] <= start_ms, (name, shared, private)


def test_without_cells_the_property_does_not_hold() -> None:
    """The test can fail: with as many devices guaranteed, but not in cells, others' jobs that cannot be ended scatter them."""
    small: list[Part] = [("z", (3, 1), 0, 6, False, 50)] * 4
    work = works([*small, ("a", (8, 2), 1, 1, True, 50)], {"a": 2})
    spread = policy(a={"quota": {"H100": 16}, "borrow": False})
    assert first_starts(world(spread, nodes=4), work)["j-4"] >= NOW + HOUR
    assert first_starts(world(policy(a=cells(2)), nodes=4), work)["j-4"] == NOW + HOUR


def test_a_claim_on_cells_binds_them() -> None:
    lodger = gang("z-1", "z", 8)
    snapshot = world(policy(a=cells(1), b=cells(1)), [lodger], [], nodes=2)
    claimed = replace(job("a-2", "a", 8), claim=snapshot.running[0].placement)
    running = (replace(snapshot.running[0], stopping=True, evicted_for=JobId("a-2")),)
    plan = schedule(replace(snapshot, running=running, pending=(claimed, job("b-3", "b", 8))))
    assert started(plan) == ["b-3"]
    assert evicted(plan) == []
