"""A queue that may have no more: a higher class takes the place of lower ones of that queue, and of nobody else."""

from collections.abc import Sequence

import pytest

from phalanx.core.policy import Policy, Preemption, Queue
from phalanx.core.reasons import MakingRoom, OverLimit, OverQuota
from phalanx.decide.scheduler import schedule
from phalanx.decide.scheduler.memory import Memory
from phalanx.decide.scheduler.plan import Plan, Wait
from phalanx.decide.scheduler.room import handover
from phalanx.decide.scheduler.round import Round
from phalanx.decide.scheduler.snapshot import JobFacts, PendingJob, RunningJob, Snapshot
from tests.decide.scheduler.closed_loop import ALL, HIGH, HOUR, LOW, MINUTE, NOW, STANDARD, Loop, facts, fleet, gang

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


def test_those_that_are_not_needed_after_all_stay() -> None:
    """The cheapest are tried first; together with a larger one the small one lets go of nothing that is lacking."""
    running = [gang("small", (0, range(4)), queue="a", saved_ms=NOW), gang("large", (1, ALL), queue="a")]
    limit = Queue(limit={"H100": 12})
    assert ended(decided(limit, running, facts("high", queue="a", priority=HIGH))) == [("large", "priority")]


def test_what_is_ended_counts_until_it_is_gone() -> None:
    """For others of its queue, who would else hold more than it may together with it."""
    running = [gang("low", (0, ALL), (1, ALL), queue="a")]
    jobs = (PendingJob(facts("high", queue="a", priority=HIGH)), PendingJob(facts("next", queue="a", user="bob")))
    plan = schedule(Snapshot(NOW, fleet(6, held=running), tuple(running), jobs, Policy(queues={"a": LIMIT})))
    assert ended(plan) == [("low", "priority")]
    assert [type(one.reason) for one in plan.decisions if isinstance(one, Wait)] == [MakingRoom, OverLimit]


def test_whom_it_helps_when_somebody_is_ended_is_found_out_for_each_queue_and_priority() -> None:
    running = [gang("low", (0, ALL), queue="a", priority=STANDARD), gang("b-low", (1, range(6)), queue="b", priority=STANDARD)]
    old = PendingJob(facts("old", 4, queue="b", priority=LOW, submitted_ms=NOW - HOUR))
    policy = Policy(queues={"a": LIMIT, "b": Queue(limit={"H100": 8})})
    round_ = Round.of(Snapshot(NOW, fleet(6, held=running), tuple(running), (old,), policy), Memory())
    round_.tree.save(old, 1, OverLimit("b", "H100", 8, 6, 4))
    helped = {
        (queue, priority): handover.helped_on(PendingJob(facts("new", 2, queue=queue, priority=priority)), ("H100",), round_)
        for queue in ("b", "a")
        for priority in (STANDARD, HIGH)
    }
    assert helped == {("b", STANDARD): [], ("b", HIGH): [], ("a", STANDARD): [], ("a", HIGH): ["H100"]}


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
