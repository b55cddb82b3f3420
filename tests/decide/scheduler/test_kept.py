"""What is kept for whom: heads of pools and what may pass them, bookings, spares."""

from dataclasses import replace

import numpy as np
import pytest

from phalanx.core.devices import DeviceRequest
from phalanx.core.ids import JobId, NodeId
from phalanx.core.policy import Policy
from phalanx.core.reasons import Behind, NoRoom, Reason
from phalanx.decide.scheduler import schedule
from phalanx.decide.scheduler.plan import Plan, Start, Wait
from phalanx.decide.scheduler.room.hold import CLOSED, Hold
from phalanx.decide.scheduler.snapshot import JobFacts, NodeFacts, PendingJob, RunningJob, Shape, Snapshot
from tests.decide.scheduler.closed_loop import ALL, HOUR, MINUTE, NOW, STANDARD, Loop, facts, fleet, gang

NO_BACKFILL = Policy(backfill=False)


def decided(nodes: tuple[NodeFacts, ...], running: list[RunningJob], *jobs: JobFacts, policy: Policy | None = None) -> Plan:
    line = tuple(PendingJob(replace(job, sequence=number)) for number, job in enumerate(jobs))
    return schedule(Snapshot(NOW, nodes, tuple(running), line, policy or Policy()))


def where(plan: Plan, job: str) -> list[str] | None:
    """Nodes of the job if it starts."""
    for decision in plan.decisions:
        if decision.job == job:
            return [part.node for part in decision.placement.slices] if isinstance(decision, Start) else None
    raise AssertionError(job)


def reason(plan: Plan, job: str) -> Reason:
    (found,) = [decision for decision in plan.decisions if decision.job == job]
    assert isinstance(found, Wait), found
    return found.reason


def limited(name: str, limit_ms: int | None, count: int = 8, num_nodes: int = 1, **more: object) -> JobFacts:
    return replace(facts(name, count, num_nodes, **more), limit_ms=limit_ms)  # type: ignore[arg-type]


def runs(name: str, *nodes: int, limit_ms: int | None = None) -> RunningJob:
    """All of these nodes since an hour; it ends `limit_ms` after its start."""
    found = gang(name, *((node, ALL) for node in nodes), priority=STANDARD)
    return replace(found, facts=replace(found.facts, limit_ms=limit_ms))


def test_only_what_ends_in_time_is_backfilled_on_the_heads_nodes() -> None:
    """Node 0 is free, node 1 in an hour; the head needs both. What is done by then runs on node 0 before, and nothing else."""
    running = [runs("r", 1, limit_ms=2 * HOUR)]
    nodes = fleet(2, held=running)
    for limit_ms, starts in ((HOUR, True), (30 * MINUTE, True), (HOUR + 1, False), (None, False)):
        plan = decided(nodes, running, facts("head", 8, 2), limited("next", limit_ms))
        assert (where(plan, "next") == ["n00"]) is starts
        (kept,) = plan.reservations
        assert (kept.job, kept.kind, kept.start_ms) == ("head", "H100", NOW + HOUR)
        assert [part.node for part in kept.placement.slices] == ["n00", "n01"]
        if not starts:
            assert reason(plan, "next") == Behind(JobId("head"), 2)


def test_what_the_head_leaves_over_is_used_for_as_long_as_one_likes() -> None:
    """It needs six devices of a node from one o'clock on: two are left over, though eight are free before."""
    running = [runs("r", 1, limit_ms=2 * HOUR)]
    nodes = fleet(2, held=running)
    plan = decided(nodes, running, facts("head", 6, 2), facts("two", 2), facts("more", 1), limited("short", HOUR, 1))
    assert [where(plan, name) for name in ("two", "more", "short")] == [["n00"], None, ["n00"]]
    assert isinstance(reason(decided(nodes, running, facts("head", 6, 2), facts("three", 3)), "three"), Behind)


def test_what_is_claimed_of_what_the_head_leaves_over_is_not_left_over_twice() -> None:
    """Two of node 0 are left over, and `pair` gets them, with two of node 2 for which a low gang is ended."""
    running = [runs("r", 1, limit_ms=2 * HOUR), gang("low", (2, [0, 1])), gang("s", (2, range(2, 8)), priority=STANDARD)]
    plan = decided(fleet(3, held=running), running, facts("head", 6, 2), facts("pair", 2, 2), facts("one", 1))
    assert [evicted.job for evicted in plan.evictions] == ["low"]
    assert isinstance(reason(plan, "one"), Behind)


def test_nodes_that_the_head_does_not_need_stay_open() -> None:
    """It needs two whole nodes, of which one is free; on the others six devices are, whoever wants them."""
    running = [runs("r", 0, limit_ms=2 * HOUR), *(gang(f"s-{node}", (node, [0, 1]), priority=STANDARD) for node in (2, 3))]
    nodes = fleet(4, held=running)
    plan = decided(nodes, running, facts("head", 8, 2), facts("six", 6), facts("eight", 8), facts("more", 6, queue="other"))
    assert sorted(where(plan, "six") or []) + sorted(where(plan, "more") or []) in (["n02", "n03"], ["n03", "n02"])
    assert reason(plan, "eight") == Behind(JobId("head"), 2)
    assert [part.node for kept in plan.reservations for part in kept.placement.slices] == ["n00", "n01"]


def test_a_head_that_waits_for_nodes_keeps_none() -> None:
    """Two of the four nodes that it needs are drained: it waits for these, not for devices. Away for a moment is not drained."""
    nodes = [replace(node, schedulable=number < 2, drained=number >= 2) for number, node in enumerate(fleet(4))]
    plan = decided(tuple(nodes), [], facts("head", 8, 4), facts("next", 8, queue="other"))
    assert where(plan, "next") == ["n00"]
    assert plan.reservations == ()
    away = tuple(replace(node, drained=False) for node in nodes)
    assert where(decided(away, [], facts("head", 8, 4), facts("next", 8, queue="other")), "next") is None
    gone = tuple(replace(node, gone=not node.schedulable) for node in away)
    (first, second) = decided(gone, [], facts("head", 8, 4), facts("next", 8, queue="other")).decisions
    assert isinstance(second, Start), first


def test_S04_a_gang_as_large_as_the_cluster_is_not_starved() -> None:
    """A full cluster and a stream of small jobs that never stops, each of a quarter to two hours: the gang starts as soon as what
    ran when it came is over, and nothing that started since delays it."""
    small = {f"s-{number}": (1 + number * 7 % 8) * 15 * MINUTE for number in range(2_000)}
    loop = Loop(fleet(4), runs_ms=small)
    names = iter(small)

    def stream(number: int) -> None:
        for name in [next(names) for _ in range(number)]:
            loop.submit(limited(name, small[name], 1))

    stream(32)
    loop.step()
    loop.submit(facts("all", 8, 4))
    for _ in range(40):
        stream(4)
        loop.step(5 * MINUTE)
        if loop.where("all"):
            break
    assert len(loop.where("all")) == 4
    assert loop.now_ms - NOW <= 2 * HOUR + 10 * MINUTE
    assert len(loop.started) > 50, "the stream ran meanwhile"


def test_S04_nor_where_nobody_says_how_long_he_runs() -> None:
    """No job has a limit. What ends is kept for the gang, on the nodes that are nearest to being free."""
    small = {f"s-{number}": (1 + number * 7 % 8) * 15 * MINUTE for number in range(2_000)}
    loop = Loop(fleet(4), runs_ms=small)
    loop.submit(*(facts(f"s-{number}", 1) for number in range(40)))
    loop.step()
    loop.submit(facts("wide", 8, 3))
    for number in range(40, 400, 4):
        loop.submit(*(facts(f"s-{number + more}", 1) for more in range(4)))
        loop.step(5 * MINUTE)
        if loop.where("wide"):
            break
    assert len(loop.where("wide")) == 3
    assert loop.now_ms - NOW <= 2 * HOUR + 20 * MINUTE, "eight older jobs went before it, within a quarter of an hour"
    assert len(loop.started) > 48, "a node that it does not need was used meanwhile"


def test_the_reserved_start_never_moves_later() -> None:
    """While limits are kept and nothing of a higher standing comes."""
    small = {f"s-{number}": (1 + number * 5 % 7) * 10 * MINUTE for number in range(600)}
    loop = Loop(fleet(3), runs_ms={name: ms // 2 if ms % 3 else ms for name, ms in small.items()})
    names = iter(small)
    for name in [next(names) for _ in range(10)]:
        loop.submit(limited(name, small[name], 1 + int(name[2:]) % 4))
    loop.step()
    loop.submit(facts("head", 8, 2))
    starts = []
    for _ in range(60):
        for name in [next(names) for _ in range(3)]:
            loop.submit(limited(name, small[name], 1 + int(name[2:]) % 4))
        plan = loop.step()
        starts += [kept.start_ms for kept in plan.reservations if kept.job == "head"]
    assert loop.where("head")
    known = [start for start in starts if start is not None]
    assert len(known) == len(starts) > 5
    assert known == sorted(known, reverse=True)


def other(name: str, kind: str, count: int = 8, free: int | None = None) -> NodeFacts:
    left = count if free is None else free
    return replace(
        fleet(1, count)[0], node=NodeId(name), devices=tuple((index, kind) for index in range(count)), free=tuple(range(left))
    )


def test_S06_each_pool_has_a_head_of_its_own() -> None:
    held = gang("r", (0, [0]), priority=STANDARD)
    nodes = (*fleet(1, held=[held]), other("t", "T4"), other("u", "T4", free=0))
    t4 = replace(facts("t4"), shape=Shape(DeviceRequest(("T4",), 8)))
    wide = replace(facts("wide"), shape=Shape(DeviceRequest(("T4",), 8), 2))
    plan = decided(nodes, [held], facts("big"), t4, facts("small", 1), wide, replace(t4, job=JobId("late")))
    assert where(plan, "t4") == ["t"]
    assert reason(plan, "small") == Behind(JobId("big"), 2)
    assert sorted((kept.kind, kept.job) for kept in plan.reservations) == [("H100", "big"), ("T4", "wide")]


def test_a_job_of_several_types_is_head_where_it_starts_first() -> None:
    """An A100 comes free in an hour, an H100 in two: it keeps the former, and the H100 stay open to those who pass it there."""
    on_h100 = runs("r", 0, limit_ms=3 * HOUR)
    on_a100 = replace(runs("q", 0, limit_ms=2 * HOUR), placement=replace(runs("q", 0).placement))
    a100 = replace(on_a100, placement=type(on_a100.placement)((replace(on_a100.placement.slices[0], node=NodeId("a")),)))
    nodes = (*fleet(2, held=[on_h100]), other("a", "A100", free=0), other("b", "A100"))
    both = replace(facts("both"), shape=Shape(DeviceRequest(("H100", "A100"), 8), 2))
    plan = decided(nodes, [on_h100, a100], both, facts("h", 8))
    (kept,) = plan.reservations
    assert (kept.kind, kept.start_ms) == ("A100", NOW + HOUR)
    assert where(plan, "h") == ["n01"]


def test_more_heads_keep_more() -> None:
    running = [runs("r", 0, 1, limit_ms=2 * HOUR)]
    nodes = fleet(4, held=running)
    line = [facts("one", 8, 3), facts("two", 8, 3), facts("next", 8)]
    one = decided(nodes, running, *line)
    assert [kept.job for kept in one.reservations] == ["one"]
    two = decided(nodes, running, *(facts(f"h-{number}", 8, 3) for number in range(2)), facts("next"), policy=Policy(heads=2))
    assert next(kept.job for kept in two.reservations) == "h-0"
    none = decided(nodes, running, *line, policy=Policy(heads=0))
    assert none.reservations == () and where(none, "next") == ["n02"]


def test_strict_order_without_backfill() -> None:
    running = [runs("r", 1, limit_ms=2 * HOUR)]
    nodes = (*fleet(2, held=running), other("t", "T4"))
    t4 = replace(facts("t4"), shape=Shape(DeviceRequest(("T4",), 8)))
    plan = decided(nodes, running, facts("head", 8, 2), limited("next", MINUTE), t4, policy=NO_BACKFILL)
    assert reason(plan, "next") == Behind(JobId("head"), 2)
    assert where(plan, "t4") == ["t"]


def test_the_heads_cores_are_kept_too() -> None:
    """The head needs 60 of node 0's cores in an hour: a job that keeps 8 of them for longer does not start there."""
    running = [runs("r", 1, limit_ms=2 * HOUR)]
    nodes = fleet(2, held=running)
    head = replace(facts("head", 4, 2), shape=Shape(DeviceRequest(("H100",), 4), 2, cpus=60.0))
    for cpus, starts in ((8.0, False), (4.0, True)):
        greedy = replace(facts("next", 4), shape=Shape(DeviceRequest(("H100",), 4), cpus=cpus))
        assert (where(decided(nodes, running, head, greedy), "next") == ["n00"]) is starts


def test_gangs_that_are_ending_end_soon() -> None:
    ending = replace(runs("r", 0), stopping=True)
    plan = decided(fleet(1, held=[ending]), [ending], facts("head"))
    (kept,) = plan.reservations
    assert kept.start_ms == NOW + MINUTE


def test_no_time_is_known_where_nobody_has_a_limit() -> None:
    running = [runs("r", 0)]
    (kept,) = decided(fleet(1, held=running), running, facts("head")).reservations
    assert kept.start_ms is None


def test_the_head_lies_in_one_domain() -> None:
    """Two nodes come free in an hour, in different domains, and a pair in one in two."""
    running = [runs("a", 0, limit_ms=2 * HOUR), runs("b", 1, limit_ms=3 * HOUR), runs("c", 2, limit_ms=2 * HOUR), runs("d", 3)]
    nodes = tuple(replace(node, labels={"domain": f"d{number // 2}"}) for number, node in enumerate(fleet(4, held=running)))
    for more in ({"within": "domain"}, {"group": 2}):
        tight = replace(facts("head"), shape=Shape(DeviceRequest(("H100",), 8), 2, **more))
        (kept,) = decided(nodes, running, tight).reservations
        assert kept.start_ms == NOW + 2 * HOUR
        assert [part.node for part in kept.placement.slices] == ["n00", "n01"]


def test_where_too_few_cores_are_to_spare_not_even_a_share_of_a_broken_device_is() -> None:
    spare = np.array([4, 4], np.int32)
    hold = Hold("H100", 0, np.zeros(2, np.int32), spare, spare_cpus=np.array([1.0, 8.0]), spare_memory=np.array([64, 64]))
    share = Shape(DeviceRequest((), 1, 500), cpus=2.0, memory_bytes=64)
    free = np.array([2, 2], np.int32)
    assert hold.cut(share, "H100", free).tolist() == [CLOSED, 2]
    assert hold.cut(replace(share, cpus=0.0, memory_bytes=65), "H100", free).tolist() == [CLOSED, CLOSED]
    assert hold.cut(replace(share, request=DeviceRequest()), "H100", free).tolist() == [0, 2]


@pytest.mark.parametrize("heads", [1, 2])
def test_nothing_fits_and_nothing_is_said_wrong(heads: int) -> None:
    running = [runs("r", 0, 1)]
    plan = decided(fleet(2, held=running), running, facts("a"), facts("b"), policy=Policy(heads=heads))
    assert [reason(plan, name) for name in ("a", "b")] == [NoRoom(8, 0, 16)] * 2
