"""Gangs that may be smaller: they give nodes up before anybody is ended, and take what nobody waits for."""

from dataclasses import replace

import pytest

from phalanx.core.ids import NodeId
from phalanx.core.policy import Policy, Preemption, Queue
from phalanx.core.reasons import MakingRoom
from phalanx.decide.scheduler import schedule
from phalanx.decide.scheduler.plan import Plan, Start, Wait
from phalanx.decide.scheduler.snapshot import JobFacts, NodeFacts, PendingJob, RunningJob, Snapshot
from tests.decide.scheduler.closed_loop import ALL, HIGH, HOUR, LOW, MINUTE, NOW, STANDARD, Loop, elastic, facts, fleet, gang


def decided(num_nodes: int, running: list[RunningJob], *jobs: JobFacts, policy: Policy | None = None) -> Plan:
    return on(fleet(num_nodes, held=running), running, *jobs, policy=policy)


def on(nodes: tuple[NodeFacts, ...], running: list[RunningJob], *jobs: JobFacts, policy: Policy | None = None) -> Plan:
    return schedule(Snapshot(NOW, nodes, tuple(running), tuple(PendingJob(job) for job in jobs), policy or Policy()))


def nodes_of(plan: Plan, job: str) -> list[str]:
    """What the only eviction of the job keeps."""
    (evicted,) = [one for one in plan.evictions if one.job == job]
    return [part.node for part in evicted.keeps.slices] if evicted.keeps else []


def wide(
    name: str = "wide", nodes: int = 4, fewest: int = 2, priority: int = STANDARD, placed_ms: int = NOW - HOUR, saved_ms: int = NOW
) -> RunningJob:
    found = gang(name, *((node, ALL) for node in range(nodes)), priority=priority, placed_ms=placed_ms, saved_ms=saved_ms)
    return elastic(found, fewest, 4)


def test_an_elastic_job_starts_smaller_where_there_is_no_more_room() -> None:
    shape = replace(facts("e", 8, 4).shape, min_nodes=2)
    (decision,) = decided(3, [], replace(facts("e"), shape=shape)).decisions
    assert isinstance(decision, Start) and len(decision.placement.slices) == 3


def test_a_gang_above_its_fewest_gives_nodes_up_before_anybody_is_ended() -> None:
    """Also where a lower one could be ended, and for one of the same priority."""
    running = [wide(), gang("low", (4, ALL), priority=LOW)]
    plan = decided(5, running, facts("one", 8))
    (evicted,) = plan.evictions
    assert (evicted.job, evicted.claimant, evicted.cause) == ("wide", "one", "shrink")
    assert nodes_of(plan, "wide") == ["n00", "n01", "n02"], "as few as will do, of its last ranks"
    (decision,) = plan.decisions
    assert isinstance(decision, Wait) and decision.reason == MakingRoom(("wide",), 8)  # type: ignore[arg-type]
    (claim,) = plan.claims
    assert claim.placement is not None and [part.node for part in claim.placement.slices] == ["n03"]


def test_a_node_is_given_up_for_its_cores_too() -> None:
    """Devices are free on both, and cores on neither: what it gives is the node, not a device of the placement."""
    wide_one = elastic(gang("wide", (0, [7]), (1, [7]), priority=STANDARD), 1, 2)
    wide_one = replace(wide_one, facts=replace(wide_one.facts, shape=replace(wide_one.facts.shape, cpus=40.0)))
    nodes = tuple(replace(node, free_cpus=24.0) for node in fleet(2, held=[wide_one]))
    job = facts("job", 1, shape=replace(facts("job", 1).shape, cpus=40.0))
    plan = on(nodes, [wide_one], job)
    (evicted,), (claim,) = plan.evictions, plan.claims
    assert evicted.keeps is not None and [part.node for part in evicted.keeps.slices] == ["n00"]
    assert claim.placement is not None and [part.node for part in claim.placement.slices] == ["n01"]


def test_none_goes_under_its_fewest() -> None:
    assert nodes_of(decided(4, [wide()], facts("pair", 8, 2)), "wide") == ["n00", "n01"]
    assert decided(4, [wide()], facts("three", 8, 3)).evictions == ()
    assert decided(4, [wide(fewest=4)], facts("one", 8)).evictions == ()


@pytest.mark.parametrize(
    ("running", "shrinks"),
    [
        (wide(), True),
        (wide(priority=HIGH), False),
        (replace(wide(), stopping=True), False),
        (replace(wide(), placed_ms=NOW - MINUTE), False),
        (replace(wide(), evictions=8), False),
        (replace(wide(), facts=replace(wide().facts, preemptible=False)), False),
    ],
)
def test_who_shrinks(running: RunningJob, shrinks: bool) -> None:
    assert bool(decided(4, [running], facts("one", 8)).evictions) is shrinks


def test_who_runs_within_its_quota_does_not_shrink_for_others() -> None:
    policy = Policy(queues={"own": Queue(quota={"H100": 32}), "other": Queue()})
    theirs = replace(wide(), facts=replace(wide().facts, queue="own"))
    assert decided(4, [theirs], facts("one", 8, queue="other"), policy=policy).evictions == ()


def test_two_queues_do_not_give_up_together_what_the_one_above_is_guaranteed() -> None:
    """Each of them alone could: theirs has two nodes more than it is guaranteed."""
    policy = Policy(queues={"org": Queue(quota={"H100": 48}), "a": Queue(parent="org"), "b": Queue(parent="org"), "other": Queue()})
    first, second = (
        replace(gang, facts=replace(gang.facts, queue=queue)) for queue, gang in (("a", wide("first")), ("b", _second()))
    )
    running = [first, second]
    assert decided(8, running, facts("four", 8, 4, queue="other"), policy=policy).evictions == ()
    two = decided(8, running, facts("two", 8, 2, queue="other"), policy=policy)
    assert sum(4 - len(one.keeps.slices) for one in two.evictions if one.keeps) == 2
    three = on((*fleet(8, held=running), *fleet(9)[8:]), running, facts("three", 8, 3, queue="other"), policy=policy)
    assert sum(4 - len(one.keeps.slices) for one in three.evictions if one.keeps) == 2, "and one node is idle"


def _second() -> RunningJob:
    return elastic(gang("second", *((node, ALL) for node in range(4, 8)), priority=STANDARD, saved_ms=NOW), 2, 4)


def test_the_one_that_loses_least_shrinks_and_only_as_many_as_needed() -> None:
    first = wide("first", saved_ms=NOW - 20 * MINUTE)
    second = elastic(gang("second", *((node, ALL) for node in range(4, 8)), priority=STANDARD, saved_ms=NOW - MINUTE), 2, 4)
    plan = decided(8, [first, second], facts("one", 8))
    assert [evicted.job for evicted in plan.evictions] == ["second"]
    plan = decided(8, [first, second], facts("three", 8, 3))
    assert sorted(evicted.job for evicted in plan.evictions) == ["first", "second"]
    assert len(nodes_of(plan, "first")) + len(nodes_of(plan, "second")) == 5


def test_groups_of_ranks_stay_whole() -> None:
    shape = replace(wide().facts.shape, group=2)
    grouped = replace(wide(), facts=replace(wide().facts, shape=shape))
    labelled = tuple(replace(node, labels={"domain": f"d{number // 2}"}) for number, node in enumerate(fleet(4, held=[grouped])))
    assert nodes_of(on(labelled, [grouped], facts("one", 8)), "wide") == ["n00", "n01"]


def test_as_many_whole_groups_start_as_the_queue_may_have() -> None:
    shape = replace(facts("e", 8, 8).shape, min_nodes=2, group=2)
    nodes = tuple(replace(node, labels={"domain": f"d{number // 2}"}) for number, node in enumerate(fleet(8, held=[])))
    policy = Policy(queues={"default": Queue(limit={"H100": 40})})
    (decision,) = on(nodes, [], replace(facts("e"), shape=shape), policy=policy).decisions
    assert isinstance(decision, Start) and len(decision.placement.slices) == 4


@pytest.mark.parametrize(("limit", "num_nodes"), [(16, 0), (23, 0), (24, 3), (31, 3), (32, 4), (64, 4)])
def test_a_gang_grows_to_what_its_queue_may_have(limit: int, num_nodes: int) -> None:
    plan = decided(4, [wide(nodes=2)], policy=Policy(queues={"default": Queue(limit={"H100": limit})}))
    assert [len(nodes_of(plan, one.job)) for one in plan.evictions] == [num_nodes] * bool(num_nodes)


def test_idle_nodes_are_grown_into() -> None:
    plan = decided(4, [wide(nodes=2)])
    (evicted,) = plan.evictions
    assert (evicted.claimant, evicted.cause) == ("wide", "grow")
    assert nodes_of(plan, "wide") == ["n00", "n01", "n02", "n03"]


def test_a_gang_that_must_lie_in_tiers_grows_within_them() -> None:
    shape = replace(wide().facts.shape, within="domain")
    tight = replace(wide(nodes=2), facts=replace(wide().facts, shape=shape))
    nodes = tuple(replace(node, labels={"domain": f"d{number // 4}"}) for number, node in enumerate(fleet(8, held=[tight])))
    plan = on(nodes, [tight])
    assert len({name < "n04" for name in nodes_of(plan, "wide")}) == 1 and len(nodes_of(plan, "wide")) == 4
    apart = tuple(replace(node, labels={"domain": f"d{number // 2}"}) for number, node in enumerate(fleet(4, held=[tight])))
    assert on(apart, [tight]).evictions == ()


@pytest.mark.parametrize(
    ("running", "num_nodes", "grows"),
    [
        (wide(nodes=2), 4, True),
        (wide(nodes=4), 8, False),  # its full size
        (replace(wide(nodes=2), placed_ms=NOW - MINUTE), 4, False),  # too soon
        (replace(wide(nodes=2), evictions=8), 4, False),  # too often
        (replace(wide(nodes=2), stopping=True), 4, False),
        (wide(nodes=2, saved_ms=0), 4, False),  # it would lose more than it gains in an hour
        (wide(nodes=2, saved_ms=NOW - 50 * MINUTE), 4, True),
    ],
)
def test_who_grows(running: RunningJob, num_nodes: int, grows: bool) -> None:
    assert bool(decided(num_nodes, [running]).evictions) is grows


def test_it_grows_by_a_quarter_or_to_its_full_size() -> None:
    eight = elastic(gang("eight", *((node, ALL) for node in range(8)), priority=STANDARD, saved_ms=NOW), 2, 16)
    assert decided(9, [eight]).evictions == ()
    assert len(nodes_of(decided(10, [eight]), "eight")) == 10
    nearly = elastic(eight, 2, 9)
    assert len(nodes_of(decided(9, [nearly]), "eight")) == 9


def test_nobody_grows_into_what_somebody_waits_for() -> None:
    """The head needs all six nodes; two of them are free."""
    running = [wide(nodes=4, fewest=4, priority=HIGH), elastic(gang("small", (4, ALL), priority=STANDARD, saved_ms=NOW), 1, 2)]
    assert [one.cause for one in decided(6, running).evictions] == ["grow"]
    assert decided(6, running, facts("head", 8, 6)).evictions == ()


def test_two_do_not_grow_into_the_same_nodes() -> None:
    running = [elastic(gang(f"e-{node}", (node, ALL), priority=STANDARD, saved_ms=NOW), 1, 3) for node in range(2)]
    plan = decided(4, running)
    kept = [(part.node, index) for one in plan.evictions if one.keeps for part in one.keeps.slices for index in part.devices]
    assert len(kept) == len(set(kept))
    assert [one.job for one in plan.evictions] == ["e-0"]


def test_two_that_lie_in_tiers_do_not_grow_onto_each_others_devices() -> None:
    """Each keeps what it holds of its own node: other devices of that node would be promised to it and to the other."""
    nodes = [replace(node, labels={"rack": "r"}) for node in fleet(2)]
    running = [gang(f"fixed-{node}", (node, [6, 7])) for node in range(2)]
    for node in range(2):
        one = elastic(gang(f"e-{node}", (node, [4, 5]), saved_ms=NOW), 1, 2)
        running.append(replace(one, facts=replace(one.facts, shape=replace(one.facts.shape, within="rack"))))
    loop = Loop(tuple(nodes), running=running)
    plan = loop.step()
    kept = [(part.node, index) for one in plan.evictions if one.keeps for part in one.keeps.slices for index in part.devices]
    assert [one.cause for one in plan.evictions] == ["grow", "grow"]
    assert len(kept) == len(set(kept)) == 8


def test_what_a_gang_grows_to_counts_for_the_limit_while_it_stops() -> None:
    """It takes long to stop, and all of the limit is its own by then."""
    loop = Loop(fleet(8), Policy(queues={"a": Queue(limit={"H100": 32})}), stops_ms=lambda _: 5 * MINUTE)
    loop.running = [elastic(gang("e", (0, ALL), (1, ALL), queue="a", saved_ms=NOW), 2, 4)]
    assert [one.cause for one in loop.step().evictions] == ["grow"]
    loop.submit(facts("more", 8, 2, queue="a"))
    for _ in range(10):
        loop.step()
        assert sum(one.placement.world_size for one in loop.running) <= 32
    assert len(loop.where("e")) == 4


def test_two_that_reclaim_take_what_their_queue_deserves_and_no_more() -> None:
    """Both are past the number of times that they may be made smaller, so that they are ended whole. Whoever then took all four
    nodes would have two too many, and the other would take all of them in its turn, for ever."""
    loop = Loop(fleet(4), Policy(queues={"a": Queue(), "b": Queue()}), saves_ms=0)
    first = elastic(gang("e-a", *((node, ALL) for node in range(4)), priority=STANDARD, queue="a"), 1, 4)
    loop.running = [replace(first, evictions=8)]
    loop.submit(replace(facts("e-b", 8, 4, queue="b"), shape=first.facts.shape))
    loop.pending = [replace(job, evictions=8) for job in loop.pending]
    loop.steps(120)
    assert [(job, cause) for _, job, cause in loop.evicted] == [("e-a", "reclaim")]
    assert [len(loop.where(job)) for job in ("e-a", "e-b")] == [2, 2]


def test_over_many_rounds_a_gang_shrinks_runs_on_and_grows_back() -> None:
    loop = Loop(fleet(4), runs_ms={"guest": HOUR}, saves_ms=MINUTE)
    loop.running = [wide()]
    loop.submit(facts("guest", 8))
    loop.steps(4)
    assert loop.where("guest") == [NodeId("n03")]
    assert loop.where("wide") == [NodeId("n00"), NodeId("n01"), NodeId("n02")]
    loop.steps(180)
    assert len(loop.where("wide")) == 4
    assert [cause for _, _, cause in loop.evicted] == ["shrink", "grow"]


def test_what_a_shrinking_gang_keeps_is_nobody_elses() -> None:
    """It takes ten minutes to let go. Meanwhile a high job comes, which may end it: it claims the nodes of nobody."""
    loop = Loop(fleet(4), Policy(preemption=Preemption(min_runtime="1h")), stops_ms=lambda _: 10 * MINUTE)
    loop.running = [wide()]
    loop.submit(facts("guest", 8))
    loop.step()
    loop.submit(facts("high", 8, 3, priority=HIGH))
    loop.steps(30)
    assert len(loop.where("wide")) == 3
    assert not loop.where("high")


def test_without_anybody_elastic_nothing_is_done() -> None:
    assert decided(4, [gang("fixed", (0, ALL))]).evictions == ()
