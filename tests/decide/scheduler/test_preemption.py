"""Making room: the cheapest set of whole gangs, and only where a placement results."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from phalanx.core.devices import DeviceRequest, NodeSlice, Placement
from phalanx.core.ids import JobId, NodeId
from phalanx.core.policy import JobClass, Policy, Preemption, Queue
from phalanx.core.reasons import MakingRoom, NoRoom
from phalanx.decide.scheduler import schedule
from phalanx.decide.scheduler.plan import Plan, Start, Wait
from phalanx.decide.scheduler.snapshot import JobFacts, NodeFacts, PendingJob, RunningJob, Shape, Share, Snapshot
from tests.decide.scheduler.closed_loop import ALL, HIGH, HOUR, LOW, MINUTE, NOW, STANDARD, Loop, facts, fleet, gang


def plan_of(nodes: tuple[NodeFacts, ...], running: Sequence[RunningJob], *pending: JobFacts, policy: Policy | None = None) -> Plan:
    jobs = tuple(PendingJob(job) for job in pending)
    return schedule(Snapshot(NOW, nodes, tuple(running), jobs, policy or Policy()))


def decided(nodes: int, running: Sequence[RunningJob], *pending: JobFacts, policy: Policy | None = None) -> Plan:
    return plan_of(fleet(nodes, held=running), running, *pending, policy=policy)


def victims(plan: Plan) -> list[str]:
    return sorted(evicted.job for evicted in plan.evictions)


def test_a_higher_class_gets_the_room_of_a_lower_one_and_keeps_it() -> None:
    low = gang("low", (0, ALL))
    plan = decided(1, [low], facts("high", priority=HIGH))
    (decision,) = plan.decisions
    assert isinstance(decision, Wait)
    assert decision.reason == MakingRoom((JobId("low"),), 8)
    (evicted,) = plan.evictions
    assert (evicted.job, evicted.claimant, evicted.cause) == ("low", "high", "priority")
    assert evicted.lost_ms == 8 * (HOUR + 60_000)
    (claim,) = plan.claims
    assert (claim.job, claim.placement) == ("high", low.placement)


def test_S05_nobody_is_evicted_unless_a_placement_results() -> None:
    """Four 8-GPU nodes with six high jobs of one GPU on each, eight low ones spread: an 8-GPU job would not fit without the low."""
    running = [gang(f"h-{node}-{index}", (node, [index]), priority=HIGH) for node in range(4) for index in range(6)]
    running += [gang(f"l-{node}-{index}", (node, [index])) for node in range(4) for index in (6, 7)]
    plan = decided(4, running, facts("wide", 8, priority=HIGH))
    assert plan.evictions == () and plan.claims == ()
    (decision,) = plan.decisions
    assert isinstance(decision, Wait) and isinstance(decision.reason, NoRoom)
    assert victims(decided(4, running, facts("two", 2, priority=HIGH))) in [[f"l-{node}-6", f"l-{node}-7"] for node in range(4)]


def test_S08_an_idle_node_and_one_victim() -> None:
    plan = decided(2, [gang("low", (0, ALL))], facts("pair", 8, 2, priority=HIGH))
    assert victims(plan) == ["low"]
    (claim,) = plan.claims
    assert claim.placement is not None
    assert [(part.node, part.devices) for part in claim.placement.slices] == [("n00", tuple(ALL)), ("n01", tuple(ALL))]


def test_S09_gangs_at_their_minimum_are_evicted_whole() -> None:
    pairs = [gang(f"low-{number}", (number * 2, ALL), (number * 2 + 1, ALL)) for number in range(2)]
    plan = decided(4, pairs, facts("one", 8, priority=HIGH))
    assert len(plan.evictions) == 1
    assert plan.evictions[0].keeps is None


def test_S17_least_lost_and_no_reward_for_hiding_checkpoints() -> None:
    """One saved a minute ago and is the cheapest. Of the others one saves every 40 minutes and one never does: it is no dearer."""
    honest = gang("honest", (0, ALL), saved_ms=NOW - MINUTE)
    sometimes = gang("sometimes", (1, ALL), saved_ms=NOW - 40 * MINUTE)
    hides = gang("hides", (2, ALL), placed_ms=NOW - 90 * HOUR)
    assert victims(decided(3, [honest, sometimes, hides], facts("one", 8, priority=HIGH))) == ["honest"]
    assert victims(
        decided(2, [sometimes, replace(hides, placement=gang("x", (0, ALL)).placement)], facts("one", priority=HIGH))
    ) == ["hides"]


def test_a_gang_on_several_nodes_is_paid_once() -> None:
    """Two nodes: a pair that lost two node-hours in all is cheaper than two gangs of which each lost more than one."""
    pair = gang("pair", (0, ALL), (1, ALL), saved_ms=NOW - 10 * MINUTE)
    singles = [gang(f"single-{node}", (node, ALL), saved_ms=NOW - 12 * MINUTE) for node in (2, 3)]
    assert victims(decided(4, [pair, *singles], facts("wide", 8, 2, priority=HIGH))) == ["pair"]
    assert victims(decided(4, [replace(pair, saved_ms=NOW - 14 * MINUTE), *singles], facts("wide", 8, 2, priority=HIGH))) == [
        "single-2",
        "single-3",
    ]


def test_who_turned_out_not_to_be_needed_is_left_alone() -> None:
    """The cheapest node first, which is `cheap`'s. The next one is of a pair, which frees two: so `cheap` is not needed at all."""
    cheap = gang("cheap", (0, ALL), saved_ms=NOW - 9 * MINUTE)
    pair = gang("pair", (1, ALL), (2, ALL), saved_ms=NOW - 11 * MINUTE)
    dear = gang("dear", (3, ALL))
    assert victims(decided(4, [cheap, pair, dear], facts("wide", 8, 2, priority=HIGH))) == ["pair"]


def test_a_gang_that_frees_too_little_is_left_alone() -> None:
    running = [gang("small", (0, [0])), gang("most", (0, range(1, 8)), saved_ms=NOW), gang("other", (1, range(6)), saved_ms=NOW)]
    assert victims(decided(2, running, facts("seven", 7, priority=HIGH))) == ["other"], "two are free beside it"


def protected(**more: Any) -> list[str]:
    policy = more.pop("policy", None)
    asks = more.pop("asks", facts("high", priority=HIGH))
    assert isinstance(policy, Policy | None) and isinstance(asks, JobFacts)
    return victims(decided(1, [gang("low", (0, ALL), **more)], asks, policy=policy))


def test_who_is_not_evicted() -> None:
    spared = Policy(preemption=Preemption(enabled=False))
    assert protected() == ["low"]
    assert protected(asks=facts("same", priority=LOW + 49)) == [], "the same class"
    assert protected(priority=HIGH) == []
    assert protected(stopping=True) == []
    assert protected(placed_ms=NOW - MINUTE) == [], "younger than min_runtime"
    assert protected(placed_ms=NOW - 2 * MINUTE) == ["low"]
    assert protected(evictions=8) == [], "evicted often enough today"
    assert protected(evictions=7) == ["low"]
    assert protected(facts=facts("low", priority=LOW, preemptible=False)) == []
    assert protected(policy=spared) == []


def test_max_victims_bounds_what_one_job_may_end() -> None:
    running = [gang(f"low-{index}", (0, [index])) for index in ALL]
    most = Policy(preemption=Preemption(max_victims=8))
    assert len(victims(decided(1, running, facts("high", priority=HIGH), policy=most))) == 8
    fewer = Policy(preemption=Preemption(max_victims=7))
    assert victims(decided(1, running, facts("high", priority=HIGH), policy=fewer)) == []


def test_what_ends_anyway_is_waited_for_and_nobody_is_ended_for_it() -> None:
    ending = gang("ending", (0, ALL), stopping=True, priority=HIGH)
    plan = decided(2, [ending, gang("low", (1, ALL))], facts("high", priority=HIGH))
    assert plan.evictions == ()
    assert plan.reservations[0].placement == ending.placement


def test_a_job_that_waited_longer_than_its_class_should_says_so() -> None:
    late = PendingJob(replace(facts("late", priority=HIGH), submitted_ms=NOW - HOUR))
    low = gang("low", (0, ALL))
    plan = schedule(Snapshot(NOW, fleet(1, held=[low]), (low,), (late,)))
    assert [evicted.cause for evicted in plan.evictions] == ["target"]


def test_two_jobs_do_not_claim_the_same_devices() -> None:
    running = [gang(f"low-{node}", (node, ALL)) for node in range(2)]
    plan = decided(2, running, facts("first", priority=HIGH), facts("second", priority=HIGH), facts("third", priority=HIGH))
    claimed = [part.node for claim in plan.claims if claim.placement for part in claim.placement.slices]
    assert sorted(claimed) == ["n00", "n01"]
    assert len(plan.evictions) == 2


def test_the_preferred_type_of_equal_cost_is_taken() -> None:
    nodes = (*fleet(1, held=[gang("a", (0, ALL))]), replace(fleet(1, kind="A100")[0], node=NodeId("m00"), free=()))
    on_a100 = replace(gang("b", (0, ALL)), placement=Placement((NodeSlice(NodeId("m00"), tuple(ALL)),)))
    for types in (("H100", "A100"), ("A100", "H100")):
        asks = replace(facts("high", priority=HIGH), shape=Shape(DeviceRequest(types, 8)))
        plan = plan_of(nodes, [gang("a", (0, ALL)), on_a100], asks)
        assert victims(plan) == ["a" if types[0] == "H100" else "b"]


def tier(nodes: tuple[NodeFacts, ...], size: int) -> tuple[NodeFacts, ...]:
    return tuple(replace(node, labels={"domain": f"d{number // size}"}) for number, node in enumerate(nodes))


def test_a_gang_that_must_lie_in_one_domain_gets_one_freed() -> None:
    """The cheap nodes lie in different domains; ending both would not help."""
    running = [gang(f"low-{node}", (node, ALL), saved_ms=NOW - (1 if node in (0, 2) else 9) * MINUTE) for node in range(4)]
    asks = facts("tight", 8, 2, priority=HIGH)
    tight = replace(asks, shape=replace(asks.shape, within="domain"))
    nodes = tier(fleet(4, held=running), 2)
    assert victims(plan_of(nodes, running, tight)) in (["low-0", "low-1"], ["low-2", "low-3"])
    grouped = replace(asks, shape=replace(asks.shape, group=2))
    assert victims(plan_of(nodes, running, grouped)) in (["low-0", "low-1"], ["low-2", "low-3"])


FAIR = Policy(queues={"one": Queue(quota={"H100": 4}), "two": Queue(quota={"H100": 4})})


def test_S02_at_most_what_is_needed_is_reclaimed_once() -> None:
    """proj-1 runs four gangs of 2 on 8 devices of which 4 are its own; proj-2 asks for a gang of 4, or of 3."""
    running = [gang(f"p1-{number}", (0, [2 * number, 2 * number + 1]), priority=STANDARD, queue="one") for number in range(4)]
    for asked in (4, 3):
        plan = decided(1, running, facts("p2", asked, queue="two"), policy=FAIR)
        assert len(plan.evictions) == 2
        assert {evicted.cause for evicted in plan.evictions} == {"reclaim"}
    assert decided(1, running, facts("p2", 5, queue="two"), policy=FAIR).evictions == (), "more than its own"


def test_a_borrower_of_a_higher_class_cannot_evict_back() -> None:
    owner = gang("owner", (0, range(4)), priority=LOW, queue="one")
    borrower = gang("borrower", (0, range(4, 8)), priority=LOW, queue="one")
    plan = decided(1, [owner, borrower], facts("high", 8, priority=HIGH, queue="two"), policy=FAIR)
    assert plan.evictions == (), "four of the eight are guaranteed to others, who use them"


def test_a_waiting_class_without_a_target_is_never_late() -> None:
    policy = Policy(classes={"only": JobClass(priority=0)})
    assert decided(1, [gang("low", (0, ALL))], facts("high", priority=HIGH), policy=policy).evictions == ()


def test_the_order_of_the_snapshot_means_nothing() -> None:
    running = [gang(f"low-{index}", (index // 8, [index % 8])) for index in range(16)]
    pending = [facts(f"high-{number}", 4, priority=HIGH) for number in range(3)]
    plan = decided(2, running, *pending)
    assert plan == decided(2, running[::-1], *pending[::-1])
    assert sum(isinstance(decision, Start) for decision in plan.decisions) == 0


def test_S01_what_the_first_victim_frees_is_held_for_the_preemptor() -> None:
    """It needs A and B; A lets go ten minutes before B, and does not come back into its own hole."""
    loop = Loop(fleet(2), stops_ms=lambda job: MINUTE if job == "a" else 10 * MINUTE)
    loop.running = [gang("a", (0, ALL)), gang("b", (1, ALL))]
    loop.submit(facts("wide", 8, 2, priority=HIGH))
    loop.steps(30)
    assert loop.where("wide") == [NodeId("n00"), NodeId("n01")]
    assert [(job, cause) for _, job, cause in loop.evicted] == [("a", "priority"), ("b", "priority")]
    assert set(loop.started) == {"wide"}, "A and B wait"


def test_S02_S03_reclaiming_ends() -> None:
    """Over many rounds: whoever was evicted has the smallest share and is first in line, and still gets nothing back."""
    loop = Loop(fleet(1), FAIR)
    loop.running = [gang(f"p1-{number}", (0, [2 * number, 2 * number + 1]), priority=STANDARD, queue="one") for number in range(4)]
    loop.submit(facts("p2", 3, queue="two"))
    loop.steps(60, 5 * MINUTE)
    assert len(loop.evicted) == 2
    assert len(loop.where("p2")) == 1


def test_jobs_that_reclaim_share_what_one_large_gang_lets_go_of() -> None:
    """The wide queue comes first by its share of both types, and has too much of one. What one of its gangs leaves beside the claim
    is not given back to it, to be ended again for the next."""
    policy = Policy(queues={"wide": Queue(), "small": Queue()})
    nodes = (*fleet(16), *fleet(20, kind="A100")[16:])
    loop = Loop(nodes, policy)
    loop.running = [
        gang(f"w-{number}", *((4 * number + part, ALL) for part in range(4)), priority=STANDARD, queue="wide")
        for number in range(4)
    ]
    held = gang("a100", *((node, ALL) for node in range(16, 20)), priority=STANDARD, queue="small")
    asks = replace(held.facts.shape, request=replace(held.facts.shape.request, types=("A100",)))
    loop.running.append(replace(held, facts=replace(held.facts, shape=asks)))
    loop.submit(*(facts(f"s-{number}", queue="small") for number in range(8)))
    loop.steps(120, 5 * MINUTE)
    assert [cause for _, _, cause in loop.evicted] == ["reclaim"] * 2
    assert all(loop.where(f"s-{number}") for number in range(8))


def test_S03_the_owner_gets_the_room_and_there_is_no_cycle() -> None:
    """Q1 deserves 3 and runs one job of 4; Q2 deserves 5 and uses 1, four wait: they need what Q1 has too much."""
    policy = Policy(queues={"q1": Queue(quota={"H100": 3}), "q2": Queue(quota={"H100": 5})})
    loop = Loop(fleet(1), policy)
    loop.running = [
        gang("q1-a", (0, range(4)), priority=STANDARD, queue="q1"),
        gang("q2-a", (0, [4]), priority=STANDARD, queue="q2"),
    ]
    loop.submit(*(facts(f"q2-{letter}", 1, queue="q2") for letter in "bcde"))
    loop.steps(60, 5 * MINUTE)
    assert [job for _, job, _ in loop.evicted] == ["q1-a"]
    assert all(loop.where(f"q2-{letter}") for letter in "abcde")
    assert not loop.where("q1-a"), "four do not fit beside five"


def test_S03_without_quotas_by_weights() -> None:
    policy = Policy(queues={"q1": Queue(weight=3), "q2": Queue(weight=5)})
    loop = Loop(fleet(1), policy)
    loop.running = [gang(f"q1-{number}", (0, [2 * number, 2 * number + 1]), priority=STANDARD, queue="q1") for number in range(4)]
    loop.submit(*(facts(f"q2-{number}", 1, queue="q2") for number in range(8)))
    loop.steps(100, 5 * MINUTE)
    assert len(loop.evicted) <= 3
    assert 4 <= sum(bool(loop.where(f"q2-{number}")) for number in range(8)) <= 6


def test_evictions_of_one_job_are_bounded_in_a_day() -> None:
    """High jobs come and go all day; the low one is left alone after so many."""
    loop = Loop(
        fleet(1), Policy(preemption=Preemption(max_evictions=3)), runs_ms={f"high-{number}": 5 * MINUTE for number in range(40)}
    )
    loop.running = [gang("low", (0, ALL))]
    for number in range(40):
        loop.submit(facts(f"high-{number}", 8, priority=HIGH))
        loop.steps(20)
    assert [job for _, job, _ in loop.evicted] == ["low"] * 3
    assert loop.where("low")


def test_what_is_guaranteed_is_taken_back_however_often_a_gang_was_ended() -> None:
    """As docs/scheduling.md says: the bound holds for higher classes, not for the owner of a quota."""
    running = [gang("borrower", (0, ALL), evictions=8, priority=STANDARD, queue="three")]
    quota = Policy(queues={"two": Queue(quota={"H100": 8}), "three": Queue()})
    assert victims(decided(1, running, facts("owner", queue="two"), policy=quota)) == ["borrower"]
    for evictions, ended in ((7, ["low"]), (8, [])):
        low = gang("low", (0, ALL), evictions=evictions)
        assert victims(decided(1, [low], facts("high", priority=HIGH))) == ended


def test_S15_one_of_equals_makes_room_once_and_the_oldest_comes_back_first() -> None:
    """Two slots, e-1 and e-2 run and e-3 waits; e-4 of a higher class comes. Whoever is ended waits in its old place: the other is
    not ended for it, nor does e-3 pass it."""
    loop = Loop(fleet(1, 2), runs_ms={"e-4": HOUR})
    loop.submit(*(facts(f"e-{number}", 1, priority=STANDARD) for number in (1, 2, 3)))
    loop.steps(5)
    loop.submit(facts("e-4", 1, priority=HIGH))
    loop.steps(120)
    assert [cause for _, _, cause in loop.evicted] == ["priority"]
    assert sorted(one.facts.job for one in loop.running) == ["e-1", "e-2"]
    assert set(loop.started) == {"e-1", "e-2", "e-4"}


def test_who_is_above_what_its_parent_is_guaranteed_is_ended_and_no_more_of_it() -> None:
    """Both gangs of a queue of 8 hold 16; a high job asks for all. Were both ended, one would be taken back at once."""
    queues = {"a": Queue(quota={"H100": 8}), "a-1": Queue(parent="a"), "a-2": Queue(parent="a"), "b": Queue(quota={"H100": 8})}
    running = [gang("x-1", (0, ALL), queue="a-1"), gang("x-2", (1, ALL), queue="a-2")]
    policy = Policy(queues=queues)
    assert victims(decided(2, running, facts("all", 8, 2, priority=HIGH, queue="b"), policy=policy)) == []
    assert len(victims(decided(2, running, facts("one", 8, priority=HIGH, queue="c"), policy=policy))) == 1


def shares(name: str, device: int, milli: int, priority: int = LOW, **more: Any) -> RunningJob:
    found = gang(name, (0, [device]), priority=priority, **more)
    shape = replace(found.facts.shape, request=DeviceRequest(("H100",), 1, milli))
    placement = Placement((replace(found.placement.slices[0], milli=milli),))
    return replace(found, facts=replace(found.facts, shape=shape), placement=placement)


def victims_of_a_share(milli: int, *running: RunningJob) -> list[str]:
    """On one node, with as many devices as somebody is on."""
    count = 1 + max(index for one in running for part in one.placement.slices for index in part.devices)
    asks = shares("high", 0, milli, HIGH).facts
    return victims(plan_of(Loop(fleet(1, count), running=list(running)).snapshot().nodes, running, asks))


def test_a_share_gets_what_is_left_of_a_device_and_what_others_let_go_of() -> None:
    firm, low = shares("firm", 0, 500, HIGH), shares("low", 0, 300)
    assert victims_of_a_share(500, firm, low) == ["low"]
    assert victims_of_a_share(501, firm, low) == []


def test_what_two_let_go_of_on_two_devices_makes_no_room_for_a_share() -> None:
    """Names alternate between the devices, so that the first two of them are on different ones."""
    running = [shares(f"low-{number}", number % 2, 300) for number in range(6)]
    assert victims_of_a_share(500, *running) in (["low-0", "low-2"], ["low-1", "low-3"])
    firm = [shares(f"firm-{device}", device, 700, HIGH) for device in range(2)]
    cheap = [shares(f"cheap-{device}", device, 300, saved_ms=NOW) for device in range(2)]
    assert victims_of_a_share(500, *firm, *cheap, shares("firm-2", 2, 500, HIGH), shares("dear", 2, 500)) == ["dear"]


def test_the_cheapest_share_that_is_enough_is_ended_and_none_that_frees_more_than_is_asked_for() -> None:
    small = [shares("small", 0, 500, saved_ms=NOW - MINUTE), shares("firm", 0, 500, HIGH)]
    assert victims_of_a_share(500, *small, shares("large", 1, 1000, saved_ms=NOW - MINUTE)) == ["small"]


def test_a_share_is_bound_by_memory_too() -> None:
    def in_mib(one: RunningJob, mib: int) -> RunningJob:
        return replace(one, placement=Placement(tuple(replace(part, memory_bytes=mib * 2**20) for part in one.placement.slices)))

    running = [in_mib(shares("large", 0, 100), 600), in_mib(shares("small", 0, 100, saved_ms=NOW - MINUTE), 300)]
    node = replace(fleet(1, 1)[0], free=(), device_memory_bytes=1000 * 2**20, shares=(Share(0, 800, 100 * 2**20),))
    asks = shares("high", 0, 100, HIGH).facts
    for mib, ended in ((350, ["small"]), (500, ["large"]), (950, ["large", "small"])):
        request = DeviceRequest(("H100",), 1, 100, mib * 2**20)
        plan = plan_of((node,), running, replace(asks, shape=replace(asks.shape, request=request)))
        assert victims(plan) == ended


def victims_of_whole(count: int, *running: RunningJob) -> list[str]:
    nodes = Loop(fleet(1, 4), running=list(running)).snapshot().nodes
    return victims(plan_of(nodes, running, facts("high", count, priority=HIGH)))


def test_a_shared_device_is_whole_only_when_nobody_stays_on_it() -> None:
    """What is cheap on a device on which somebody stays, or on two devices half each, is of no use to whole ones."""
    firm = [shares(f"firm-{device}", device, 500, HIGH) for device in range(2)]
    cheap = [shares(f"cheap-{device}", device, 500, saved_ms=NOW) for device in range(2)]
    both = [shares("half-2", 2, 500), shares("other-half-2", 2, 500), gang("whole-3", (0, [3]), priority=HIGH)]
    assert victims_of_whole(1, *firm, *cheap, *both) == ["half-2", "other-half-2"]
    halves = [shares(f"{half}-{device}", device, 500) for half in ("a", "b") for device in range(4)]
    assert victims_of_whole(2, *halves) == ["a-0", "a-1", "b-0", "b-1"]


def test_what_ends_anyway_of_a_shared_device_is_no_reason_to_wait_where_somebody_stays_on_it() -> None:
    """Half of each of two devices comes free soon, which makes no whole one: the cheapest other half is ended for it."""
    ending = [shares(f"ending-{device}", device, 500, stopping=True) for device in range(4)]
    stay = [shares(f"low-{device}", device, 500, saved_ms=NOW - device * MINUTE) for device in range(1, 4)]
    assert victims_of_whole(1, *ending, shares("firm", 0, 500, HIGH), *stay) == ["low-1"]


def test_parts_of_a_device_make_a_whole_one() -> None:
    """Added up as floats they are a little less."""
    parts = [shares(f"low-{number}", 0, milli) for number, milli in enumerate((100, 300, 300, 300))]
    others = [gang(f"firm-{device}", (0, [device]), priority=HIGH) for device in (1, 2, 3)]
    assert len(victims_of_whole(1, *parts, *others)) == 4
