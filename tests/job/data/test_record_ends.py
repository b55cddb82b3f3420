"""The end of the records against how far the run came: a lost tail is no shorter run, and what a kill leaves is no loss."""

from dataclasses import replace

import pytest

from phalanx.core.data_audit import DataAudit, Reached
from phalanx.job.data.deliveries import Deliveries
from phalanx.job.data.exactly_once import audit
from tests.job.data.test_exactly_once import PLAIN, gang

LAST = Reached(by="tiny-lm-7 ended with", steps=18)
RUNS = Reached(by="tiny-lm-7 has not ended")


def saved(step: int, attempt: int = 2) -> Reached:
    return Reached(by="the newest checkpoint is of", samples=step * 12, attempt=attempt, generation=0)


def cut(log: Deliveries, steps: int) -> Deliveries:
    return replace(log, batches={step: rows for step, rows in log.batches.items() if step < steps})


def ended(*reaches: int, reached: tuple[Reached, ...] = (), torn: int = 0) -> DataAudit:
    """Two gangs, of 3 ranks from step 0 to 9, then of ranks that end so from step 8 on. torn: bytes in the record of the last."""
    second = [cut(log, steps) for log, steps in zip(gang(PLAIN, 2, len(reaches), 8, 18), reaches, strict=True)]
    second[-1] = replace(second[-1], torn_bytes=torn)
    return audit([*gang(PLAIN, 1, 3, 0, 10), *second], PLAIN, reached=reached)


@pytest.mark.parametrize("reached", [(LAST,), (saved(18),), (RUNS, saved(18)), (saved(10), LAST)])
def test_records_that_go_as_far_as_the_run_are_complete(reached: tuple[Reached, ...]) -> None:
    found = ended(18, 18, reached=reached)
    assert (found.complete, found.ended, found.steps) == (True, True, 18) and found.end.endswith("step 18")


@pytest.mark.parametrize("reached", [LAST, saved(18)])
@pytest.mark.parametrize(("reaches", "step", "rank"), [((18, 17), 18, 1), ((13, 13), 14, 0), ((18, 12), 13, 1), ((12, 14), 13, 0)])
def test_a_lost_tail_is_missing(reached: Reached, reaches: tuple[int, ...], step: int, rank: int) -> None:
    """One rank's last record, both ranks' from the middle on, and one rank's from the middle on."""
    found = ended(*reaches, reached=(reached,))
    assert found.fault is not None and not found.complete and not found.ended
    assert (found.fault.kind, found.fault.attempt, found.fault.step, found.fault.rank) == ("missing", 2, step, rank)
    assert found.steps == step - 1 and "recorded nothing" in found.says and found.end.endswith("step 18")


@pytest.mark.parametrize("reached", [RUNS, saved(12)])
@pytest.mark.parametrize(("reaches", "torn", "says"), [
    ((14, 13), 0, "rank 1 recorded nothing of step 14, and rank 0 goes to step 14"),
    ((13, 17), 0, "rank 0 recorded nothing of step 14, and rank 1 goes to step 17"),
    ((13, 13), 9, "the record of rank 1 in attempt 2 ends in half a batch, of 9 bytes"),
])  # fmt: skip
def test_what_a_kill_leaves_behind_the_newest_checkpoint_is_told(
    reached: Reached, reaches: tuple[int, ...], torn: int, says: str
) -> None:
    found = ended(*reaches, reached=(reached,), torn=torn)
    assert (found.complete, found.ended, found.steps) == (True, False, 13) and found.end.endswith(says)


def test_records_alone_prove_the_steps_that_they_have() -> None:
    found = ended(14, 14)
    assert (found.complete, found.ended, found.steps) == (True, False, 14) and found.end.startswith("not known")
    found = ended(14, 13)
    assert (found.complete, found.ended) == (True, False) and "rank 1 recorded nothing of step 14" in found.end
    assert not ended(14, 12).complete, "ranks that were ended together are a step apart"


def test_a_checkpoint_counts_for_gangs_that_did_not_begin_before_it() -> None:
    found = ended(14, 14, reached=(saved(16, attempt=1),))
    assert (found.complete, found.ended) == (True, False), "attempt 2 went back behind it, and made its steps again"
    lost = audit(gang(PLAIN, 1, 3, 0, 10), PLAIN, reached=(saved(16, attempt=2),))
    assert lost.fault is not None and (lost.fault.attempt, lost.fault.step) == (1, 11), "all of attempt 2 was lost"


def test_a_gang_that_went_on_says_how_far_the_one_before_it_came() -> None:
    found = audit([*gang(PLAIN, 1, 3, 0, 10), *gang(PLAIN, 2, 3, 12, 12)], PLAIN)
    assert found.fault is not None and (found.fault.attempt, found.fault.step) == (1, 11)
    assert found.says.endswith("attempt 2 went on after step 12")


def test_a_run_that_recorded_heads_alone_is_none() -> None:
    found = audit(gang(PLAIN, 1, 3, 0, 0), PLAIN, reached=(LAST,))
    assert found.fault is not None and (found.fault.step, found.fault.rank) == (1, 0)
    assert audit([], PLAIN, reached=(LAST,)).fault is not None
