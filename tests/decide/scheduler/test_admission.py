"""What is remembered of who may have how much is forgotten when it may be untrue, and is the same for all users of a queue."""

import random
from dataclasses import replace
from typing import Any

import pytest

from phalanx.core.reasons import NoRoom, OverLimit, OverQuota, Reason
from phalanx.decide.scheduler import schedule
from phalanx.decide.scheduler.plan import Wait
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.snapshot import JobFacts, Snapshot
from tests.decide.scheduler.sharing import HOUR, NOW, evicted, facts, gang, job, tree_of, world

QUEUES: dict[str, dict[str, Any]] = {
    "org": {"quota": {"H100": 10, "T4": 4}, "limit": {"*": 24}},
    "firm": {"parent": "org", "quota": {"H100": 4}, "borrow": False, "lend": False},
    "part": {"parent": "org", "quota": {"*": 4}, "limit": {"H100": 8}},
    "other": {"quota": {"T4": 6}},
    "spent": {"budget": {"gpu_hours": 1, "at": "stop"}},
}
KINDS = ("H100", "T4")


def fleet() -> Snapshot:
    return world({"queues": QUEUES}, [gang("r-1", "part", 2), gang("r-2", "none", 3)], nodes=2, kinds=KINDS)


def asked(tree: Tree) -> list[Reason | None]:
    """Of each queue, for few and many devices of each type."""
    return [
        tree.refusal(facts("j-1", queue, preemptible=preemptible), kind, count)
        for queue in (*QUEUES, "none")
        for kind in KINDS
        for count in (1, 3, 8, 17)
        for preemptible in (True, False)
    ]


def standing(tree: Tree, queue: str, types: tuple[str, ...], count: int) -> tuple[object, ...]:
    """What else is remembered of a queue. Accounts are told by names."""
    long_ago = job("j-1", queue, count, kind=types[0] if types else None, since_ms=NOW - HOUR)
    needs = tree.needs(long_ago.facts)
    told = {(line.name, entry, is_limit): amount for (line, entry, is_limit), amount in needs.items()}
    beside = tree.room_beside(queue, types, needs), tree.may_have(long_ago.facts)
    return told, *beside, tree.borrows_for(long_ago.facts), tree.is_saved(long_ago.facts, "H100")


def move(tree: Tree, draw: random.Random, held: list[tuple[JobFacts, str, int]]) -> None:
    """Something that happens in a decision."""
    one, kind, count = facts("j-2", draw.choice([*QUEUES, "none"])), draw.choice(KINDS), draw.choice((1, 2, 5))
    shape = 10 * KINDS.index(kind) + count
    match draw.randrange(7):
        case 0 | 1:
            tree.use(one, kind, count)
            held.append((one, kind, count))
        case 2 if held:
            tree.give(*held.pop(draw.randrange(len(held))))
        case 3 if held:
            tree.drop(*held.pop(draw.randrange(len(held))))
        case 4:
            tree.waits(facts("j-3", one.queue, count, kind=kind), shape)
        case 5:
            waits = job("j-4", one.queue, count, kind=kind, since_ms=NOW - HOUR)
            tree.save(waits, shape, OverLimit(one.queue, kind, 1, 1, count))
        case _ if held:
            gone = draw.choice(held)
            with tree.trial():
                tree.give(*gone)
                asked(tree)
                tree.take_back(*gone)


@pytest.mark.parametrize("seed", range(30))
def test_who_is_asked_all_along_says_the_same_as_who_is_asked_at_the_end(seed: int) -> None:
    for moves in range(1, 12):
        often, once = tree_of(fleet()), tree_of(fleet())
        for tree in (often, once):
            draw, held = random.Random(seed), list[tuple[JobFacts, str, int]]()
            for _ in range(moves):
                move(tree, draw, held)
                if tree is often:
                    asked(tree)
                    standing(tree, "part", (), 3)
        assert asked(often) == asked(once)
        for queue in (*QUEUES, "none"):
            for types in ((), ("H100",), ("T4",)):
                assert standing(often, queue, types, 3) == standing(once, queue, types, 3)


def test_what_was_refused_stays_refused_for_as_much_or_more() -> None:
    tree, first, much, more = tree_of(fleet()), facts("j-1", "part"), facts("j-2", "part"), facts("j-3", "part")
    refusals = {count: tree.admit(one, "H100", count) for one, count in ((more, 9), (first, 7), (much, 8))}
    assert not any(found.ok for found in refusals.values())
    tree.drop(facts("r-1", "part"), "H100", 2)
    assert tree.admit(first, "H100", 6).ok
    assert tree.refusal(first, "H100", 7) is None, "now there is room"
    assert [tree.admit(first, "H100", count) for count in (7, 8)] == [refusals[7], refusals[7]]


@pytest.mark.parametrize("later", [{"user": "bob"}, {"user": "ann"}, {"user": "ann", "preemptible": False}])
def test_nobody_of_the_queue_gets_what_one_before_it_was_told_to_wait_for(later: dict[str, Any]) -> None:
    """A gang of it is ended for another queue's job in between, which leaves some of its quota unused."""
    running = gang("r-1", "a", 6, priority=75)
    tree = tree_of(world({"queues": {"a": {"quota": {"H100": 4}, "borrow": False}}}, [running], nodes=3))
    refused = tree.admit(facts("j-1", "a", user="ann"), "H100", 2)
    tree.give(running.facts, "H100", 6)
    third = facts("j-3", "a", **later)
    assert not refused.ok and tree.refusal(third, "H100", 2) is None
    assert tree.admit(third, "H100", 2) == refused


def test_of_jobs_alike_one_that_is_refused_saves_what_one_that_is_not_leaves() -> None:
    tree = tree_of(world({"queues": {"a": {"quota": {"H100": 4}}}}, [gang("r-1", "a", 3)], nodes=2))
    waits = job("j-1", "a", 3, since_ms=NOW - HOUR)
    tree.save(waits, 1, NoRoom(3, 0, 16, 0, 0))
    assert not tree.is_saved(waits.facts, "H100"), "it borrows nothing"
    tree.save(waits, 1, OverQuota("a", "H100", 4, 3, 3, "it may not use more"))
    assert tree.is_saved(waits.facts, "H100")


def test_what_one_has_no_part_in_others_may_save_or_keep() -> None:
    """Jobs of other shapes, of which numbers tell, or of other queues."""
    policy = {"queues": {"a": {"quota": {"H100": 4}, "limit": {"H100": 6}}, "b": {"limit": {"H100": 6}}}}
    tree, why = tree_of(world(policy, [gang("r-1", "a", 3), gang("r-2", "b", 4)], nodes=2)), OverLimit("a", "H100", 6, 3, 5)
    tree.save(job("j-1", "a", 7, since_ms=NOW - HOUR), 1, why)
    assert not tree.is_saved(facts("j-3", "a"), "H100"), "so much it never has"
    tree.save(job("j-2", "a", 5, since_ms=NOW - HOUR), 2, why)
    assert tree.is_saved(facts("j-3", "a"), "H100") and not tree.is_saved(facts("j-3", "b"), "H100")
    tree.save(job("j-4", "b", 5, since_ms=NOW - HOUR), 2, why)
    assert tree.is_saved(facts("j-3", "b"), "H100")
    for asks, number in ((facts("j-5", "b", 1), 3), (facts("j-6", "a", 2), 2)):
        tree.waits(asks, number)
    assert not tree.lines.queue("a").kept.get("H100"), "nobody waits within the guarantee"
    tree.waits(facts("j-7", "a", 1), 3)
    assert tree.lines.queue("a").kept["H100"] == 1000


def test_what_is_saved_for_one_stays_its_own_until_another_account_is_short() -> None:
    policy = {"queues": {"a": {"limit": {"H100": 6, "T4": 6}}}}
    tree = tree_of(world(policy, [gang("r-1", "a", 3)], nodes=2, kinds=KINDS))
    for number, name, count in ((1, "j-1", 5), (2, "j-2", 4)):
        before = tree.version
        tree.save(job(name, "a", count, since_ms=NOW - HOUR), number, OverLimit("a", "H100", 6, 3, count))
        assert (tree.version != before) == (name == "j-1"), "the second is short of what is saved already"
    told = tree.refusal(facts("j-3", "a"), "H100", 1)
    assert isinstance(told, OverLimit) and "j-1" in told.because
    other, why = job("j-5", "a", 5, kind="T4", since_ms=NOW - HOUR), OverLimit("a", "T4", 6, 3, 5)
    tree.save(other, 3, why)
    assert not tree.is_saved(facts("j-3", "a"), "T4"), "nothing of it is used"
    tree.use(facts("j-4", "a"), "T4", 3)
    tree.save(other, 3, why)
    assert tree.is_saved(facts("j-3", "a"), "T4"), "what was used since is looked at anew"


def test_only_jobs_that_wait_for_what_their_queue_is_guaranteed_now_keep_it_from_others() -> None:
    tree, asks = tree_of(world({"queues": {"a": {"quota": {"H100": 4}}}})), facts("j-1", "a", 2)
    tree.waits(asks, 1)
    tree.use(facts("j-2", "a"), "H100", 4)
    tree.waits(asks, 1)
    tree.give(facts("j-2", "a"), "H100", 4)
    assert [tree.admit(facts("j-3", "b"), "H100", count).ok for count in (6, 7)] == [True, False]


def test_a_type_that_the_fleet_does_not_have_is_nothing_to_wait_for() -> None:
    """It would fall under what is guaranteed of any type, and nobody could borrow that meanwhile."""
    queues = {"a": {"quota": {"H100": 4, "*": 4}, "limit": {"H100": 6, "*": 6}}}
    tree = tree_of(world({"queues": queues}, [gang("r-1", "a", 4), gang("r-2", "a", 3, kind="T4")], nodes=2, kinds=KINDS))
    asks = job("j-1", "a", 4, since_ms=NOW - HOUR)
    request = replace(asks.facts.shape.request, types=("L4", "H100"))
    asks = replace(asks, facts=replace(asks.facts, shape=replace(asks.facts.shape, request=request)))
    assert tree.saves_for(asks) and {entry for _, entry, _ in tree.needs(asks.facts)} == {"H100"}
    tree.waits(asks.facts, 1)
    assert not any(tree.lines.queue("a").kept.values())


def test_a_queue_may_not_borrow_what_one_below_it_does_not_lend() -> None:
    below = {"org": {}, "firm": {"parent": "org", "quota": {"H100": 4}, "lend": False}}
    tree = tree_of(world({"queues": below}))
    assert [tree.admit(facts("j-1", "org"), "H100", count).ok for count in (4, 5)] == [True, False]


def test_a_user_has_nothing_of_their_own_to_be_refused_by() -> None:
    mine, theirs = tree_of(fleet()), tree_of(fleet())
    mine.use(facts("j-1", "part", user="ann"), "H100", 4)
    theirs.use(facts("j-1", "part", user="bob"), "H100", 4)
    for count in range(1, 9):
        found = {tree.refusal(facts("j-2", "part", user=user), "H100", count) for tree in (mine, theirs) for user in ("ann", "bob")}
        assert len(found) == 1


def test_nobody_is_ended_when_that_takes_more_gangs_than_the_job_gets_devices() -> None:
    """Each of those that are ended holds some of what it gets: two devices cannot be some of what three gangs held."""
    high = job("j-9", "a", 2, priority=75)
    for limit, is_enough in ((4, False), (5, True)):
        running = [gang(f"r-{number}", "a", 1, priority=0) for number in range(5)]
        snapshot = world({"queues": {"a": {"limit": {"H100": limit}}}}, running, [high])
        plan = schedule(snapshot)
        assert len(evicted(plan)) == (2 if is_enough else 0)
        assert is_enough or [type(one.reason) for one in plan.decisions if isinstance(one, Wait)] == [OverLimit]
