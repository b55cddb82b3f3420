"""A fault that a gang healed inside: an event of the job, shown with it, and no restart."""

from dataclasses import replace

import pytest

from phalanx.core import wire
from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.messages import RankProcess
from phalanx.core.records import RankRecord, Recovered
from phalanx.operate.control.effects import _said
from phalanx.operate.control.views import attempt_view
from phalanx.operate.control.world import RECOVERIES_KEPT, AttemptRecord
from phalanx.record.telemetry.records import decode

FACT = Recovered(
    rank=0,
    step=36,
    generation=2,
    why="rank 0 was killed by SIGKILL",
    replaced=(0,),
    pids=(77,),
    steps_lost=1,
    recovery_ms=397,
    at_ms=9,
)
ATTEMPT = AttemptRecord(
    id=AttemptId("lm-1.1"), job=JobId("lm-1"), number=1, placement=Placement((NodeSlice(NodeId("a"), (0, 1)),)), master_port=1,
    epoch=1, placed_ms=1, ranks=(RankProcess(0, 10), RankProcess(1, 11)),
)  # fmt: skip


def test_a_record_of_it_is_a_fact_also_after_step_zero() -> None:
    decoded = decode(wire.dumps(RankRecord, replace(FACT, step=0)).encode() + b"\n", 0)
    assert (decoded.num_bad, decoded.facts) == (0, (replace(FACT, step=0),))


def test_it_is_shown_once_and_the_rank_has_its_new_process() -> None:
    once = _said(ATTEMPT, FACT)
    twice = _said(once, FACT)
    view = attempt_view(twice)
    assert [(one.generation, one.steps_lost, one.recovery_ms, one.step) for one in view.recoveries] == [(2, 1, 397, 36)]
    assert [rank.pid for rank in view.ranks] == [77, 11]
    assert view.resumed_step is None


def test_only_so_many_are_kept() -> None:
    attempt = ATTEMPT
    for generation in range(2, RECOVERIES_KEPT + 10):
        attempt = _said(attempt, replace(FACT, generation=generation))
    assert len(attempt.recoveries) == RECOVERIES_KEPT
    assert attempt.recoveries[-1].generation == RECOVERIES_KEPT + 9


def test_an_older_generation_that_is_heard_of_late_takes_back_nothing() -> None:
    grown = replace(FACT, generation=3, replaced=(0,), pids=(99,), planned=True)
    shrunk = replace(FACT, rank=1, generation=2, replaced=(1,), pids=(88,), absent=(0,))
    late = _said(_said(ATTEMPT, grown), shrunk)
    assert [one.generation for one in late.recoveries] == [2, 3]
    assert [(rank.rank, rank.pid) for rank in late.ranks] == [(0, 99), (1, 11)]
    assert late.first_rank == 0
    assert _said(_said(ATTEMPT, shrunk), replace(grown, absent=(0,))).first_rank == 1


def test_ranks_that_the_gang_does_not_have_are_nobodys() -> None:
    told = _said(ATTEMPT, replace(FACT, replaced=(1, 2, 7), pids=(81, 82, 87), absent=(0, 9)))
    assert [(rank.rank, rank.pid) for rank in told.ranks] == [(1, 81)]
    assert told.recoveries == (replace(FACT, replaced=(1,), pids=(81,), absent=(0,)),)


@pytest.mark.parametrize(("field", "value"), [
    ("replaced", (0, 1)), ("replaced", (-1,)), ("pids", (0,)), ("pids", (2**22 + 1,)), ("absent", (-1,)), ("absent", (1, 1)),
    ("absent", tuple(range(8193))),
])  # fmt: skip
def test_a_record_with_ranks_or_processes_that_cannot_be_is_none(field: str, value: tuple[int, ...]) -> None:
    fact = replace(FACT, **{field: value})  # type: ignore[arg-type] # of a tuple's field
    decoded = decode(wire.dumps(RankRecord, fact).encode() + b"\n", 0)
    assert (decoded.facts, decoded.num_bad) == ((), 1)
    assert field in decoded.problems[0] or "pids" in decoded.problems[0]
