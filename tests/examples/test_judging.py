"""The demo's judge must not call a false story true."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from judging import Recorded, broken, replayed
from killing import Kill

from phalanx.core.messages import RankExit
from phalanx.core.records import StepRecord
from phalanx.core.views import JobView
from tests.recorded import attempt_view, finished_view, killed_attempt

EVERY, STEPS, KILL = 20, 60, Kill(rank=1, step=37)
GOOD = {
    "restarts": 1,
    "replayed_steps": 17,
    "replayed_losses_identical": True,
    "val_loss_first": 8.0,
    "val_loss_final": 5.0,
    "ledger_balanced": True,
}


def recorded(attempt: str, first: int, last: int, loss: float = 1.0) -> list[Recorded]:
    record = StepRecord(
        rank=0, step=0, total_steps=STEPS, loss=loss, loss_hex=loss.hex(), grad_norm=1.0, lr=1.0, tokens=1, tokens_per_s=1.0,
        mfu=0.0, started_ms=0, ended_ms=1,
    )  # fmt: skip
    return [(attempt, dataclasses.replace(record, step=step, rank=rank)) for step in range(first, last + 1) for rank in (0, 1)]


def story(job: JobView) -> list[Recorded]:
    return recorded(job.attempts[0].attempt, 1, 37) + recorded(job.attempts[1].attempt, 21, STEPS)


def problems(job: JobView, steps: Sequence[Recorded], **changes: Any) -> list[str]:
    return broken({**GOOD, "replayed_steps": replayed(steps).steps, **changes}, KILL, EVERY, job, steps)


def test_the_announced_story_holds() -> None:
    job = finished_view()
    assert problems(job, story(job)) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"restarts": 0},
        {"restarts": 2},
        {"replayed_losses_identical": False},
        {"val_loss_final": 5.7},
        {"val_loss_final": None},
        {"ledger_balanced": False},
        {"replayed_steps": 16},
    ],
)
def test_each_broken_promise_is_told(changes: dict[str, Any]) -> None:
    job = finished_view()
    assert len(problems(job, story(job), **changes)) == 1


def test_a_failed_job_is_told() -> None:
    job = finished_view("failed")
    assert problems(job, story(job)) == ["the job failed: all ranks exited 0"]


def test_a_resume_that_ignored_the_checkpoint_is_told() -> None:
    job = finished_view(attempts=(killed_attempt(), attempt_view(2, resumed_step=None)))
    steps = recorded(job.attempts[0].attempt, 1, 37) + recorded(job.attempts[1].attempt, 1, STEPS)
    assert problems(job, steps) == ["resumed after step None, not 20", "replayed_steps = 37"]


def test_a_rank_that_fell_by_itself_elsewhere_is_told() -> None:
    fell = dataclasses.replace(killed_attempt(), exits=(RankExit(0, 1, 1, first=True), RankExit(1, -15, 2)))
    job = finished_view(attempts=(fell, attempt_view(2, resumed_step=20)))
    steps = recorded(fell.attempt, 1, 30) + recorded(job.attempts[1].attempt, 21, STEPS)
    told = problems(job, steps)
    assert [words.split(",")[0] for words in told[1:]] == ["the killed attempt ended after step 30", "replayed_steps = 10"]


def test_an_undisturbed_run_replays_nothing() -> None:
    job = finished_view(attempts=(attempt_view(1),))
    steps = recorded(job.attempts[0].attempt, 1, STEPS)
    assert broken({**GOOD, "restarts": 0, "replayed_steps": 0}, None, EVERY, job, steps) == []
    assert broken({**GOOD, "restarts": 0, "replayed_steps": 3}, None, EVERY, job, steps) == ["replayed_steps = 3"]


def test_one_other_bit_in_one_rank_is_seen() -> None:
    steps = recorded("a.1", 1, 37) + recorded("a.2", 21, STEPS)
    assert replayed(steps).identical
    attempt, last = steps[-1 - 2 * (STEPS - 37)]
    steps[-1 - 2 * (STEPS - 37)] = attempt, dataclasses.replace(last, loss_hex=(1.0 + 2**-52).hex())
    assert not replayed(steps).identical
