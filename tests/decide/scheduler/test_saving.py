"""Queues save up for whoever has waited for long, so that small jobs starve no gang that their quota or limit has room for."""

import pytest

from phalanx.core.ids import JobId
from phalanx.core.policy import Policy, Queue
from phalanx.core.reasons import OverLimit, OverQuota
from phalanx.decide.scheduler.plan import Plan, Wait
from phalanx.decide.scheduler.quotas.saving import SAVES_MS
from phalanx.decide.scheduler.snapshot import PendingJob
from tests.decide.scheduler.closed_loop import ALL, HIGH, MINUTE, STANDARD, Loop, facts, fleet, gang

QUOTA, LIMIT, FIRM = Queue(quota={"H100": 32}), Queue(limit={"H100": 32}), Queue(quota={"H100": 32}, borrow=False)


def crowded(queue: Queue, order: str = "fair") -> Loop:
    """Half of the fleet is the other queue's for ever; of queue `a` four small jobs run, and one starts whenever one ends."""
    policy = Policy(queues={"a": queue, "b": Queue(quota={"H100": 32})}, order=order)  # type: ignore[arg-type]
    loop = Loop(fleet(8), policy)
    loop.running = [gang("b", *((node, ALL) for node in range(4)), queue="b", priority=STANDARD)]
    for number in range(4):
        small(loop, number, (number + 1) * 5)
        loop.step()
    return loop


def small(loop: Loop, number: int, runs: int = 20, priority: int = STANDARD) -> None:
    loop.runs_ms[f"s-{number}"] = runs * MINUTE
    loop.submit(facts(f"s-{number}", queue="a", priority=priority))


def waits(plan: Plan, job: str) -> Wait:
    (found,) = [one for one in plan.decisions if one.job == job]
    assert isinstance(found, Wait)
    return found


@pytest.mark.parametrize("queue", [QUOTA, LIMIT, FIRM])
@pytest.mark.parametrize("order", ["fair", "fifo"])
def test_a_stream_of_small_jobs_does_not_starve_a_gang_as_large_as_the_quota_or_limit(queue: Queue, order: str) -> None:
    loop = crowded(queue, order)
    loop.submit(facts("big", 8, 4, queue="a"))
    begin_ms = loop.now_ms
    for number in range(10, 10 + 24):
        small(loop, number)
        loop.steps(5)
    assert loop.started["big"][0] - begin_ms <= SAVES_MS + 25 * MINUTE, "those that run by then end within 20 minutes"
    assert not loop.evicted


@pytest.mark.parametrize(
    "queues",
    [
        {"a": Queue(quota={"H100": 16}, limit={"H100": 32})},
        {"a": Queue(quota={"H100": 16})},
        {"a": Queue(parent="team"), "team": Queue(limit={"H100": 32}), "kid": Queue(parent="team", quota={"H100": 16})},
    ],
)
@pytest.mark.parametrize("order", ["fair", "fifo"])
def test_nor_does_a_stream_that_is_guaranteed_what_it_asks_for(queues: dict[str, Queue], order: str) -> None:
    """The gang asks for twice the guarantee of its queue, or of one beside it, and all that the limit has."""
    loop = Loop(fleet(4), Policy(queues=queues, order=order))  # type: ignore[arg-type]
    queue = "kid" if "kid" in queues else "a"
    loop.submit(facts("big", 8, 4, queue="a"))
    begin_ms = loop.now_ms
    for number in range(24):
        loop.runs_ms[f"s-{number}"] = 15 * MINUTE
        loop.submit(facts(f"s-{number}", queue=queue))
        if not number:
            loop.pending.reverse()  # it was there before
        loop.steps(5)
    assert loop.started["big"][0] - begin_ms <= SAVES_MS + 16 * MINUTE
    assert len(loop.started) >= 5, "until then they pass it"


def test_what_cannot_start_whatever_is_free_lets_others_pass() -> None:
    """More than the fleet has, or it waits for another job: the guaranteed ones come before a stranger's all the same."""
    policy = Policy(queues={"a": Queue(quota={"H100": 8}), "b": Queue(weight=9.0)})
    for stuck in (PendingJob(facts("big", 8, 2, queue="a"), unmet=(JobId("other"),)), PendingJob(facts("big", 8, 4, queue="a"))):
        loop = Loop(fleet(2), policy)
        loop.running = [gang("held", (1, ALL), queue="b", priority=STANDARD)]
        loop.pending = [stuck]
        loop.steps(SAVES_MS // MINUTE + 2)
        loop.submit(facts("stranger", queue="b", priority=HIGH))
        loop.submit(facts("small", queue="a"))
        loop.step()
        assert loop.where("small") and not loop.where("stranger")


def test_until_it_has_waited_for_long_it_is_passed_and_then_it_is_told_for_whom() -> None:
    loop = crowded(LIMIT)
    loop.submit(facts("big", 8, 4, queue="a"))
    small(loop, 10)
    loop.steps(6)
    assert loop.where("s-10"), "others may have what it cannot use yet"
    loop.steps(SAVES_MS // MINUTE)
    small(loop, 11, 200)
    loop.step()
    assert loop.where("big")
    loop.submit(facts("huge", 8, 4, queue="a"))
    loop.runs_ms["big"] = 1
    small(loop, 12, 200)
    loop.step()
    assert loop.where("s-11") and loop.where("s-12")
    loop.steps(SAVES_MS // MINUTE + 1)
    small(loop, 13)
    small(loop, 14, priority=HIGH)
    plan = loop.step()
    because = "what is left is saved for huge, which came before it"
    assert waits(plan, "s-13").reason == OverLimit("a", "H100", 32, 24, 8, because)
    assert waits(plan, "s-13").reason.sentence().endswith(f"it uses 24, this asks for 8; {because}")
    assert loop.where("s-14"), "who comes before it takes what it wants"


def test_what_is_saved_is_lent_to_others_and_never_for_what_the_queue_could_not_have() -> None:
    loop = crowded(FIRM)
    loop.submit(facts("big", 8, 4, queue="a"), facts("more", 8, 5, queue="a"))
    loop.runs_ms.update({f"s-{number}": 10_000 * MINUTE for number in range(3)})
    loop.steps(SAVES_MS // MINUTE + 1)
    loop.submit(facts("guest", queue="b"))
    small(loop, 10)
    plan = loop.step()
    assert loop.where("guest"), "a node that the queue saves idles for nobody"
    assert isinstance(waits(plan, "s-10").reason, OverQuota)
    loop.pending = [one for one in loop.pending if one.facts.job != "big"]
    loop.running = [one for one in loop.running if one.facts.job != "guest"]
    loop.step()
    assert loop.where("s-10"), "five nodes are more than its quota, so that nothing is saved for `more`"
