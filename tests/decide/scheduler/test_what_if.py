"""What would start a waiting job now: each change is tried again on the real scheduler, and harms nobody."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given

from phalanx.core.devices import DeviceRequest, NodeSlice, Placement
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.policy import Policy, Preemption, Queue, Window
from phalanx.core.reasons import Behind, Geometry, NoRoom, OverLimit
from phalanx.core.units import duration_ms
from phalanx.decide.scheduler import JobFacts, NodeFacts, PendingJob, RunningJob, Shape, Snapshot, Start, Wait, schedule
from phalanx.decide.scheduler.why.dry_run import DRY, dry_run, trial
from phalanx.decide.scheduler.why.what_if import MINUTE_MS, Change, changes
from tests.decide.scheduler.snapshots import snapshots

HOUR = 3_600_000
NOW = 1_000 * HOUR
CALM = Policy(preemption=Preemption(enabled=False, reclaim=False))


def node(name: str, count: int = 8, kind: str = "H100", free: int = 8, **labels: str) -> NodeFacts:
    devices = tuple((index, kind) for index in range(count))
    left = tuple(range(count - free, count))
    return NodeFacts(NodeId(name), devices, left, 64, 64, 2**40, 2**40, True, labels=labels)


def job(name: str, sequence: int, count: int = 8, num_nodes: int = 1, limit_ms: int | None = None, **shape: object) -> PendingJob:
    wanted = replace(Shape(DeviceRequest(("H100",), count), num_nodes), **shape)  # type: ignore[arg-type]
    return PendingJob(JobFacts(JobId(name), wanted, submitted_ms=NOW - 1000 + sequence, sequence=sequence, limit_ms=limit_ms))


def gang(name: str, held: dict[str, int], limit_ms: int | None = None) -> RunningJob:
    slices = tuple(NodeSlice(NodeId(node), tuple(range(count))) for node, count in held.items())
    count = next(iter(held.values()))
    facts = JobFacts(JobId(name), Shape(DeviceRequest(("H100",), count), len(held)), limit_ms=limit_ms)
    return RunningJob(facts, AttemptId(f"{name}.1"), Placement(slices), NOW - HOUR // 2)


def tried(snapshot: Snapshot, name: str) -> dict[str, Change]:
    """By field. Each one, written into the job, makes the real scheduler start it, and all others that start do so all the same."""
    found = changes(snapshot, JobId(name))
    before = {one.job: one for one in schedule(snapshot).decisions}
    for change in found:
        pending = tuple(change.job if one.facts.job == name else one for one in snapshot.pending)
        after = {one.job: one for one in schedule(replace(snapshot, pending=pending)).decisions}
        assert isinstance(after[JobId(name)], Start), change
        assert all(isinstance(after[other], Start) for other, one in before.items() if isinstance(one, Start))
    return {change.field: change for change in found}


def values(found: dict[str, Change]) -> list[tuple[str, str, str]]:
    return [(change.field, change.value, change.was) for change in found.values()]


def test_fewer_nodes_is_the_most_that_fit_and_comes_before_fewer_devices() -> None:
    fleet = (node("a"), node("b"), node("c", free=4), node("d", free=4))
    snapshot = Snapshot(NOW, fleet, (gang("r", {"c": 4, "d": 4}),), (job("j-1", 1, 8, 4),), CALM)
    assert values(tried(snapshot, "j-1")) == [("num_nodes", "2", "4"), ("resources.gpus", "H100:4", "H100:8")]


def test_nodes_are_left_out_in_whole_groups() -> None:
    """Else the spec would be refused: `placing.group` divides `num_nodes`."""
    fleet = tuple(node(f"n-{number}", free=8 if number < 7 else 0, domain=str(number // 4)) for number in range(8))
    snapshot = Snapshot(NOW, fleet, (gang("r", {"n-7": 8}),), (job("j-1", 1, 8, 8, group=4),), CALM)
    assert values(tried(snapshot, "j-1"))[0] == ("num_nodes", "4", "8")
    less = replace(snapshot, nodes=fleet[1:4], running=())
    assert "num_nodes" not in tried(less, "j-1")


def test_an_elastic_job_is_told_how_few_nodes_have_to_do() -> None:
    fleet = (node("a"), node("b"), node("c", free=0))
    elastic = job("j-1", 1, 8, 4, min_nodes=3)
    snapshot = Snapshot(NOW, fleet, (gang("r", {"c": 8}),), (elastic,), CALM)
    change = tried(snapshot, "j-1")["min_nodes"]
    assert (change.value, change.was, change.job.facts.shape.num_nodes) == ("2", "3", 4)
    full = replace(CALM, queues={"default": Queue(limit={"H100": 24}), "small": Queue(limit={"H100": 16})})
    assert tried(replace(snapshot, policy=full), "j-1")["min_nodes"].value == "2"
    busy = replace(elastic, facts=replace(elastic.facts, queue="small", shape=replace(elastic.facts.shape, min_nodes=2)))
    held = replace(gang("s", {"c": 8}), facts=replace(gang("s", {"c": 8}).facts, queue="small"))
    found = tried(replace(snapshot, running=(held,), pending=(busy,), policy=full), "j-1")
    assert found["queue"].value == "default", "it may have three of its four nodes there"


def test_an_elastic_job_may_start_smaller_in_another_queue() -> None:
    """It asks for one to three nodes; its queue's limit is used up, and the other one may have two."""
    queues = {"full": Queue(limit={"*": 8}), "small": Queue(limit={"*": 16})}
    held = replace(gang("r", {"c": 8}), facts=replace(gang("r", {"c": 8}).facts, queue="full"))
    asks = job("j-1", 1, 8, 3, min_nodes=1)
    asks = replace(asks, facts=replace(asks.facts, queue="full"))
    fleet = (node("a"), node("b"), node("c", free=0), node("d"))
    snapshot = Snapshot(NOW, fleet, (held,), (asks,), replace(CALM, queues=queues))
    assert values(tried(snapshot, "j-1")) == [("queue", "small", "full")]


def test_another_type_counts_as_less_of_a_change_than_fewer_nodes() -> None:
    fleet = (node("a", free=0), node("t-1", kind="A100-80"), node("t-2", kind="A100-80"))
    snapshot = Snapshot(NOW, fleet, (gang("r", {"a": 8}),), (job("j-1", 1, 8),), CALM)
    assert values(tried(snapshot, "j-1")) == [("resources.gpus", "A100-80:8", "H100:8")]


def test_a_shorter_limit_lets_it_end_before_the_head_starts() -> None:
    """The head waits for both nodes, which it has when the gang reaches its limit in half an hour."""
    fleet = (node("a", free=0), node("b"))
    head, behind = job("head-1", 1, 8, 2, HOUR), job("j-2", 2, 8, limit_ms=2 * HOUR)
    snapshot = Snapshot(NOW, fleet, (gang("r", {"a": 8}, HOUR),), (head, behind), CALM)
    decided = {one.job: one for one in schedule(snapshot).decisions}
    wait = decided[JobId("j-2")]
    assert isinstance(wait, Wait)
    assert isinstance(wait.reason, Behind)
    change = tried(snapshot, "j-2")["max_duration"]
    assert change.was == "2h"
    assert change.value.endswith("m")
    assert 25 <= int(change.value[:-1]) <= 30
    assert duration_ms(change.value) == change.job.facts.limit_ms, "what is offered is what was tried"
    odd = replace(behind, facts=replace(behind.facts, limit_ms=5_400_500))
    assert tried(replace(snapshot, pending=(head, odd)), "j-2")["max_duration"].was == "5400500ms", (
        "and what it is now, not rounded"
    )


def test_another_queue_with_room_in_it() -> None:
    policy = replace(CALM, queues={"full": Queue(limit={"H100": 8}), "open": Queue(), "tiny": Queue(limit={"H100": 1})})
    running = replace(gang("r", {"a": 8}), facts=replace(gang("r", {"a": 8}).facts, queue="full"))
    asked = job("j-1", 1, 8)
    asked = replace(asked, facts=replace(asked.facts, queue="full"))
    snapshot = Snapshot(NOW, (node("a", free=0), node("b")), (running,), (asked,), policy)
    (wait,) = schedule(snapshot).decisions
    assert isinstance(wait, Wait)
    assert isinstance(wait.reason, OverLimit)
    assert values(tried(snapshot, "j-1")) == [("queue", "open", "full")]


def test_where_it_may_lie() -> None:
    """Two racks of two nodes; one node of each is free. So nothing in one rack, and nothing in the zone."""
    fleet = (
        node("a", free=0, rack="1", block="x"), node("b", rack="1", block="x"),
        node("c", free=0, rack="2", block="x"), replace(node("d", rack="2", block="x"), spot=False),
    )  # fmt: skip
    running = (gang("r", {"a": 8}), gang("s", {"c": 8}))
    snapshot = Snapshot(NOW, fleet, running, (job("j-1", 1, 8, 2, within="rack"),), CALM)
    (wait,) = schedule(snapshot).decisions
    assert isinstance(wait, Wait)
    assert wait.reason == Geometry(asked=16, free=16, largest=8, tier="rack", each=8)
    assert wait.reason.sentence() == (
        "waits for devices that lie together: 16 are free, but of the 16 asked for at once only 8 in one rack"
    )
    assert values(tried(snapshot, "j-1"))[0] == ("placing.within", "block", "rack")
    snapshot = Snapshot(NOW, fleet, running, (job("j-1", 1, 8, 2, within="block"),), CALM)
    apart = tuple(replace(one, labels={**one.labels, "block": one.node}) for one in fleet)
    assert values(tried(replace(snapshot, nodes=apart), "j-1"))[0] == ("placing.within", "", "block")
    on_spot = tuple(replace(one, spot=one.node == "b") for one in fleet)
    snapshot = Snapshot(NOW, on_spot, running, (job("j-1", 1, 8, 2),), CALM)
    assert values(tried(snapshot, "j-1"))[0] == ("placing.spot", "allow", "never")
    labelled = tuple(replace(one, labels={**one.labels, "zone": "eu" if one.node == "b" else "us"}) for one in fleet)
    snapshot = Snapshot(NOW, labelled, running, (job("j-1", 1, 8, 2, where=(("zone", "us"),)),), CALM)
    assert values(tried(snapshot, "j-1"))[0] == ("placing.where.zone", "", "us")


def test_a_smaller_share_of_a_device() -> None:
    held = replace(node("a", 1, free=0), shares=(), device_memory_bytes=80 * 2**30)
    asked = job("j-1", 1, 1)
    asked = replace(asked, facts=replace(asked.facts, shape=Shape(DeviceRequest(("H100",), 1, 600))))
    from phalanx.decide.scheduler.snapshot import Share

    part = replace(held, shares=(Share(0, 500, 40 * 2**30),))
    snapshot = Snapshot(NOW, (part,), (), (asked,), CALM)
    assert values(tried(snapshot, "j-1")) == [("resources.gpus", "H100:0.5", "H100:0.6")]


def test_nothing_is_said_where_nothing_helps_or_nothing_is_wrong() -> None:
    full = Snapshot(NOW, (node("a", free=0),), (gang("r", {"a": 8}),), (job("j-1", 1, 8),), CALM)
    assert changes(full, JobId("j-1")) == ()
    assert changes(replace(full, nodes=(node("a"),), running=()), JobId("j-1")) == (), "it starts as it is"
    closed = replace(full.pending[0], unmet=(JobId("other-1"),))
    assert changes(replace(full, pending=(closed,)), JobId("j-1")) == (), "it waits for another job"
    with pytest.raises(KeyError):
        changes(full, JobId("nobody-7"))


def test_a_window_left_out_and_a_larger_array() -> None:
    shut = Window(days="mon", hours="00:00-00:01")
    policy = replace(CALM, windows={"nights": (shut,)})
    asked = job("j-1", 1, 4)
    asked = replace(asked, facts=replace(asked.facts, window="nights"))
    snapshot = Snapshot(NOW, (node("a"),), (), (asked,), policy)
    assert values(tried(snapshot, "j-1")) == [("window", "", "nights")]
    full = replace(snapshot, nodes=(node("a", free=0),), running=(gang("r", {"a": 8}),))
    assert changes(full, JobId("j-1")) == (), "nor is there room"
    line = [job(f"arr-{number}", number, 2) for number in range(1, 5)]
    line = [replace(one, facts=replace(one.facts, array="arr-1", array_parallel=1)) for one in line]
    first = replace(gang("arr-0", {"a": 2}), facts=replace(line[0].facts, job=JobId("arr-0"), sequence=0))
    now_full = Snapshot(NOW, (node("a", free=6),), (first,), tuple(line), CALM)
    assert values(tried(now_full, "arr-1")) == [("array.parallel", "2", "1")]
    assert values(tried(now_full, "arr-3")) == [("array.parallel", "4", "1")]
    assert changes(now_full, JobId("arr-4")) == (), "there is room for three more"
    fills_now = replace(now_full, nodes=(node("a"),), running=())
    assert values(tried(fills_now, "arr-2")) == [("array.parallel", "2", "1")]


def test_a_dry_run_is_decided_behind_all_that_wait_and_submits_nothing() -> None:
    snapshot = Snapshot(NOW, (node("a"),), (), (job("j-1", 1, 8),), CALM)
    late = dry_run(snapshot, job("mine", 1, 4).facts)
    assert isinstance(late.decision, Wait)
    assert late.decision.job == DRY
    assert isinstance(late.decision.reason, NoRoom)
    assert late.eta is not None
    alone = dry_run(replace(snapshot, pending=()), job("mine", 1, 4).facts)
    assert isinstance(alone.decision, Start)
    assert alone.decision.placement.world_size == 4
    assert len(snapshot.pending) == 1


def test_a_job_is_told_from_when_on_a_gang_is_old_enough_to_be_ended_for_it() -> None:
    """Its class may end the gang, which runs for a minute of the two that it has for sure."""
    low = gang("low-1", {"a": 8})
    low = replace(low, facts=replace(low.facts, priority=0), placed_ms=NOW - MINUTE_MS)
    high = job("high-2", 1, 4)
    high = replace(high, facts=replace(high.facts, priority=80))
    snapshot = Snapshot(NOW, (node("a", free=0),), (low,), (high,), Policy())
    told = trial(snapshot, JobId("high-2"))
    assert isinstance(told.decision, Wait)
    assert isinstance(told.decision.reason, NoRoom)
    assert (told.young, told.young_ms) == (("low-1",), NOW + MINUTE_MS)
    equal = replace(snapshot, running=(replace(low, facts=replace(low.facts, priority=80)),))
    assert trial(equal, JobId("high-2")).young == (), "nobody would be ended for it at any age"
    later = trial(replace(snapshot, now_ms=NOW + MINUTE_MS), JobId("high-2"))
    assert ([evict.job for evict in later.evictions], later.young) == (["low-1"], ())


def test_that_it_may_be_ended_for_others() -> None:
    policy = replace(CALM, queues={"a": Queue(quota={"*": 4})})
    held = gang("r", {"a": 1})
    (firm,) = (replace(one, facts=replace(one.facts, preemptible=False)) for one in [job("j-1", 1, 4)])
    snapshot = Snapshot(NOW, (node("a", free=7),), (held,), (firm,), policy)
    assert values(tried(snapshot, "j-1"))[0] == ("preemptible", "true", "false")


def test_who_is_told_to_be_ended_is_ended_at_that_time() -> None:
    """The dearer gang is old enough ten seconds before the cheaper one, and is ended: what is told is what will be decided."""
    dear, cheap = gang("dear-1", {"a": 8, "b": 8}), gang("cheap-2", {"c": 2})
    low = [
        replace(one, facts=replace(one.facts, priority=0), placed_ms=NOW - placed_s * 1000)
        for one, placed_s in ((dear, 90), (cheap, 80))
    ]
    high = job("high-3", 1, 8)
    high = replace(high, facts=replace(high.facts, priority=80))
    nodes = (node("a", free=0), node("b", free=0), node("c", free=6))
    snapshot = Snapshot(NOW, nodes, tuple(low), (high,), Policy())
    told = trial(snapshot, JobId("high-3"))
    assert (told.young, told.young_ms) == (("dear-1",), NOW + 30_000)
    assert told.eta is not None
    assert (told.eta.latest_ms, told.eta.high_ms <= NOW + 90_000) == (NOW + 30_000, True)
    assert not schedule(replace(snapshot, now_ms=NOW + 29_999)).evictions
    assert [evict.job for evict in schedule(replace(snapshot, now_ms=NOW + 30_000)).evictions] == ["dear-1"]
    both = trial(replace(snapshot, running=(low[1], replace(low[0], placed_ms=low[1].placed_ms))), JobId("high-3"))
    assert (both.young, both.young_ms) == (("cheap-2",), NOW + 40_000)


def told_of(found: Sequence[Change]) -> list[tuple[str, str]]:
    return [(change.field, change.value) for change in found]


def test_a_job_that_has_waited_for_spot_would_wait_again() -> None:
    """Four on-demand devices are free, and it would take them now; submitted again it would wait for the spot node first."""
    nodes = (node("a", free=4), replace(node("b", free=0), spot=True))
    running = (gang("r", {"a": 4}), gang("q", {"b": 8}))
    waited = replace(job("j-1", 1, 8, spot="prefer"), since_ms=NOW - HOUR)
    snapshot = Snapshot(NOW, nodes, running, (waited,), replace(CALM, spot_fallback="30m"))
    assert ("resources.gpus", "H100:4") in told_of(changes(snapshot, JobId("j-1")))
    assert told_of(trial(snapshot, JobId("j-1")).changes) == []
    young = replace(
        waited, facts=replace(waited.facts, shape=replace(waited.facts.shape, request=DeviceRequest(("H100",), 4))), since_ms=0
    )
    assert told_of(changes(replace(snapshot, pending=(young,)), JobId("j-1"))) == [("placing.spot", "allow")]


@given(snapshots())
def test_whatever_is_offered_starts_the_job_when_it_is_submitted_again(snapshot: Snapshot) -> None:
    """As the newest of all, with its wait for spot nodes before it. Not of arrays, all of which are submitted again."""
    for waiting in (one for one in snapshot.pending if not one.facts.array):
        others = tuple(one for one in snapshot.pending if one is not waiting)
        for offer in trial(snapshot, waiting.facts.job).changes:
            newest = max(
                facts.sequence for facts in [one.facts for one in snapshot.pending] + [one.facts for one in snapshot.running]
            )
            facts = replace(offer.job.facts, sequence=newest + 1, submitted_ms=snapshot.now_ms)
            again = schedule(replace(snapshot, pending=(*others, replace(offer.job, facts=facts))))
            assert isinstance(next(one for one in again.decisions if one.job == waiting.facts.job), Start)


def test_a_waiting_job_is_offered_what_starts_it_when_it_comes_last() -> None:
    """It is submitted again with the change: then somebody else may be the head, for whom devices are kept."""
    first, second = job("j-1", 1, 8), job("j-2", 2, 6)
    snapshot = Snapshot(NOW, (node("a", free=4),), (gang("r", {"a": 4}, limit_ms=HOUR),), (first, second), CALM)
    assert [change.value for change in changes(snapshot, JobId("j-1")) if change.field == "resources.gpus"] == ["H100:4"]
    (told,) = (change for change in trial(snapshot, JobId("j-1")).changes if change.field == "resources.gpus")
    assert told.value == "H100:2"
    again = {one.job: one for one in schedule(replace(snapshot, pending=(told.job, second))).decisions}
    assert isinstance(again[JobId("j-1")], Start)
    alone = replace(snapshot, pending=(first,))
    assert told_of(trial(alone, JobId("j-1")).changes) == told_of(changes(alone, JobId("j-1"))) != []
    array = replace(first, facts=replace(first.facts, array=JobId("j-1")))
    together = replace(snapshot, pending=(array, second))
    assert trial(together, JobId("j-1")).changes == changes(together, JobId("j-1")), "all of an array are submitted again"
