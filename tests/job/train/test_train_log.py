"""What a person who reads the log of a training job sees."""

import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.core.records import StepRecord
from phalanx.job.checkpoint.commit import Saved, SaveFailed
from phalanx.job.checkpoint.pipeline import Delayed, Outcome
from phalanx.job.sdk.session import Session
from phalanx.job.train.loop import tell
from phalanx.job.train.saves import Saves
from phalanx.job.train.told import TROUBLE_EVERY_S


def record(step: int, total: int) -> StepRecord:
    return StepRecord(
        rank=3, step=step, total_steps=total, loss=6.25, loss_hex=(6.25).hex(), grad_norm=1.0, lr=0.0003, tokens=64,
        tokens_per_s=5120.4, mfu=0.0, started_ms=0, ended_ms=5, data_wait_ms=0, compute_ms=3, comm_ms=0, optimizer_ms=0,
        checkpoint_ms=0,
    )  # fmt: skip


@pytest.mark.parametrize(("total", "lines"), [(400, 20), (7, 7), (1, 1), (30, 30), (410, 21)])
def test_the_first_rank_logs_about_twenty_lines_a_run_and_always_the_last_step(
    caplog: pytest.LogCaptureFixture, total: int, lines: int
) -> None:
    caplog.set_level(logging.INFO)
    for step in range(1, total + 1):
        tell(record(step, total), rank=0)  # of place 3: those before it are lost
        tell(record(step, total), rank=1)
    assert len(caplog.messages) == lines
    assert caplog.messages[-1] == f"step {total}/{total}  loss 6.2500  lr 0.0003  5,120 tokens/s"
    tell(replace(record(total, total), images=4), rank=0)
    assert caplog.messages[-1] == f"step {total}/{total}  loss 6.2500  lr 0.0003  320 images/s"


class _Told:
    """A pipeline that has news."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)

    def news(self) -> list[Outcome]:
        return self.outcomes


def test_each_checkpoint_that_is_saved_late_or_lost_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    told = _Told(
        Delayed(step=30, reason="No space left on device"),
        Saved(step=33, path="/jobs/step-33", digest="d33", size_bytes=9),
        Saved(step=30, path="/jobs/step-30", digest="d30", size_bytes=9),
        SaveFailed(step=36, reason="rank 1: away"),
    )
    saves = Saves(SimpleNamespace(session=Session(), rank=SimpleNamespace(rank=0), clock_s=lambda: 0.0), told)  # type: ignore[arg-type]  # all that `tell` uses
    saves.tell()
    assert caplog.messages == [
        "checkpoint of step 30 not saved yet: No space left on device; it is tried again, and training goes on",
        "checkpoint of step 33 saved",
        "checkpoint of step 30 saved",
        "checkpoint of step 36 not saved: rank 1: away; going on from the one before",
    ]
    assert (saves.newest, saves.failed) == ("d33", 1)


class _Heard(Session):
    """What a rank says of its saves."""

    def trouble(self, *, step: int, reason: str, lost: bool) -> None:
        HEARD.append((self.rank, step, lost))


HEARD: list[tuple[int, int, bool]] = []


def _training(rank: int, local: int, clock_s: Callable[[], float]) -> Any:
    return SimpleNamespace(session=_Heard(rank=rank, local_rank=local), rank=SimpleNamespace(rank=rank), clock_s=clock_s)


def test_a_store_that_is_away_is_an_event_once_in_a_while_of_one_rank_a_node() -> None:
    HEARD.clear()
    now_s = 0.0
    told = [_Told() for _ in range(3)]
    ranks = [(0, 0), (1, 1), (2, 0)]  # the third is the first of another node
    runs = [
        Saves(_training(rank, local, lambda: now_s), pipeline)  # type: ignore[arg-type]  # all that `tell` uses
        for (rank, local), pipeline in zip(ranks, told, strict=True)
    ]

    def all_hear(*outcomes: Outcome) -> list[tuple[int, int, bool]]:
        HEARD.clear()
        for pipeline, saves in zip(told, runs, strict=True):
            pipeline.outcomes = list(outcomes)
            saves.tell()
        return list(HEARD)

    assert all_hear(Delayed(step=30, reason="away")) == [(0, 30, False), (2, 30, False)]
    now_s = 100.0
    assert all_hear(Delayed(step=40, reason="away"), SaveFailed(step=30, reason="away")) == [(0, 30, True)]
    now_s = TROUBLE_EVERY_S
    assert all_hear(Delayed(step=50, reason="away")) == [(0, 50, False), (2, 50, False)]
    all_hear(Saved(step=60, path="/c", digest="d", size_bytes=1))
    assert all_hear(Delayed(step=70, reason="away again"))[0] == (0, 70, False)
