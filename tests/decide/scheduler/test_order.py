"""Who comes first: priority, what a node failed, what is late or due, the smallest share, age."""

import random
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.ids import JobId, NodeId
from phalanx.core.reasons import Behind
from phalanx.decide.scheduler import schedule
from phalanx.decide.scheduler.snapshot import PendingJob, Usage
from tests.decide.scheduler.sharing import HOUR, MINUTE, NOW, gang, job, order, order_of_starts, reasons, started, world
from tests.drawn import examples

WEEK_MS = 7 * 24 * HOUR


def test_priority_goes_before_everything_else() -> None:
    line = [
        job("old-1", priority=10, since_ms=NOW - 100 * HOUR),
        job("due-2", priority=10, deadline_ms=NOW),
        job("failed-3", priority=10, repair=True),
        job("high-4", "busy", priority=11),
    ]
    usage = {"busy": Usage(decayed=8.0 * WEEK_MS)}
    assert order(world({}, pending=line, usage=usage)) == ["high-4", "failed-3", "due-2", "old-1"]


def test_S10_a_gang_that_a_node_failed_goes_before_its_equals() -> None:
    """A drained node comes back: the gang that lost it gets the slot, not an unrelated job of equal priority that is older."""
    line = [job("other-1", count=8), job("gang-2", count=8, repair=True), job("other-3", count=8, repair=False)]
    snapshot = world({}, pending=line)
    assert order(snapshot) == ["gang-2", "other-1", "other-3"]
    assert started(schedule(snapshot)) == ["gang-2"]


def test_S15_equals_are_stable_and_a_newcomer_of_lower_priority_changes_nothing() -> None:
    line = [job("e-1", priority=40), job("e-2", priority=40), job("e-3", priority=40), job("e-4", priority=30)]
    for pending in (line, line[::-1], line[2:] + line[:2]):
        assert order(world({}, pending=pending)) == ["e-1", "e-2", "e-3", "e-4"]


def test_a_job_with_a_claim_goes_before_all() -> None:
    claim = Placement((NodeSlice(NodeId("h100-0"), (0,)),))
    assert order(world({}, pending=[job("a-1", priority=100), job("b-2", priority=0, claim=claim)])) == ["b-2", "a-1"]


def test_what_has_waited_longer_than_its_class_should_goes_before_those_of_its_priority() -> None:
    late = NOW - 31 * MINUTE
    line = [job("due-1", deadline_ms=NOW + HOUR), job("late-2", since_ms=late), job("high-3", priority=75)]
    assert order(world({}, pending=line)) == ["high-3", "late-2", "due-1"]
    line[2] = job("high-3", priority=74)
    assert order(world({}, pending=line)) == ["high-3", "late-2", "due-1"], "priority counts, not the class"
    patient = {"classes": {"all": {"priority": 0, "wait_target": "40m"}}}
    assert order(world(patient, pending=line)) == ["high-3", "due-1", "late-2"]
    assert order(world({"classes": {}}, pending=line)) == ["high-3", "due-1", "late-2"], "no classes, no targets"
    assert order(world({}, pending=[job("now-1", since_ms=NOW - 30 * MINUTE), job("late-2", since_ms=late)])) == ["late-2", "now-1"]


def test_the_earliest_to_be_started_for_its_deadline_goes_first() -> None:
    line = [
        job("none-1"),
        job("later-2", deadline_ms=NOW + 5 * HOUR),
        job("long-3", deadline_ms=NOW + 6 * HOUR, expected_ms=4 * HOUR),
        job("done-4", deadline_ms=NOW + 6 * HOUR, expected_ms=4 * HOUR, done_ms=3 * HOUR),
        job("same-5", deadline_ms=NOW + 5 * HOUR),
    ]
    for pending in (line, line[::-1]):
        assert order(world({}, pending=pending)) == ["long-3", "later-2", "done-4", "same-5", "none-1"]


def test_a_queue_gets_nothing_ahead_of_others_by_wanting_all_by_tomorrow() -> None:
    """Greedy has half of the fleet already; its deadlines and old jobs count among its own only."""
    greedy = [gang("g-1", "greedy", 5)]
    urgent = [job("due-2", "greedy", deadline_ms=NOW + 9 * HOUR), job("late-3", "greedy", since_ms=NOW - 9 * HOUR)]
    soonest = job("first-4", "greedy", deadline_ms=NOW + HOUR)
    modest = job("m-5", "modest")
    assert order(world({}, greedy, [*urgent, soonest, modest])) == ["m-5", "first-4", "due-2", "late-3"]
    few = [gang("g-1", "greedy", 2)]
    assert order(world({}, few, [*urgent, soonest, modest])) == ["late-3", "first-4", "due-2", "m-5"]
    guaranteed = {"queues": {"greedy": {"quota": {"H100": 6}}}}
    assert order(world(guaranteed, greedy, [urgent[0], modest]))[0] == "due-2", "its quota is its own"


def test_users_beside_queues_have_a_part_of_their_own() -> None:
    """The inner queue holds more than half of what its parent may, and the other half is for the parent's own user."""
    queues = {"queues": {"team": {}, "team-tune": {"parent": "team"}}}
    late, direct = job("late-1", "team-tune", since_ms=NOW - 9 * HOUR), job("own-2", "team", user="ann")
    assert order(world(queues, [gang("g-1", "team-tune", 5)], [late, direct])) == ["own-2", "late-1"]
    assert order(world(queues, [gang("g-1", "team-tune", 4)], [late, direct])) == ["late-1", "own-2"]


def test_two_teams_interleave_as_their_jobs_start() -> None:
    line = [job(f"a-{number}", "a") for number in range(1, 5)] + [job(f"b-{number}", "b") for number in range(5, 9)]
    assert order_of_starts(world({}, pending=line)) == ["a-1", "b-5", "a-2", "b-6", "a-3", "b-7", "a-4", "b-8"]
    assert order(world({}, pending=line)) == [f"{'ab'[number > 4]}-{number}" for number in range(1, 9)], "nobody started"
    weights = {"queues": {"a": {"weight": 3}, "b": {}}}
    assert order_of_starts(world(weights, pending=line)) == ["a-1", "b-5", "a-2", "a-3", "a-4", "b-6", "b-7", "b-8"]


def test_shares_are_compared_from_the_root_down() -> None:
    """Research holds less than product, so its job goes first though its own team holds more than product's other team."""
    queues = {
        "research": {},
        "product": {},
        "nlp": {"parent": "research"},
        "ads": {"parent": "product"},
        "web": {"parent": "product"},
    }
    running = [gang("r-1", "nlp", 2), gang("r-2", "ads", 3)]
    line = [job("w-3", "web"), job("a-4", "ads"), job("n-5", "nlp")]
    assert order(world({"queues": queues}, running, line)) == ["n-5", "w-3", "a-4"]


def test_users_of_a_queue_share_it() -> None:
    line = [job(f"u-{number}", user="u") for number in range(1, 4)] + [job("v-4", user="v"), job("w-5")]
    assert order_of_starts(world({}, pending=line)) == ["u-1", "v-4", "w-5", "u-2", "u-3"]
    assert order(world({}, [gang("u-9", user="u")], line))[:2] == ["v-4", "w-5"]


def test_users_of_a_queue_share_it_in_types_that_are_not_its_dominant_one() -> None:
    """What bob takes of the other type changes nothing of what the queue has most of."""
    line = [
        job("bob-1", user="bob", kind="T4"),
        job("bob-2", user="bob", kind="T4", limit_ms=HOUR),
        job("eve-3", user="eve", kind="T4"),
    ]
    busy = [gang("g-9", count=6, user="ann")]
    assert order_of_starts(world({}, busy, line, kinds=("H100", "T4"))) == ["bob-1", "eve-3", "bob-2"]


def test_what_was_used_counts_half_after_a_half_life() -> None:
    """A queue that had a quarter of the fleet for long stands behind one that holds an eighth now, and before one that had all."""
    steady = 8.0 * WEEK_MS / 0.6931  # of all devices, in the end
    usage = {"a": Usage(decayed=steady / 4), "b": Usage(decayed=steady / 16), "c": Usage(decayed=steady)}
    line = [job("a-1", "a"), job("c-2", "c"), job("b-3", "b")]
    assert order(world({}, [gang("b-9", "b")], line, usage=usage)) == ["b-3", "a-1", "c-2"]


def test_the_dominant_share_counts_over_device_types_and_over_cores() -> None:
    """A quarter of the T4 is more than an eighth of the H100; half of all cores is more than either."""
    running = [gang("t-1", "t", 2, kind="T4"), gang("h-2", "h", 1, kind="H100")]
    line = [job("h-3", "h"), job("t-4", "t")]
    snapshot = world({}, running, line, nodes=1, devices=8, kinds=("H100", "T4"))
    assert order(snapshot) == ["h-3", "t-4"], "an eighth and a quarter"
    hungry = replace(running[1], facts=replace(running[1].facts, shape=replace(running[1].facts.shape, cpus=64.0)))
    assert order(world({}, [running[0], hungry], line, kinds=("H100", "T4"))) == ["t-4", "h-3"]


def test_fifo_is_priority_and_age() -> None:
    line = [job("a-1", "a"), job("a-2", "a", deadline_ms=NOW), job("b-3", "b", since_ms=NOW - 9 * HOUR), job("c-4", priority=60)]
    assert order(world({"order": "fifo"}, [gang("x-9", "a", 6)], line)) == ["c-4", "a-1", "a-2", "b-3"]


def test_those_within_their_quota_go_before_borrowers_whatever_their_priority() -> None:
    policy = {"queues": {"own": {"quota": {"H100": 8}}}}
    line = [job("b-1", "other", priority=90), job("o-2", "own", priority=10, count=4), job("o-3", "own", priority=20, count=4)]
    assert order(world(policy, pending=line)) == ["o-3", "o-2", "b-1"]
    half = {"queues": {"own": {"quota": {"H100": 4}}}}
    held = world(half, [gang("r-9", "own", 4)], line, nodes=3)
    assert order(held) == ["b-1", "o-3", "o-2"], "the quota is used up, and nobody is guaranteed the rest"


def test_who_takes_what_nobody_is_guaranteed_passes_nobody_of_its_line_that_borrows() -> None:
    """Else a stream of small jobs would starve a large one, whose queue has no quota that could be saved for it, for others' idle
    quota alone."""
    running = [gang("r-9", "b", 8, limit_ms=HOUR)]
    line = [job("b-1", "b", 8, 2, limit_ms=HOUR), job("b-2", "b", 4, limit_ms=24 * HOUR)]
    for queues in (dict[str, Any](b={}), {"a": {"quota": {"H100": 4}}}):
        plan = schedule(world({"queues": queues, "preemption": {"reclaim": False}}, running, line, nodes=2))
        assert (started(plan), [kept.job for kept in plan.reservations]) == ([], ["b-1"])
        assert reasons(plan)["b-2"] == Behind(JobId("b-1"), 2)


JOBS = st.builds(
    lambda number, queue, user, priority, count, repair, waited, due: job(
        f"j-{number}", queue, count, user=user, priority=priority, repair=repair, since_ms=NOW - waited * MINUTE,
        deadline_ms=None if due is None else NOW + due * HOUR,
    ),
    st.just(0), st.sampled_from(["a", "b", "b1", "c"]), st.sampled_from(["", "u", "v"]), st.sampled_from([10, 50, 75]),
    st.integers(1, 4), st.booleans(), st.integers(0, 60), st.sampled_from([None, None, 1, 2]),
)  # fmt: skip
POLICY = {"queues": {"a": {"weight": 2.5}, "b": {"quota": {"H100": 6}}, "b1": {"parent": "b"}}}


def numbered(jobs: list[PendingJob]) -> list[PendingJob]:
    """Names and times are each one's own."""
    found = []
    for number, one in enumerate(jobs):
        name = job(f"j-{number}").facts
        found.append(replace(one, facts=replace(one.facts, job=name.job, sequence=number, submitted_ms=name.submitted_ms)))
    return found


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(JOBS, max_size=25).map(numbered), st.lists(JOBS, max_size=5).map(numbered), st.randoms(use_true_random=False))
def test_order_is_total_keeps_priority_and_does_not_depend_on_the_input(
    line: list[PendingJob], held: list[PendingJob], shuffling: random.Random
) -> None:
    running = [gang(f"r-{number}", one.facts.queue, one.facts.shape.request.count) for number, one in enumerate(held)]
    snapshot = world(POLICY, running, line, nodes=6)
    for walk in (order, order_of_starts):
        found = walk(snapshot)
        assert sorted(found) == sorted(one.facts.job for one in line)
        shuffled = [*line]
        shuffling.shuffle(shuffled)
        assert walk(world(POLICY, running, shuffled, nodes=6)) == found
    places = {name: place for place, name in enumerate(order_of_starts(world({}, running, line, nodes=6)))}
    for one in line:
        for other in line:
            if one.facts.priority > other.facts.priority:
                assert places[one.facts.job] < places[other.facts.job], "without quotas nobody borrows"
            same = (one.facts.queue, one.facts.user, one.facts.priority, one.repair) == (
                other.facts.queue, other.facts.user, other.facts.priority, other.repair,
            )  # fmt: skip
            alike = one.facts.deadline_ms == other.facts.deadline_ms and one.since_ms == other.since_ms
            if same and alike and one.facts.sequence < other.facts.sequence:
                assert places[one.facts.job] < places[other.facts.job], "equals never change places"


def test_shortest_takes_the_least_remaining_service_first() -> None:
    line = [
        job("long-1", expected_ms=9 * HOUR),
        job("short-2", expected_ms=HOUR),
        job("nearly-3", expected_ms=9 * HOUR, done_ms=9 * HOUR - MINUTE),
        job("wide-4", count=8, expected_ms=HOUR),
        job("high-5", priority=60, expected_ms=99 * HOUR),
    ]
    for pending in (line, line[::-1]):
        assert order(world({"order": "shortest"}, pending=pending)) == ["high-5", "nearly-3", "short-2", "wide-4", "long-1"]


def test_blind_reads_no_durations_and_puts_back_what_has_had_much() -> None:
    line = [
        job("served-1", served_ms=99 * HOUR, expected_ms=MINUTE),
        job("new-2", expected_ms=99 * HOUR),
        job("failed-3", repair=True),
    ]
    snapshot = world({"order": "blind"}, [gang("r-9", count=2, expected_ms=HOUR)], line)
    assert order(snapshot) == ["failed-3", "new-2", "served-1"]
    assert started(schedule(snapshot)) == ["failed-3", "new-2", "served-1"]
