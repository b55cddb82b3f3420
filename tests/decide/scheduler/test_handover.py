"""A queue that may have no more: a higher class takes the place of lower ones of that queue, and of nobody else."""

from collections.abc import Sequence

import pytest

from phalanx.core.policy import Policy, Preemption, Queue
from phalanx.core.reasons import OverLimit, OverQuota
from phalanx.decide.scheduler import schedule
from phalanx.decide.scheduler.plan import Plan, Wait
from phalanx.decide.scheduler.snapshot import JobFacts, PendingJob, RunningJob, Snapshot
from tests.decide.scheduler.closed_loop import ALL, HIGH, LOW, MINUTE, NOW, STANDARD, Loop, facts, fleet, gang

LIMIT = Queue(limit={"H100": 16})
FIRM = Queue(quota={"H100": 16}, borrow=False)


def decided(queue: Queue, running: Sequence[RunningJob], job: JobFacts, **more: object) -> Plan:
    policy = Policy(queues={"a": queue, "a-1": Queue(parent="a"), "b": Queue()}, **more)  # type: ignore[arg-type]
    return schedule(Snapshot(NOW, fleet(6, held=running), tuple(running), (PendingJob(job),), policy))


def ended(plan: Plan) -> list[tuple[str, str]]:
    return [(one.job, one.cause) for one in plan.evictions]


@pytest.mark.parametrize("queue", [LIMIT, FIRM])
@pytest.mark.parametrize("preemptible", [True, False])
def test_a_higher_class_is_not_kept_waiting_by_lower_ones_of_its_queue(queue: Queue, preemptible: bool) -> None:
    """Of its queue or below; the one that loses the least, since one is enough. Gangs of others stay, though they are lower."""
    running = [
        gang("a-low", (0, ALL), queue="a"),
        gang("a-saved", (1, ALL), queue="a-1", saved_ms=NOW),
        gang("b", (2, ALL), queue="b"),
    ]
    plan = decided(queue, running, facts("high", queue="a", priority=HIGH, preemptible=preemptible))
    assert ended(plan) == [("a-saved", "priority")]
    (claim,) = plan.claims
    assert claim.placement is not None and [part.node for part in claim.placement.slices] == ["n01"]


def test_it_takes_free_nodes_beside_those_of_one_that_is_ended() -> None:
    plan = decided(LIMIT, [gang("low", (0, ALL), queue="a")], facts("pair", 8, 2, queue="a", priority=HIGH))
    assert ended(plan) == [("low", "priority")]
    (claim,) = plan.claims
    assert claim.placement is not None and len(claim.placement.slices) == 2


@pytest.mark.parametrize(
    ("running", "preemption"),
    [
        (gang("equal", (0, ALL), (1, ALL), queue="a", priority=HIGH), Preemption()),
        (gang("young", (0, ALL), (1, ALL), queue="a", placed_ms=NOW - MINUTE), Preemption()),
        (gang("spared", (0, ALL), (1, ALL), queue="a", evictions=8), Preemption()),
        (gang("low", (0, ALL), (1, ALL), queue="a"), Preemption(enabled=False)),
    ],
)
def test_who_stays(running: RunningJob, preemption: Preemption) -> None:
    plan = decided(LIMIT, [running], facts("high", queue="a", priority=HIGH), preemption=preemption)
    assert ended(plan) == []
    (decision,) = plan.decisions
    assert isinstance(decision, Wait) and isinstance(decision.reason, OverLimit)


def test_nobody_is_ended_where_that_is_not_enough() -> None:
    running = [gang("low", (0, ALL), queue="a"), gang("high-1", (1, ALL), queue="a", priority=HIGH)]
    plan = decided(FIRM, running, facts("pair", 8, 2, queue="a", priority=HIGH))
    assert ended(plan) == [] and plan.claims == ()
    (decision,) = plan.decisions
    assert isinstance(decision, Wait) and isinstance(decision.reason, OverQuota)


def test_the_queue_never_holds_more_than_its_limit() -> None:
    """However long those that are ended take; and what they held is not theirs again."""
    loop = Loop(fleet(4), Policy(queues={"a": LIMIT}), stops_ms=lambda job: 10 * MINUTE if job == "low-0" else MINUTE)
    loop.running = [gang(f"low-{node}", (node, ALL), queue="a", priority=LOW) for node in range(2)]
    loop.submit(facts("pair", 8, 2, queue="a", priority=HIGH), facts("next", queue="a", priority=STANDARD))
    for _ in range(30):
        loop.step()
        assert sum(one.placement.world_size for one in loop.running) <= 16
    assert [one.facts.job for one in loop.running] == ["pair"]
    assert len(loop.evicted) == 2
