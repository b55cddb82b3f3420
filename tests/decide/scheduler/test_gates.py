"""What keeps a job from starting whatever is free: dependencies, arrays, windows."""

from dataclasses import replace
from typing import Any

import pytest

from phalanx.core.devices import DeviceRequest, NodeSlice, Placement
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.policy import Policy, Window
from phalanx.core.reasons import ArrayFull, Dependencies, DependencyCycle, OutsideWindow, Reason
from phalanx.core.units import utc_minute, utc_ms
from phalanx.decide.scheduler import JobFacts, NodeFacts, PendingJob, RunningJob, Shape, Snapshot, Start, Wait, schedule
from phalanx.decide.scheduler.windows import opens_ms

NODE = NodeFacts(NodeId("a"), tuple((index, "H100") for index in range(8)), tuple(range(8)), 64, 64, 2**40, 2**40, True)


def job(name: str, sequence: int = 0, **facts: Any) -> PendingJob:
    return PendingJob(replace(JobFacts(JobId(name), Shape(DeviceRequest()), sequence=sequence), **facts))


def decided(*pending: PendingJob, now_ms: int = 0, policy: Policy | None = None) -> dict[str, Start | Wait]:
    plan = schedule(Snapshot(now_ms, (NODE,), (), pending, policy or Policy()))
    return {decision.job: decision for decision in plan.decisions}


def reason(decision: Start | Wait) -> Reason | None:
    return decision.reason if isinstance(decision, Wait) else None


def names(*jobs: str) -> tuple[JobId, ...]:
    return tuple(JobId(one) for one in jobs)


def test_a_job_waits_for_those_that_must_succeed_before_it_and_stands_in_nobodys_way() -> None:
    plan = decided(replace(job("b-2", priority=100), unmet=names("a-1")), job("c-3"))
    assert plan["b-2"] == Wait(JobId("b-2"), Dependencies(names("a-1")), None)
    assert isinstance(plan["c-3"], Start)


def test_a_job_never_starts_after_one_that_failed() -> None:
    plan = decided(replace(job("b-2"), unmet=names("a-1"), failed=names("x-9")))
    said = reason(plan["b-2"])
    assert said == Dependencies(names("a-1"), names("x-9"))
    assert said.sentence() == "never starts: x-9, which must succeed before it, did not; retry that one, or cancel this"


def test_nor_does_one_after_a_job_that_never_starts_however_long_the_chain() -> None:
    line = [
        replace(job("b-2"), unmet=names("a-1"), failed=names("x-9")),
        replace(job("c-3"), unmet=names("b-2", "a-1")),
        replace(job("d-4"), unmet=names("c-3", "b-2")),
        replace(job("e-5"), unmet=names("a-1")),
    ]
    for pending in (line, line[::-1]):
        plan = decided(*pending)
        assert reason(plan["c-3"]) == Dependencies(names("b-2", "a-1"), stuck=names("b-2"))
        assert reason(plan["d-4"]) == Dependencies(names("c-3", "b-2"), stuck=names("c-3", "b-2"))
        assert reason(plan["e-5"]) == Dependencies(names("a-1"))
    one, two = Dependencies(names("b-2", "a-1"), stuck=names("b-2")), Dependencies(names("c-3", "b-2"), stuck=names("c-3", "b-2"))
    assert one.sentence() == "never starts, since b-2 never starts; `phalanx why b-2` says why not"
    assert two.sentence() == "never starts, since c-3, b-2 never start; `phalanx why c-3` says why not"


def test_a_circle_of_dependencies_is_named_from_each_member() -> None:
    line = [
        replace(job("a-1"), unmet=names("b-2", "z-9")),
        replace(job("b-2"), unmet=names("c-3")),
        replace(job("c-3"), unmet=names("a-1")),
        replace(job("d-4"), unmet=names("a-1")),
        replace(job("e-5"), unmet=names("e-5")),
    ]
    for pending in (line, line[::-1]):
        plan = decided(*pending)
        assert reason(plan["a-1"]) == DependencyCycle(names("a-1", "b-2", "c-3"))
        assert reason(plan["b-2"]) == DependencyCycle(names("b-2", "c-3", "a-1"))
        assert reason(plan["c-3"]) == DependencyCycle(names("c-3", "a-1", "b-2"))
        assert reason(plan["d-4"]) == Dependencies(names("a-1"), stuck=names("a-1")), "it waits for a circle, and is none"
        assert reason(plan["e-5"]) == DependencyCycle(names("e-5"))
    said = DependencyCycle(names("a-1", "b-2")).sentence()
    assert said == "never starts: it waits for b-2, which waits for a-1; cancel one of them"


def test_a_long_chain_costs_no_recursion() -> None:
    chain = [replace(job(f"j-{number}"), unmet=names(f"j-{number + 1}")) for number in range(20_000)]
    plan = decided(*chain)
    assert reason(plan["j-7"]) == Dependencies(names("j-8"))


def running(name: str, devices: tuple[int, ...], **facts: Any) -> RunningJob:
    return RunningJob(job(name, **facts).facts, AttemptId(f"{name}.1"), Placement((NodeSlice(NodeId("a"), devices),)), placed_ms=0)


def test_an_array_counts_those_that_run_those_that_start_now_and_those_that_have_a_claim() -> None:
    part: dict[str, Any] = {"array": "sweep-1", "array_parallel": 3}
    line = [job(f"s-{number}", number, **part) for number in range(4)]
    gang = running("s-9", (0,), **part)
    fleet = (replace(NODE, free=tuple(range(1, 8))),)
    plan = schedule(Snapshot(0, fleet, (gang,), tuple(line)))
    full = ArrayFull("sweep-1", 3)
    assert [reason(decision) for decision in plan.decisions] == [None, None, full, full]
    other = [job(f"o-{number}", number + 10, array="other-2") for number in range(5)]
    plan = schedule(Snapshot(0, fleet, (gang,), (*line, *other)))
    assert sum(isinstance(decision, Start) for decision in plan.decisions) == 7, "an array without a limit, and it is another"
    claim = Placement((NodeSlice(NodeId("a"), (7,)),))
    promised = replace(line[3], claim=claim)
    plan = schedule(Snapshot(0, fleet, (gang,), (*line[:3], promised)))
    found = {decision.job: decision for decision in plan.decisions}
    assert found[JobId("s-3")] == Start(JobId("s-3"), claim)
    assert [reason(found[JobId(f"s-{number}")]) for number in range(3)] == [None, full, full]


NIGHTS = (Window(hours="20:00-06:00"),)
OFF_PEAK = (Window(days="sat,sun"), Window(days="mon-fri", hours="20:00-06:00"))


@pytest.mark.parametrize(
    ("windows", "now", "opens"),
    [
        (NIGHTS, "2026-12-01T19:59Z", "2026-12-01T20:00Z"),
        (NIGHTS, "2026-12-01T20:00Z", "2026-12-01T20:00Z"),
        (NIGHTS, "2026-12-02T05:59Z", "2026-12-02T05:59Z"),
        (NIGHTS, "2026-12-02T06:00Z", "2026-12-02T20:00Z"),
        (OFF_PEAK, "2026-12-04T12:00Z", "2026-12-04T20:00Z"),  # a Friday
        (OFF_PEAK, "2026-12-05T12:00Z", "2026-12-05T12:00Z"),
        (OFF_PEAK, "2026-12-07T05:00Z", "2026-12-07T20:00Z"),  # Monday: Sunday's window ends at midnight
        (OFF_PEAK, "2026-12-08T05:00Z", "2026-12-08T05:00Z"),
        ((Window(days="mon", hours="09:00-10:00"),), "2026-12-07T10:00Z", "2026-12-14T09:00Z"),
        ((Window(days="sun", hours="23:00-01:00"),), "2026-12-07T00:30Z", "2026-12-07T00:30Z"),
        ((Window(),), "2026-12-07T00:30Z", "2026-12-07T00:30Z"),
        (NIGHTS, "1969-12-31T12:00Z", "1969-12-31T20:00Z"),
    ],
)
def test_when_a_window_opens(windows: tuple[Window, ...], now: str, opens: str) -> None:
    assert utc_minute(opens_ms(windows, utc_ms(now))) == utc_minute(utc_ms(opens))


def test_a_job_waits_for_its_window() -> None:
    policy = Policy(windows={"nights": NIGHTS})
    noon = utc_ms("2026-12-01T12:00Z")
    plan = decided(job("n-1", window="nights"), job("x-2", window="lunch"), job("d-3"), now_ms=noon, policy=policy)
    assert reason(plan["n-1"]) == OutsideWindow("nights", utc_ms("2026-12-01T20:00Z"))
    assert reason(plan["x-2"]) == OutsideWindow("lunch", None)
    assert isinstance(plan["d-3"], Start)
    assert isinstance(decided(job("n-1", window="nights"), now_ms=noon + 9 * 3_600_000, policy=policy)["n-1"], Start)


def test_a_job_whose_window_closes_gives_up_what_was_claimed_for_it() -> None:
    claimed = replace(job("n-1", window="nights"), claim=Placement((NodeSlice(NodeId("a"), tuple(range(8))),)))
    snapshot = Snapshot(utc_ms("2026-12-01T12:00Z"), (NODE,), (), (claimed, job("d-2")), Policy(windows={"nights": NIGHTS}))
    plan = schedule(snapshot)
    assert [(one.job, one.placement) for one in plan.claims] == [("n-1", None)]
    assert {decision.job: type(decision) for decision in plan.decisions} == {"n-1": Wait, "d-2": Start}
