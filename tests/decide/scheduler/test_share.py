"""What queues deserve, and taking it from those that have more, without going back and forth."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from phalanx.decide.scheduler import schedule
from phalanx.decide.scheduler.snapshot import PendingJob, RunningJob
from tests.decide.scheduler.sharing import HOUR, NOW, deserts_of, evicted, facts, gang, job, reasons, settled, world
from tests.drawn import examples

AT_ONCE = {"preemption": {"min_runtime": "0s"}}
NAMED: dict[str, Any] = AT_ONCE | {"queues": {name: {} for name in ("a", "b", "proj-1", "proj-2")}}


def fair(policy: dict[str, Any], running: list[RunningJob], pending: list[PendingJob], **more: Any) -> dict[str, float]:
    """Devices that each queue deserves."""
    found = deserts_of(world(policy, running, pending, **more)).fair.of("H100")
    return {line.name: milli / 1000 for line, milli in found.items() if line.name and "/" not in line.name}


def test_queues_share_by_weight_and_what_one_does_not_want_goes_to_the_others() -> None:
    line = [job("a-1", "a", 8), job("b-2", "b", 8)]
    assert fair({}, [], line) == {"a": 4, "b": 4}
    assert fair({"queues": {"a": {"weight": 3}}}, [], line) == {"a": 6, "b": 2}
    assert fair({}, [], [*line, job("c-3", "c", 1)]) == {"a": 3.5, "b": 3.5, "c": 1}
    assert fair({}, [gang("a-9", "a", 2)], [job("b-2", "b", 3)]) == {"a": 2, "b": 3}


def test_a_queue_with_a_quota_deserves_that() -> None:
    quota = {"queues": {"a": {"quota": {"H100": 5}}, "b": {"weight": 2}, "c": {}}}
    line = [job("a-1", "a", 8), job("b-2", "b", 8), job("c-3", "c", 8)]
    assert fair(quota, [], line) == {"a": 5, "b": 2, "c": 1}
    assert fair(quota, [], [job("a-1", "a", 2), *line[1:]]) == {"a": 5, "b": 4, "c": 2}, "what it does not want goes to the others"


def test_what_an_org_deserves_is_divided_below_it() -> None:
    tree = {"queues": {"o": {}, "a": {"parent": "o"}, "b": {"parent": "o"}}}
    line = [job("a-1", "a", 8), job("b-2", "b", 8), job("c-3", "c", 8)]
    assert fair(tree, [], line) == {"o": 4, "a": 2, "b": 2, "c": 4}


def test_what_can_never_run_or_may_not_yet_asks_for_nothing() -> None:
    line = [job("a-1", "a", 8, 9), job("b-2", "b", 8, unmet=("x-9",)), job("c-3", "c", 8)]
    assert fair({}, [], line) == {"c": 8}


def test_S02_a_gang_takes_its_fair_share_from_a_project_that_has_all_and_no_more_than_needed() -> None:
    """proj-1 runs four gangs of 2 on 8 devices; proj-2 asks for a gang of 4, or of 3."""
    running = [gang(f"p1-{number}", "proj-1", 2) for number in range(4)]
    for count in (4, 3):
        snapshot = world(NAMED, running, [job("p2-5", "proj-2", count)])
        last, plans = settled(snapshot)
        assert sum(len(plan.evictions) for plan in plans) == 2, "as many as are needed, once"
        assert {one.facts.queue for one in last.running} == {"proj-1", "proj-2"}
        assert sum(one.facts.shape.num_devices for one in last.running if one.facts.queue == "proj-1") == 4
        assert {plan_evict.cause for plan in plans for plan_evict in plan.evictions} == {"reclaim"}
    more = world(NAMED, running, [job("p2-5", "proj-2", 5)])
    assert evicted(schedule(more)) == [], "five of eight are more than its share"


def test_S03_a_queue_gets_what_it_deserves_and_the_other_does_not_take_it_back() -> None:
    """Q1 deserves 3 and runs one job of 4; Q2 deserves 5, uses 1, and its job of 4 waits."""
    for queues in ({"q1": {"quota": {"H100": 3}}, "q2": {"quota": {"H100": 5}}}, {"q1": {"weight": 3}, "q2": {"weight": 5}}):
        running = [gang("big-1", "q1", 4), gang("own-2", "q2", 1)]
        last, plans = settled(world(AT_ONCE | {"queues": queues}, running, [job("four-3", "q2", 4)]))
        assert [evicted(plan) for plan in plans if plan.evictions] == [["big-1"]]
        assert sorted(one.facts.job for one in last.running) == ["four-3", "own-2"]
        assert [one.facts.job for one in last.pending] == ["big-1"]


def test_shares_take_nothing_from_gangs_of_higher_priority() -> None:
    running = [gang(f"a-{number}", "a", 2, priority=60) for number in range(4)]
    assert evicted(schedule(world(NAMED, running, [job("b-5", "b", 2, priority=50)]))) == []
    assert len(evicted(schedule(world(NAMED, running, [job("b-5", "b", 2, priority=60)])))) == 1


def test_a_queue_that_the_policy_does_not_name_ends_nobody_for_its_share() -> None:
    """Else any name made up at submit would be a claim on a part of the fleet."""
    running = [gang(f"a-{number}", "a", 2) for number in range(4)]
    without: tuple[dict[str, Any], ...] = ({}, {"a": {}})
    for queues in without:
        last, plans = settled(world(AT_ONCE | {"queues": queues}, running, [job("b-5", "b", 2)]))
        assert not any(plan.evictions for plan in plans)
        assert [one.facts.job for one in last.pending] == ["b-5"]
    (taken,) = schedule(world(AT_ONCE | {"queues": {"b": {}}}, running, [job("b-5", "b", 2)])).evictions
    assert taken.cause == "reclaim", "one that it names takes from whoever has too much"


def test_users_of_a_queue_take_nothing_from_each_other() -> None:
    snapshot = world(AT_ONCE, [gang("a-1", user="u", count=8)], [job("b-2", user="v", count=4)])
    assert evicted(schedule(snapshot)) == []
    assert set(reasons(schedule(snapshot))) == {"b-2"}


def test_whose_gangs_are_too_much() -> None:
    """Of a queue's gangs the lowest, and of equals the youngest."""
    running = [
        gang("a-1", "a", 2, placed_ms=NOW - 3 * HOUR, priority=50),
        gang("a-2", "a", 2, placed_ms=NOW - HOUR, priority=70),
        gang("a-3", "a", 2, placed_ms=NOW - 2 * HOUR, priority=50),
        gang("b-4", "b", 2),
    ]
    snapshot = world({"queues": {"b": {}}}, running, [job("b-5", "b", 2)])
    mask = deserts_of(snapshot).reclaimable(facts("b-5", "b", priority=70), "H100", 2)
    names = sorted(one.facts.job for one in running)
    assert [name for name, taken in zip(names, mask, strict=True) if taken] == ["a-3"]


QUEUES = {"a": {"weight": 2.0}, "b": {}, "c": {"quota": {"H100": 5}}, "d": {"parent": "b"}, "e": {"parent": "b", "weight": 3.0}}
GANGS = st.tuples(st.sampled_from(sorted(QUEUES)), st.integers(1, 4), st.sampled_from([40, 50, 80]))


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(GANGS, max_size=8), st.lists(GANGS, max_size=8), st.booleans())
@example([], [("a", 3, 50), ("a", 4, 50), ("c", 1, 40), ("c", 4, 50), ("c", 3, 50), ("d", 1, 80), ("d", 4, 80)], True)
@example([], [("a", 3, 50), ("a", 4, 50), ("c", 1, 40), ("c", 4, 50), ("c", 2, 50), ("d", 1, 80), ("d", 4, 80)], True)
def test_moves_end(held: list[tuple[str, int, int]], asked: list[tuple[str, int, int]], with_quota: bool) -> None:
    """Whatever runs and waits: after some rounds nobody is evicted, started or promised anything any more."""
    queues = QUEUES if with_quota else {name: one for name, one in QUEUES.items() if name != "c"}
    running, left = [], 16
    for number, (queue, count, priority) in enumerate(held):
        if count <= left:
            left -= count
            running.append(gang(f"r-{number}", queue, count, priority=priority, placed_ms=NOW - HOUR + number))
    line = [job(f"w-{number + 10}", queue, count, priority=priority) for number, (queue, count, priority) in enumerate(asked)]
    start = world(AT_ONCE | {"queues": queues, "backfill": True}, running, line, nodes=1, devices=16)
    _, plans = settled(start, rounds=40)
    assert sum(len(plan.evictions) for plan in plans) <= 3 * (len(held) + len(asked))
