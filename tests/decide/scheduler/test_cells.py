"""Guarantees in whole cells: a tenant waits no longer than in a private cluster of its own."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.devices import DeviceRequest, NodeSlice, Placement
from phalanx.core.ids import JobId, NodeId
from phalanx.core.policy import Cells
from phalanx.core.policy_parse import parse_policy
from phalanx.core.reasons import Kept, MakingRoom, NoRoom, OverBudget, OverLimit
from phalanx.decide.scheduler import schedule
from phalanx.decide.scheduler.plan import Start
from phalanx.decide.scheduler.quotas.cells import counts, devices
from phalanx.decide.scheduler.snapshot import JobFacts, PendingJob, RunningJob, Share, Snapshot, Usage
from phalanx.decide.scheduler.where.ground import survey
from tests.decide.scheduler import closed_loop
from tests.decide.scheduler.sharing import HOUR, MINUTE, NOW, after, evicted, gang, job, reasons, settled, started, world
from tests.drawn import examples

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
    none = (0, 0)
    assert counts(ground) == {
        ("H100", "node"): (5, 8), ("H100", "domain"): none, ("H100", "rack"): (2, 16), ("H100", "block"): none,
    }  # fmt: skip
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


def test_who_would_fit_into_anothers_cell_is_told_whose_it_is() -> None:
    own = policy(a=cells(1), b=cells(1, borrow=True))
    plan = schedule(world(own, [gang("a-1", "a", 2), gang("b-1", "b", 8)], [job("b-9", "b", 5)], nodes=2))
    assert reasons(plan)["b-9"] == Kept("other queues, in whose cells they are", None)


@pytest.mark.parametrize("devices", [5, 8])
def test_a_head_waits_for_its_own_cells_and_keeps_nothing_of_others(devices: int) -> None:
    own = policy(a=cells(1), b=cells(1, borrow=True))
    plan = schedule(world(own, [gang("a-1", "a", 2), gang("b-1", "b", 8)], [job("b-9", "b", devices)], nodes=2))
    assert [[part.node for part in kept.placement.slices] for kept in plan.reservations] == [["h100-1"]]


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


def test_a_spent_budget_above_the_tenant_stops_its_jobs_at_home_too() -> None:
    """Also those that would take the place of their own tenant's gangs, and so no more devices than it has."""
    spent = {"gpu_hours": 1, "at": "stop"}
    queues = policy(org={"budget": spent}, a={"parent": "org", **cells(1)})
    for running in ([], [gang("a-1", "a", 8, priority=0)]):
        line = [job("a-2", "a", 8, priority=100)]
        plan = schedule(world(queues, running, line, nodes=2, usage={"org": Usage(spent_ms=2 * HOUR)}))
        assert (started(plan), evicted(plan)) == ([], []) and isinstance(reasons(plan)["a-2"], OverBudget)


def test_a_job_at_home_that_takes_more_than_its_victims_had_of_a_device_is_held_to_the_limit_above() -> None:
    def share(name: str, milli: int, at: int) -> RunningJob:
        one = gang(name, "a", 1, priority=0)
        shape = replace(one.facts.shape, request=DeviceRequest(("H100",), 1, milli))
        placement = Placement((NodeSlice(NodeId("h100-0"), (at,), milli),))
        return replace(one, facts=replace(one.facts, shape=shape), placement=placement)

    for limit, ended in ((4, []), (5, ["a-2"])):
        queues = policy(org={"limit": {"H100": limit}}, a={"parent": "org", **cells(1)})
        running = [gang("a-1", "a", 3, priority=100), share("a-2", 250, 3), share("a-3", 500, 4)]
        snapshot = world(queues, running, [job("a-9", "a", 1, priority=100)], devices=5)
        node = replace(snapshot.nodes[0], free=(), shares=(Share(3, 750, 0), Share(4, 500, 0)))
        plan = schedule(replace(snapshot, nodes=(node,)))
        assert evicted(plan) == ended and isinstance(reasons(plan)["a-9"], MakingRoom if ended else OverLimit)


@dataclass(frozen=True)
class Work:
    """A job that comes `at_ms` and runs for `lasts_ms`."""

    facts: JobFacts
    at_ms: int
    lasts_ms: int


@dataclass(frozen=True)
class Run:
    """When each job starts for the first time, and when it is done."""

    first: dict[str, int]
    ends: dict[str, int]


def run(start: Snapshot, work: Sequence[Work], ends: Mapping[str, int] | None = None) -> Run:
    """A loop over arrivals and ends, deciding at each until nothing changes. A gang that is evicted does all again. ends: when
    jobs are over, whether they run or wait."""
    snapshot, begun, first, over = start, dict[str, int](), dict[str, int](), dict[str, int]()
    lasts = {one.facts.job: one.lasts_ms for one in work}
    coming = sorted(work, key=lambda one: (one.at_ms, one.facts.sequence))
    now = NOW
    for _ in range(2000):
        due = {name: at + lasts[JobId(name)] for name, at in begun.items()} if ends is None else ends
        gone = {name for name, at in due.items() if at <= now}
        over.update((name, now) for name in gone if name not in over)
        begun = {name: at for name, at in begun.items() if name not in gone}
        arrived = [PendingJob(one.facts) for one in coming if one.at_ms <= now]
        coming = [one for one in coming if one.at_ms > now]
        running = tuple(one for one in snapshot.running if one.facts.job not in gone)
        pending = tuple(one for one in (*snapshot.pending, *arrived) if one.facts.job not in gone)
        snapshot = freed(replace(snapshot, now_ms=now, running=running, pending=pending))
        for _ in range(30):
            plan = schedule(snapshot)
            if not plan.evictions and not plan.claims and not any(isinstance(one, Start) for one in plan.decisions):
                break
            snapshot = after(snapshot, plan, passed_ms=0)
            for evict in plan.evictions:
                begun.pop(evict.job, None)
            for decision in plan.decisions:
                if isinstance(decision, Start):
                    begun[decision.job] = now
                    first.setdefault(decision.job, now)
        else:
            raise AssertionError("not settled")
        due = {name: at + lasts[JobId(name)] for name, at in begun.items()} if ends is None else ends
        moments = [at for at in due.values() if at > now] + [one.at_ms for one in coming]
        if not moments:
            return Run(first, over)
        now = min(moments)
    raise AssertionError("no end")


def freed(snapshot: Snapshot) -> Snapshot:
    held = {(part.node, index) for one in snapshot.running for part in one.placement.slices for index in part.devices}
    nodes = tuple(
        replace(node, free=tuple(index for index, _ in node.devices if (node.node, index) not in held)) for node in snapshot.nodes
    )
    return replace(snapshot, nodes=nodes)


SHAPES = st.sampled_from([(1, 1), (3, 1), (4, 1), (8, 1), (4, 2), (8, 2)])
LINES = st.sampled_from(["a", "a", "b", "b", "z", "y"])
PARTS = st.tuples(LINES, SHAPES, st.integers(0, 8), st.integers(1, 6), st.booleans(), st.sampled_from([10, 50, 80]))
WAYS = st.sampled_from([{}, {"order": "fifo"}, {"backfill": False}, {"classes": {}}])
CELLS = st.sampled_from([("node", 1), ("node", 2), ("domain", 1)])
RUNTIMES = st.sampled_from(["0s", "30m"])
Part = tuple[str, tuple[int, int], int, int, bool, int]


def works(parts: Iterable[Part], guaranteed: Mapping[str, int], priorities: bool = False) -> list[Work]:
    """Tenants' jobs are of whole nodes where there are several: else which of two nodes that are as full a job is put on hangs on
    their names, and that they have other names here than there may do good or harm. And of one priority, if nothing is said."""
    found = []
    for number, (queue, (count, num_nodes), at, lasts, preemptible, priority) in enumerate(parts):
        devices_each = 8 if guaranteed.get(queue, 0) > 1 else count
        level = priority if priorities or queue not in guaranteed else 50
        asks = job(f"j-{number}", queue, devices_each, num_nodes, preemptible=preemptible, priority=level).facts
        found.append(Work(replace(asks, submitted_ms=NOW + at * HOUR), NOW + at * HOUR, lasts * HOUR))
    return found


def in_pairs(snapshot: Snapshot) -> Snapshot:
    """Domains of two nodes."""
    nodes = tuple(replace(node, labels={"domain": str(number // 2)}) for number, node in enumerate(snapshot.nodes))
    return replace(snapshot, nodes=nodes)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(PARTS, min_size=2, max_size=14), WAYS, CELLS, CELLS)
def test_a_tenant_waits_no_longer_than_in_a_private_cluster_of_its_quota(
    parts: list[Part], way: dict[str, Any], of_a: tuple[str, int], of_b: tuple[str, int]
) -> None:
    """Whatever the others do (HiveD's test)."""
    check(parts, {**AT_ONCE, **way}, {"a": of_a, "b": of_b}, borrow=False)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(PARTS, min_size=2, max_size=14), WAYS, RUNTIMES, CELLS, CELLS)
def test_nor_does_a_tenant_that_borrows(
    parts: list[Part], way: dict[str, Any], min_runtime: str, of_a: tuple[str, int], of_b: tuple[str, int]
) -> None:
    """Nor when everybody runs what may be ended wherever there is room, and does all again once it is ended. Jobs are of one
    priority; else see the next test."""
    check(parts, {"preemption": {"min_runtime": min_runtime}, **way}, {"a": of_a, "b": of_b}, borrow=True)


def check(parts: list[Part], way: dict[str, Any], of: Mapping[str, tuple[str, int]], borrow: bool) -> None:
    sizes = sizes_of(of)
    work = works(parts, sizes)
    shared = run(shared_by(of, way, borrow), work)
    for tenant, size in sizes.items():
        private = run(in_pairs(world(way, nodes=size)), [one for one in work if one.facts.queue == tenant])
        for name, start_ms in private.first.items():
            assert shared.first[name] <= start_ms, (name, shared, private)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(PARTS, min_size=2, max_size=14), WAYS, RUNTIMES, CELLS, CELLS)
def test_cells_are_decided_as_the_private_cluster_is(
    parts: list[Part], way: dict[str, Any], min_runtime: str, of_a: tuple[str, int], of_b: tuple[str, int]
) -> None:
    """Of any priorities: no job starts later than in a private cluster where each job is over when it is over here. What is done
    sooner since it borrowed makes room sooner, and whoever comes next may take that before one of a higher priority arrives, as in
    any cluster where a job is done sooner than before (Graham's anomalies)."""
    of, way = {"a": of_a, "b": of_b}, {"preemption": {"min_runtime": min_runtime}, **way}
    sizes = sizes_of(of)
    work = works(parts, sizes, priorities=True)
    shared = run(shared_by(of, way, borrow=True), work)
    for tenant, size in sizes.items():
        own = [one for one in work if one.facts.queue == tenant]
        private = run(in_pairs(world(way, nodes=size)), own, shared.ends)
        for name, start_ms in private.first.items():
            assert shared.first[name] <= start_ms, (name, shared, private)


def sizes_of(of: Mapping[str, tuple[str, int]]) -> dict[str, int]:
    """Nodes of each tenant."""
    return {tenant: count * (2 if tier == "domain" else 1) for tenant, (tier, count) in of.items()}


def shared_by(of: Mapping[str, tuple[str, int]], way: dict[str, Any], borrow: bool) -> Snapshot:
    queues = {tenant: cells(count, tier, borrow=borrow) for tenant, (tier, count) in of.items()}
    return in_pairs(world({"queues": queues, **way}, nodes=4))


def test_without_cells_the_property_does_not_hold() -> None:
    """The test can fail: with as many devices guaranteed, but not in cells, others' jobs that cannot be ended scatter them."""
    small: list[Part] = [("z", (3, 1), 0, 6, False, 50)] * 4
    work = works([*small, ("a", (8, 2), 1, 1, True, 50)], {"a": 2})
    spread = policy(a={"quota": {"H100": 16}, "borrow": False})
    assert run(world(spread, nodes=4), work).first["j-4"] >= NOW + HOUR
    assert run(world(policy(a=cells(2)), nodes=4), work).first["j-4"] == NOW + HOUR


def test_a_claim_on_cells_binds_them() -> None:
    lodger = gang("z-1", "z", 8)
    snapshot = world(policy(a=cells(1), b=cells(1)), [lodger], [], nodes=2)
    claimed = replace(job("a-2", "a", 8), claim=snapshot.running[0].placement)
    running = (replace(snapshot.running[0], stopping=True, evicted_for=JobId("a-2")),)
    plan = schedule(replace(snapshot, running=running, pending=(claimed, job("b-3", "b", 8))))
    assert started(plan) == ["b-3"]
    assert evicted(plan) == []


def borrowing(name: str, queue: str, node: int, **more: Any) -> RunningJob:
    """A gang on a whole node beyond its queue's cells."""
    placement = Placement((NodeSlice(NodeId(f"h100-{node}"), tuple(range(8))),), borrowed=True)
    return replace(gang(name, queue, 8, **more), placement=placement)


def test_a_gang_that_borrows_still_waits_for_its_turn_at_home() -> None:
    """It is not at home because it runs: the job before it gets the cell."""
    running = [gang("a-0", "a", 8), borrowing("a-2", "a", 1)]
    last, _ = settled(world(policy(a=cells(1, borrow=True)), running, [job("a-1", "a", 8, preemptible=False)], nodes=2))
    assert {one.facts.job: one.placement.borrowed for one in last.running} == {"a-0": False, "a-2": True}
    ended = tuple(one for one in last.running if one.facts.job != "a-0")
    last, plans = settled(freed(replace(last, running=ended)))
    assert {one.facts.job: one.placement.borrowed for one in last.running} == {"a-1": False, "a-2": True}
    assert not any(plan.evictions for plan in plans)


def test_a_gang_whose_turn_has_come_keeps_the_cell_that_it_borrows() -> None:
    last, plans = settled(world(policy(a=cells(1, borrow=True), b=cells(1)), [borrowing("a-1", "a", 2)], [], nodes=3))
    assert [(one.facts.job, one.placement.borrowed) for one in last.running] == [("a-1", False)]
    assert not any(plan.evictions for plan in plans)
    assert where(last, "a-1") == {"h100-2"}


def test_a_gang_is_brought_home_from_where_it_cannot_stay() -> None:
    """Beside one that cannot be ended: the node is nobody's to guarantee."""
    small = replace(gang("z-0", "z", preemptible=False), placement=Placement((NodeSlice(NodeId("h100-0"), (0,)),)))
    lent = replace(gang("a-1", "a", 4), placement=Placement((NodeSlice(NodeId("h100-0"), (4, 5, 6, 7)),), borrowed=True))
    snapshot = world(policy(a=cells(1, borrow=True)), [small, lent], [], nodes=2)
    plan = schedule(snapshot)
    assert [(one.job, one.claimant, one.cause) for one in plan.evictions] == [("a-1", "a-1", "home")]
    last, _ = settled(snapshot)
    assert where(last, "a-1") == {"h100-1"}
    assert not any(one.placement.borrowed for one in last.running)


def test_who_borrows_leaves_at_once_however_young_it_is() -> None:
    """And however often it was ended today."""
    young = [borrowing(f"b-{number}", "b", number, placed_ms=NOW, evictions=99) for number in range(2)]
    own = {"queues": {"a": cells(2), "b": cells(1, borrow=True)}, "preemption": {"min_runtime": "1h", "max_evictions": 1}}
    plan = schedule(world(own, [*young, gang("b-9", "b", 8)], [job("a-3", "a", 8, 2)], nodes=3))
    assert evicted(plan) == ["b-0", "b-1"]


def test_a_start_is_as_late_as_those_who_borrow_need_to_let_go() -> None:
    loop = closed_loop.Loop(closed_loop.fleet(3), parse_policy(policy(a=cells(2), b=cells(1, borrow=True))))
    loop.stops_ms = lambda _: 5 * MINUTE
    loop.submit(*(closed_loop.facts(f"b-{number}", queue="b") for number in range(3)))
    loop.steps(2)
    assert len(loop.running) == 3
    loop.submit(closed_loop.facts("a-9", num_nodes=2, queue="a"))
    loop.step()
    asked_ms = loop.now_ms
    loop.steps(8)
    assert loop.started["a-9"] == [asked_ms + 5 * MINUTE]
    assert sum(one.placement.borrowed for one in loop.running) == 0


def test_a_job_that_claims_what_it_would_borrow_is_brought_home_once_it_runs() -> None:
    claim = Placement((NodeSlice(NodeId("h100-1"), tuple(range(8))),), borrowed=True)
    last, _ = settled(world(policy(a=cells(1, borrow=True)), [], [replace(job("a-1", "a", 8), claim=claim)], nodes=2))
    assert [(one.facts.job, one.placement.borrowed) for one in last.running] == [("a-1", False)]


def test_what_is_done_sooner_may_let_another_in_before_one_that_comes_later() -> None:
    """Why the property needs one priority, or a private cluster in which jobs are done as soon as here. On one node: `j-1`
    borrows and is done after two hours, when it would only begin at home. So `j-2`, which cannot be ended, takes the node an hour
    before `j-3` comes, which is of a higher class, and for which `j-1` would be ended. Whoever kept the node empty for work that
    is done would let `j-2` wait for nothing whenever nobody comes."""
    parts: list[Part] = [("a", (8, 1), 0, 2, False, 50), ("a", (8, 1), 0, 2, True, 50)]
    parts += [("a", (8, 1), 1, 9, False, 50), ("a", (8, 1), 3, 1, False, 80)]
    work = works(parts, {"a": 1}, priorities=True)
    shared = run(world(policy(a=cells(1, borrow=True)), nodes=2), work)
    private = run(world(AT_ONCE), work)
    hours = [[(one.first[f"j-{number}"] - NOW) // HOUR for number in range(4)] for one in (shared, private)]
    assert hours == [[0, 0, 2, 11], [0, 2, 6, 3]]
    assert run(world(AT_ONCE), work, shared.ends).first["j-3"] == shared.first["j-3"]
