"""Jobs alike are decided together, which changes nothing for any of them."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.ids import JobId
from phalanx.decide.scheduler import Plan, Snapshot, Wait, schedule
from phalanx.decide.scheduler.known import Shapes
from phalanx.decide.scheduler.line import fair_order
from phalanx.decide.scheduler.line.sweeps import Batch, Sweeps, alone
from phalanx.decide.scheduler.memory import Memory
from phalanx.decide.scheduler.snapshot import PendingJob
from tests.decide.scheduler.sharing import HOUR, MINUTE, NOW, gang, job, order, order_of_starts, world
from tests.decide.scheduler.snapshots import snapshots
from tests.drawn import examples


def cut(*line: PendingJob) -> list[list[str]]:
    return sorted(names(Sweeps().batches(world({}, pending=line), Shapes().number)))


def names(batches: list[Batch]) -> list[list[str]]:
    return [[str(one.facts.job) for one in batch.jobs] for batch in batches]


def swept(snapshot: Snapshot, choosing: random.Random) -> Snapshot:
    """Of each job several, as people submit them: some one after the other, some between those of others."""
    found = list[PendingJob]()
    for one in snapshot.pending:
        found.append(one)
        for number in range(choosing.choice((0, 1, 2, 5)) if one.claim is None else 0):
            later = one.facts.submitted_ms + choosing.choice((0, 0, 1_000, 40 * MINUTE))
            facts = replace(one.facts, job=JobId(f"{one.facts.job}-{number}"), submitted_ms=min(later, snapshot.now_ms))
            found.append(replace(one, facts=replace(facts, sequence=one.facts.sequence + choosing.randrange(3))))
    choosing.shuffle(found)
    return replace(snapshot, pending=tuple(found))


def one_by_one(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> Plan:
    with monkeypatch.context() as patched:
        patched.setattr(
            Sweeps, "batches", lambda self, snapshot, number: [*alone(job for job in snapshot.pending if job.claim is None)]
        )
        return schedule(snapshot)


@settings(max_examples=examples(150), deadline=None)
@given(snapshots(), st.randoms(use_true_random=False))
def test_jobs_that_are_decided_together_hear_what_each_would_hear_alone(snapshot: Snapshot, choosing: random.Random) -> None:
    snapshot = swept(snapshot, choosing)
    assert schedule(snapshot) == one_by_one(snapshot, pytest.MonkeyPatch())


QUEUES = ("a", "b", "c", "a-1", "a-2", "b-1")
"""Of which `a` and `b` have jobs of their own beside those of the queues below them."""


@settings(max_examples=examples(300), deadline=None)
@given(st.randoms(use_true_random=False))
def test_lines_that_come_one_after_the_other_come_as_if_each_job_were_asked_for(choosing: random.Random) -> None:
    """In trees with equal shares, of users too, and while some start."""
    queues = {name: {"parent": name.split("-")[0] if "-" in name else "", "weight": choosing.choice((1.0, 2.0))} for name in QUEUES}
    if choosing.random() < 0.5:
        queues["a"] |= {"quota": {"H100": choosing.randrange(8)}}
    line = [
        job(f"j-{number}", choosing.choice(QUEUES), user=choosing.choice(("", "ann", "bob")), since_ms=choosing.choice((0, 1)),
            priority=choosing.choice((50, 60)), count=choosing.choice((1, 1, 2)), submitted_ms=NOW - choosing.randrange(5),
            kind=choosing.choice(("H100", "H100", "T4")))
        for number in range(choosing.randrange(30))
    ]  # fmt: skip
    running = [gang(f"g-{number}", choosing.choice(QUEUES), user="ann", count=2) for number in range(choosing.randrange(4))]
    snapshot = world({"queues": queues}, running, line, nodes=2, kinds=("H100", "T4"))
    patched = pytest.MonkeyPatch()
    with patched.context() as slow:
        slow.setattr(fair_order, "RESTS_MAX", 0)
        asked = order(snapshot), order_of_starts(snapshot)
    assert (order(snapshot), order_of_starts(snapshot)) == asked


@settings(max_examples=examples(100), deadline=None)
@given(snapshots(), snapshots(), st.randoms(use_true_random=False))
def test_a_line_that_changes_is_cut_as_if_it_were_seen_first(one: Snapshot, other: Snapshot, choosing: random.Random) -> None:
    sweeps, number = Sweeps(), Shapes().number
    jobs = [*swept(one, choosing).pending, *swept(replace(other, policy=one.policy), choosing).pending]
    jobs = [*{waiting.facts.job: waiting for waiting in jobs}.values()]
    for step in range(5):
        line = tuple(choosing.sample(jobs, choosing.randrange(len(jobs) + 1)))
        now = replace(one, pending=line, now_ms=one.now_ms + step * 10 * MINUTE)
        assert sorted(names(sweeps.batches(now, number))) == sorted(names(Sweeps().batches(now, Shapes().number)))


def test_jobs_alike_of_one_user_stand_together_in_order_of_age() -> None:
    assert cut(job("a-3"), job("a-1"), job("a-2")) == [["a-1", "a-2", "a-3"]]


@pytest.mark.parametrize(
    "other",
    [
        {"count": 2},
        {"num_nodes": 2},
        {"limit_ms": HOUR},
        {"preemptible": False},
        {"window": "nights"},
        {"array": "j-9", "array_parallel": 4},
        {"deadline_ms": NOW + HOUR},
        {"repair": True},
        {"unmet": (JobId("j-9"),)},
        {"avoids": frozenset({"h100-0"})},
    ],
    ids=str,
)
def test_what_another_kind_of_job_stands_between_is_cut(other: dict[str, object]) -> None:
    assert cut(job("a-1"), job("b-2", **other), job("a-3"), job("a-4")) == [["a-1"], ["a-3", "a-4"], ["b-2"]]  # type: ignore[arg-type]


def test_queues_users_and_priorities_stand_in_lines_of_their_own() -> None:
    line = [job("a-1"), job("b-2", "other"), job("a-3"), job("c-4", user="eve"), job("d-5", priority=60), job("a-6")]
    assert cut(*line) == [["a-1", "a-3", "a-6"], ["b-2"], ["c-4"], ["d-5"]]


def test_who_became_late_stands_alone_beside_those_who_did_not() -> None:
    """The class `standard` has a target of 30 minutes; what is left of a queue's quota is saved after as long."""
    line = [job("a-1", since_ms=NOW - 31 * MINUTE), job("a-2", since_ms=NOW - 29 * MINUTE), job("a-3")]
    assert cut(*line) == [["a-1"], ["a-2"], ["a-3"]]
    assert cut(*(replace(one, since_ms=NOW - HOUR) for one in line)) == [["a-1", "a-2", "a-3"]]


def test_a_job_with_a_claim_is_in_none() -> None:
    running = gang("g-9", count=8)
    claimed = job("a-2", claim=world({}, [running]).running[0].placement)
    assert cut(job("a-1"), claimed, job("a-3")) == [["a-1"], ["a-3"]]


def test_places_go_on_from_one_to_the_next_and_are_told_anew_when_they_move() -> None:
    memory = Memory()
    line = tuple(job(f"a-{number}", count=8) for number in range(2, 8))
    busy = world({}, [gang("g-1", count=8)], line)
    assert places(schedule(busy, memory)) == [1, 2, 3, 4, 5, 6]
    before = schedule(busy, memory)
    again = schedule(replace(busy, now_ms=NOW + 1), memory)
    assert all(one is other for one, other in zip(before.decisions[2:], again.decisions[2:], strict=True))
    fewer = schedule(replace(busy, pending=line[1:]), memory)
    assert places(fewer) == [1, 2, 3, 4, 5]
    older = job("o-1", count=8)
    assert places(schedule(replace(busy, pending=(*line, older)), memory)) == [1, 2, 3, 4, 5, 6, 7]


def places(plan: Plan) -> list[int | None]:
    return [one.position for one in plan.decisions if isinstance(one, Wait)]
