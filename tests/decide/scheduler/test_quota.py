"""Who may: guarantees, borrowing and reclaiming, limits, budgets."""

from dataclasses import replace

import pytest

from phalanx.core.reasons import OverBudget, OverLimit, OverQuota
from phalanx.core.units import utc_ms
from phalanx.decide.scheduler import schedule
from phalanx.decide.scheduler.plan import Start, Wait
from phalanx.decide.scheduler.quotas.admission import Admission
from phalanx.decide.scheduler.quotas.budgets import over, resets_ms
from phalanx.decide.scheduler.snapshot import NodeFacts, Snapshot, Usage
from tests.decide.scheduler.sharing import (
    HOUR,
    NOW,
    evicted,
    facts,
    gang,
    job,
    reasons,
    settled,
    started,
    tree_of,
    world,
)

NOT_LENT = "what others are guaranteed is not lent, or is waited for by their own jobs"
FREELY, BORROWING = Admission(True), Admission(True, borrows=True)


def policy(**queues: dict[str, object]) -> dict[str, object]:
    return {"queues": {name.replace("_", "-"): queue for name, queue in queues.items()}}


def h100(count: int, **more: object) -> dict[str, object]:
    return {"quota": {"H100": count}, **more}


def test_within_its_quota_nobody_borrows_and_beyond_it_only_where_others_are_guaranteed_the_rest() -> None:
    tree = tree_of(world(policy(a=h100(4), b=h100(2)), [gang("r-1", "a", 3)]))
    assert tree.admit(facts("j-1", "a"), "H100", 1) == FREELY
    assert tree.admit(facts("j-1", "a"), "H100", 3) == FREELY, "two are nobody's"
    assert tree.admit(facts("j-1", "a"), "H100", 4) == BORROWING
    assert tree.admit(facts("j-1", "none"), "H100", 2) == FREELY
    assert tree.admit(facts("j-1", "none"), "H100", 3) == BORROWING


def test_what_nobody_is_guaranteed_is_gone_once_it_is_used() -> None:
    tree = tree_of(world(policy(a=h100(4)), [gang("r-1", "none", 3)]))
    assert tree.admit(facts("j-1", "other"), "H100", 1) == FREELY
    assert tree.admit(facts("j-1", "other"), "H100", 2) == BORROWING
    assert tree.admit(facts("j-1", "a"), "H100", 4) == FREELY


def test_a_queue_that_may_not_borrow_stays_within_its_quota() -> None:
    tree = tree_of(world(policy(a=h100(2, borrow=False)), [gang("r-1", "a", 1)]))
    assert tree.admit(facts("j-1", "a"), "H100", 1).ok
    refused = tree.admit(facts("j-1", "a"), "H100", 2)
    assert refused.reason == OverQuota("a", "H100", 2, 1, 2, "it may not use more (borrow: false)", True)
    said = "waits for quota: a is guaranteed 2 H100 devices and uses 1, this asks for 2; it may not use more (borrow: false)"
    assert refused.reason.sentence() == said
    other = tree_of(world(policy(a=h100(4), none={"borrow": False})))
    assert other.admit(facts("j-1", "none"), "H100", 4).ok, "nobody is guaranteed them"
    assert not other.admit(facts("j-1", "none"), "H100", 5).ok


def test_a_job_that_is_not_preemptible_never_borrows() -> None:
    tree = tree_of(world(policy(a=h100(4), b=h100(2)), [gang("r-1", "a", 3)]))
    assert tree.admit(facts("j-1", "a", preemptible=False), "H100", 1).ok
    refused = tree.admit(facts("j-1", "a", preemptible=False), "H100", 2)
    assert refused.reason == OverQuota("a", "H100", 4, 3, 2, "a job that is not preemptible may not use more", True)
    assert tree.admit(facts("j-1", "none", preemptible=False), "H100", 2).ok, "a queue without quota has what is nobody's"
    assert not tree.admit(facts("j-1", "none", preemptible=False), "H100", 3).ok


def test_idle_quota_that_is_not_lent_stays_idle() -> None:
    tree = tree_of(world(policy(a=h100(6, lend=False)), [gang("r-1", "a", 1)]))
    assert tree.admit(facts("j-1", "b"), "H100", 2) == FREELY
    refused = tree.admit(facts("j-1", "b"), "H100", 3)
    assert refused.reason == OverQuota("b", "H100", 0, 0, 3, NOT_LENT)
    assert tree.admit(facts("j-1", "a"), "H100", 5) == FREELY


def test_idle_quota_is_lent_unless_an_owners_job_waits_for_it() -> None:
    tree = tree_of(world(policy(a=h100(6))))
    assert tree.admit(facts("j-1", "b"), "H100", 8) == BORROWING
    tree.waits(facts("a-1", "a", 4), 1)
    assert tree.admit(facts("j-1", "b"), "H100", 4) == BORROWING
    assert tree.admit(facts("j-1", "b"), "H100", 5).reason == OverQuota("b", "H100", 0, 0, 5, NOT_LENT)
    tree.waits(facts("a-2", "a", 64), 2)
    assert tree.admit(facts("j-1", "b"), "H100", 4) == BORROWING, "that one asks for more than is guaranteed"
    tree.use(facts("a-1", "a"), "H100", 6)
    assert tree.admit(facts("j-1", "b"), "H100", 2) == FREELY, "all that is guaranteed is used"


def test_a_parents_guarantee_covers_its_children() -> None:
    queues = policy(org=h100(6), a=h100(2, parent="org"), b={"parent": "org"}, other={})
    tree = tree_of(world(queues))
    assert tree.admit(facts("j-1", "b"), "H100", 6) == FREELY
    assert tree.admit(facts("j-1", "a"), "H100", 6) == FREELY
    assert tree.admit(facts("j-1", "other"), "H100", 3) == BORROWING
    tree.use(facts("j-1", "b"), "H100", 5)
    assert tree.admit(facts("j-1", "a"), "H100", 2) == FREELY, "its own quota holds though others of the org used the org's"
    assert tree.admit(facts("j-1", "a"), "H100", 4) == BORROWING
    tree.use(facts("j-1", "a"), "H100", 2)
    assert tree.admit(facts("j-1", "other"), "H100", 1) == FREELY
    assert tree.admit(facts("j-1", "other"), "H100", 2) == BORROWING


def test_siblings_do_not_encroach_on_each_others_guarantees() -> None:
    """Of the org's 8, 5 are a's: what b takes beyond 3 is borrowed of a, whoever guarantees the org how much."""
    for org in ({}, h100(8)):
        tree = tree_of(world(policy(org=org, a=h100(5, parent="org"), b={"parent": "org"})))
        assert tree.admit(facts("j-1", "b"), "H100", 3) == FREELY
        assert tree.admit(facts("j-1", "b"), "H100", 4) == BORROWING
        tree = tree_of(world(policy(org=org, a=h100(5, parent="org", lend=False), b={"parent": "org"})))
        assert tree.admit(facts("j-1", "b"), "H100", 3) == FREELY
        assert not tree.admit(facts("j-1", "b"), "H100", 4).ok


def test_a_childs_own_bounds_hold_under_a_parents_guarantee() -> None:
    strict = h100(2, parent="org", borrow=False)
    tree = tree_of(world(policy(org=h100(8), a=strict, b=h100(2, parent="org"))))
    assert not tree.admit(facts("j-1", "a"), "H100", 3).ok
    assert tree.admit(facts("j-1", "b", preemptible=False), "H100", 6).ok, "the org's guarantee covers it"
    refused = tree.admit(facts("j-1", "b", preemptible=False), "H100", 7)
    assert refused.reason == OverQuota("org", "H100", 8, 0, 7, "a job that is not preemptible may not use more", True)


def test_a_quota_of_any_type_covers_the_types_that_are_not_named() -> None:
    tree = tree_of(world(policy(a={"quota": {"*": 6, "T4": 2}}, b=h100(4)), kinds=("H100", "T4", "L4")))
    assert tree.admit(facts("j-1", "a"), "H100", 6) == FREELY
    assert tree.admit(facts("j-1", "a"), "T4", 2) == FREELY
    tree.use(facts("j-1", "a"), "L4", 4)
    assert tree.admit(facts("j-1", "a"), "H100", 2) == FREELY
    assert tree.admit(facts("j-1", "a"), "H100", 5) == BORROWING, "two of the six are left, four are b's"
    assert tree.admit(facts("j-1", "c"), "T4", 6) == FREELY
    assert tree.admit(facts("j-1", "c"), "T4", 7) == BORROWING


def test_limits_hold_at_every_level_for_what_is_held_however_briefly() -> None:
    queues = policy(org={"limit": {"H100": 6}}, a={"parent": "org", "limit": {"*": 4}}, b={"parent": "org"})
    ending = gang("r-1", "b", 2, stopping=True, evicted_for="x-9")
    tree = tree_of(world(queues, [gang("r-2", "a", 2), ending]))
    assert tree.admit(facts("j-1", "b"), "H100", 2).ok
    refused = tree.admit(facts("j-1", "b"), "H100", 3)
    assert refused.reason == OverLimit("org", "H100", 6, 4, 3)
    assert tree.admit(facts("j-1", "a"), "H100", 3).reason == OverLimit("a", "*", 4, 2, 3)
    assert OverLimit("a", "*", 4, 2, 3).sentence() == "waits for a: its limit is 4 devices, it uses 2, this asks for 3"
    tree.give(facts("r-2", "a"), "H100", 2)
    assert not tree.admit(facts("j-1", "b"), "H100", 3).ok, "who is asked to let go has yet to"
    tree.take_back(facts("r-2", "a"), "H100", 2)
    tree.use(facts("c-1", "b"), "H100", 2)
    tree.drop(facts("c-1", "b"), "H100", 2)
    assert tree.admit(facts("j-1", "b"), "H100", 2).ok, "a claim that was given up holds nothing"


def test_parts_of_devices_count_as_parts() -> None:
    quarter = facts("j-1", "a")
    shape = quarter.shape
    object.__setattr__(shape, "request", type(shape.request)(("H100",), 1, 250))
    tree = tree_of(world(policy(a={"limit": {"H100": 1}})))
    for _ in range(4):
        assert tree.admit(quarter, "H100", 1).ok
        tree.use(quarter, "H100", 1)
    assert tree.admit(quarter, "H100", 1).reason == OverLimit("a", "H100", 1, 1, 1)


HOURS = {"gpu_hours": 100}


def test_a_budget_that_is_used_up_starts_nothing_more_in_the_queue_or_below_it() -> None:
    queues = policy(org={"budget": HOURS}, a={"parent": "org"}, b={})
    spent = {"a": Usage(spent_ms=60 * HOUR), "org": Usage(spent_ms=40 * HOUR), "b": Usage(spent_ms=999 * HOUR)}
    plan = schedule(world(queues, pending=[job("j-1", "a"), job("j-2", "b")], usage=spent))
    assert started(plan) == ["j-2"]
    resets = utc_ms("1970-03-01T00:00Z")
    assert reasons(plan) == {"j-1": OverBudget("org", "GPU-hours", 100, 100, resets)}
    left = {"a": Usage(spent_ms=60 * HOUR), "org": Usage(spent_ms=40 * HOUR - 1)}
    assert started(schedule(world(queues, pending=[job("j-1", "a")], usage=left))) == ["j-1"]


def test_a_budget_is_held_against_what_was_used_not_against_what_a_job_may_use() -> None:
    """80 GPU-hours by its limit, of a budget of 10, of which a moment is left: as docs/scheduling.md says."""
    queues, left = policy(a={"budget": {"gpu_hours": 10}}), {"a": Usage(spent_ms=10 * HOUR - 1)}
    long = job("j-1", "a", 8, limit_ms=10 * HOUR)
    assert started(schedule(world(queues, pending=[long], usage=left))) == ["j-1"]


def test_money_stops_too_and_a_warning_does_not() -> None:
    dear = {"a": Usage(money=500.5)}
    for at, names in (("stop", []), ("warn", ["j-1"])):
        snapshot = world(policy(a={"budget": {"money": 500, "period": "total", "at": at}}), pending=[job("j-1", "a")], usage=dear)
        assert started(schedule(snapshot)) == names
        line = tree_of(snapshot).lines.queue("a")
        assert over(line, NOW) == OverBudget("a", "USD", 500, 500.5, None), "told either way"


@pytest.mark.parametrize(
    ("period", "now", "resets"),
    [
        ("day", "2026-12-31T23:59Z", "2027-01-01T00:00Z"),
        ("week", "2026-12-02T12:00Z", "2026-12-07T00:00Z"),  # a Wednesday
        ("week", "2026-12-07T00:00Z", "2026-12-14T00:00Z"),
        ("month", "2026-12-31T23:59Z", "2027-01-01T00:00Z"),
        ("month", "2028-02-01T00:00Z", "2028-03-01T00:00Z"),
    ],
)
def test_when_a_budget_begins_anew(period: str, now: str, resets: str) -> None:
    budget = tree_of(world(policy(a={"budget": {**HOURS, "period": period}}))).lines.queue("a").budget
    assert budget is not None
    assert resets_ms(budget, utc_ms(now)) == utc_ms(resets)


def test_S07_idle_quota_is_lent_and_reclaimed() -> None:
    """Quota 200, 100 used, the head asks for 200: the other 100 are lent until it is within its quota, then reclaimed."""
    queues = policy(own=h100(200)) | {"preemption": {"min_runtime": "0s"}}
    half = gang("r-1", "own", 4, 25)
    line = [job("head-2", "own", 4, 50), job("b-3", "other", 4, 25)]
    snapshot = world(queues, [half], line, nodes=50, devices=4)
    plan = schedule(snapshot)
    assert started(plan) == ["b-3"], "the head is not within its quota now"
    now, _ = settled(snapshot)
    nodes = tuple(replace(node, free=tuple(range(4)) if "r-1" in held(now, node) else node.free) for node in now.nodes)
    over = replace(now, nodes=nodes, running=tuple(one for one in now.running if one.facts.job != "r-1"))
    plan = schedule(over)
    assert [(one.job, one.cause, one.claimant) for one in plan.evictions] == [("b-3", "reclaim", "head-2")]
    last, _ = settled(over)
    assert [one.facts.job for one in last.running] == ["head-2"]


def held(snapshot: Snapshot, node: NodeFacts) -> set[str]:
    return {one.facts.job for one in snapshot.running for part in one.placement.slices if part.node == node.node}


@pytest.mark.parametrize("priority", [0, 50])
def test_an_owner_reclaims_from_borrowers_of_any_priority_and_they_do_not_take_it_back(priority: int) -> None:
    queues = policy(own=h100(8)) | {"preemption": {"min_runtime": "0s"}}
    snapshot = world(queues, [gang("b-1", "other", 8, priority=100)], [job("o-2", "own", 8, priority=priority)])
    last, plans = settled(snapshot)
    assert [evicted(plan) for plan in plans if plan.evictions] == [["b-1"]]
    assert [one.facts.job for one in last.running] == ["o-2"]


def test_gangs_within_a_guarantee_are_not_ended_for_others_of_higher_priority() -> None:
    queues = policy(own=h100(8)) | {"preemption": {"min_runtime": "0s"}}
    snapshot = world(queues, [gang("o-1", "own", 8, priority=0)], [job("b-2", "other", 8, priority=100)])
    _, plans = settled(snapshot)
    assert not any(plan.evictions for plan in plans)
    own = world(queues, [gang("o-1", "own", 8, priority=0)], [job("o-2", "own", 8, priority=100)])
    last, _ = settled(own)
    assert [one.facts.job for one in last.running] == ["o-2"], "within a queue priority decides as ever"


def test_only_what_is_too_much_is_reclaimed_and_only_what_is_needed() -> None:
    queues = policy(own=h100(6), other=h100(2)) | {"preemption": {"min_runtime": "0s"}}
    running = [gang(f"b-{number}", "other", 2, placed_ms=NOW - HOUR + number) for number in range(1, 5)]
    snapshot = world(queues, running, [job("o-5", "own", 3)])
    taken = evicted(schedule(snapshot))
    assert len(taken) == 2 and "b-1" not in taken, "the oldest is within the quota of its queue"
    assert started(schedule(world(queues, running[:1], [job("o-5", "own", 3)]))) == ["o-5"]


def test_reclaiming_may_be_switched_off() -> None:
    queues = policy(own=h100(8)) | {"preemption": {"min_runtime": "0s", "reclaim": False}}
    line = [job("o-2", "own", 8), job("b-3", "other", 4)]
    plan = schedule(world(queues, [gang("b-1", "other", 4)], line))
    assert evicted(plan) == [] and started(plan) == [], "what is free is kept for the owner meanwhile"


def test_an_elastic_job_starts_as_large_as_its_queue_may_have() -> None:
    for queues in (policy(a=h100(24, borrow=False)), policy(a={"limit": {"H100": 24}}), policy(a={}, b=h100(8, lend=False))):
        wide = job("e-1", "a", 8, 4)
        elastic = replace(wide, facts=replace(wide.facts, shape=replace(wide.facts.shape, min_nodes=2)))
        (decision,) = schedule(world(queues, pending=[elastic], nodes=4)).decisions
        assert isinstance(decision, Start)
        assert len(decision.placement.slices) == 3
        assert started(schedule(world(queues, pending=[wide], nodes=4))) == []
    (decision,) = schedule(world(policy(a=h100(8, borrow=False)), pending=[elastic], nodes=4)).decisions
    assert isinstance(decision, Wait), "two nodes are the fewest"


FIRM_ONLY = "a job that is not preemptible may not use more"


def test_a_firm_job_without_quota_hears_what_nobody_is_guaranteed() -> None:
    """Of eight devices four are guaranteed: such a job may use the other four, and three of them while one is used."""
    queues = policy(a={"quota": {"*": 2}}, b={"quota": {"*": 2}})
    tree = tree_of(world(queues, [gang("r-1", "default", 1)]))
    assert tree.admit(facts("j-1", "default", preemptible=False), "H100", 3) == FREELY
    refused = tree.admit(facts("j-1", "default", preemptible=False), "H100", 4).reason
    assert refused == OverQuota("default", "H100", 4, 1, 4, FIRM_ONLY, True, unpromised=True)
    assert refused.sentence() == (
        "waits for quota: 4 H100 devices are guaranteed to nobody, 1 of them is used, this asks for 4; " + FIRM_ONLY
    )
    borrowed = tree_of(world(queues, [gang("r-1", "other", 6)])).admit(facts("j-1", "default", preemptible=False), "H100", 1).reason
    assert borrowed == OverQuota("default", "H100", 4, 4, 1, FIRM_ONLY, True, unpromised=True), "all of them, and two are lent"
    crowded = tree_of(world(queues, [gang("r-1", "other", 5)])).admit(facts("j-1", "default", preemptible=False), "H100", 4).reason
    assert crowded == OverQuota("default", "H100", 4, 4, 4, FIRM_ONLY, True, unpromised=True), (
        "also where the type has not so many left"
    )
    one = OverQuota("default", "*", 1, 1, 1, FIRM_ONLY, True, unpromised=True)
    assert one.sentence().startswith("waits for quota: 1 device is guaranteed to nobody, and it is used, this asks for 1;")


def test_a_queue_without_quota_that_may_not_borrow_hears_the_same() -> None:
    tree = tree_of(world(policy(a=h100(4), none={"borrow": False}), [gang("r-1", "other", 1)]))
    refused = tree.admit(facts("j-1", "none"), "H100", 4).reason
    assert refused == OverQuota("none", "H100", 4, 1, 4, "none may not borrow (borrow: false)", True, unpromised=True)


def test_of_several_types_the_one_that_is_short_is_told() -> None:
    queues = policy(a={"quota": {"H100": 6}}, b={"quota": {"*": 8}})
    tree = tree_of(world(queues, kinds=("H100", "T4")))
    of_type = tree.admit(facts("j-1", "default", preemptible=False), "H100", 3).reason
    assert of_type == OverQuota("default", "H100", 2, 0, 3, FIRM_ONLY, True, unpromised=True)
    of_all = tree.admit(facts("j-2", "default", preemptible=False), "T4", 3).reason
    assert of_all == OverQuota("default", "*", 2, 0, 3, FIRM_ONLY, True, unpromised=True), "eight are of any type"
