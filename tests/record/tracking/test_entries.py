"""Which events reach the tracker, and as what."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core import wire
from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.events import (
    AttemptEnded,
    AttemptPlaced,
    AttemptRunning,
    Event,
    EventBody,
    JobRetried,
    JobSubmitted,
    ModelRegistered,
    RankSaid,
    StopRequested,
)
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.records import CheckpointCommitted, Metric, ModelSaved, StepRecord
from phalanx.core.spec import JobSpec, Resources
from phalanx.core.states import StopCause
from phalanx.record.tracking.downsample import downsample
from phalanx.record.tracking.entries import (
    Entry,
    Measured,
    MetricPoint,
    MetricPoints,
    ModelVersion,
    RunFinished,
    RunStarted,
    RunWaits,
    TrackedJob,
    outbox_for,
    points_of,
    to_deliver,
)
from phalanx.record.tracking.lineage import KEYS, lineage_of

JOB = JobId("tiny-lm-7")
ONE, TWO = AttemptId("tiny-lm-7.1"), AttemptId("tiny-lm-7.2")
SPEC = JobSpec(
    name="tiny-lm",
    project="demo",
    kind="train",
    recipe="llama",
    hyperparameters={"lr": 0.005, "steps": 400},
    resources=Resources(gpus="2"),
)
SAVED = ModelSaved(
    rank=0,
    step=400,
    path="/models/x",
    weights_digest="w" * 64,
    metrics={"val_loss": 5.6},
    lineage={"data_manifest": "m" * 64, "torch": "2.13.0", "job": "forged", "environment": "e" * 64},
    at_ms=9,
)


def tracked(*attempts: AttemptId, stop: StopCause | None = None) -> TrackedJob:
    return TrackedJob(SPEC, "c" * 64, "f" * 64, "me", attempts, stop)


def entries(body: EventBody, job: TrackedJob) -> list[Entry]:
    return outbox_for(Event(1, 1_000, body), job)


def step(number: int, rank: int = 0, loss: float = 2.0) -> StepRecord:
    return StepRecord(
        rank=rank,
        step=number,
        total_steps=400,
        loss=loss,
        loss_hex=loss.hex(),
        grad_norm=1.0,
        lr=0.1,
        tokens=1,
        tokens_per_s=10.0,
        mfu=0.0,
        started_ms=number * 10,
        ended_ms=number * 10 + 7,
    )


def test_a_run_begins_when_an_attempt_runs_and_not_before() -> None:
    placement = Placement((NodeSlice(NodeId("box"), (0, 1)),))
    saved = CheckpointCommitted(rank=0, step=1, path="/x", digest="d", size_bytes=1, at_ms=1)
    for body in (JobSubmitted(JOB, SPEC, "", "", "me"), AttemptPlaced(JOB, ONE, placement, 1, 1), RankSaid(JOB, ONE, saved)):
        assert entries(body, tracked()) == []
    (started,) = entries(AttemptRunning(JOB, ONE, ()), tracked(ONE))
    assert isinstance(started, RunStarted)
    assert (started.job, started.project, started.at_ms) == (JOB, "demo", 1_000)
    assert started.params == {"lr": "0.005", "steps": "400", "recipe": "llama", "num_nodes": "1", "gpus": "2"}
    assert started.tags["phalanx.job"] == JOB
    assert started.tags["phalanx.code"] == "c" * 64


@pytest.mark.parametrize(
    ("ok", "stop", "status"),
    [
        (True, None, "FINISHED"),
        (False, None, "FAILED"),
        (False, "cancel", "KILLED"),
        (True, "cancel", "KILLED"),
        (True, "max_duration", "FAILED"),
    ],
)
def test_the_platform_sets_the_terminal_state(ok: bool, stop: StopCause | None, status: str) -> None:
    (finished,) = entries(AttemptEnded(JOB, TWO, ok, False, "all well", ()), tracked(ONE, TWO, stop=stop))
    assert finished == RunFinished(JOB, status, (ONE, TWO), "all well", 1_000)  # type: ignore[arg-type]  # a literal, from a table


def test_a_run_goes_on_while_another_attempt_follows() -> None:
    assert entries(AttemptEnded(JOB, ONE, False, True, "rank 1: SIGKILL", ()), tracked(ONE)) == []


def test_a_job_that_never_ran_leaves_no_run() -> None:
    assert entries(StopRequested(JOB, "cancel", "me"), tracked()) == []
    assert entries(AttemptEnded(JOB, ONE, False, False, "could not start", ()), tracked()) == []


def test_P06_a_job_cancelled_between_attempts_ends_its_run() -> None:
    """No attempt is left that could end it: the run must not stay RUNNING for ever."""
    between = TrackedJob(SPEC, "c", "f", "me", (ONE,), "cancel", over="cancelled while waiting")
    (finished,) = entries(StopRequested(JOB, "cancel", "me"), between)
    assert finished == RunFinished(JOB, "KILLED", (ONE,), "cancelled while waiting", 1_000)
    assert entries(StopRequested(JOB, "cancel", "me"), tracked(ONE, stop="cancel")) == [], "its end is still to come"


def test_the_run_of_a_paused_job_waits_and_is_neither_finished_nor_failed() -> None:
    """While it ran, or between two attempts; one that never ran has none."""
    paused = TrackedJob(SPEC, "c", "f", "me", (ONE,), "pause", paused=True)
    bodies: list[EventBody] = [AttemptEnded(JOB, ONE, False, False, "paused", ()), StopRequested(JOB, "pause", "me")]
    for body in bodies:
        assert entries(body, paused) == [RunWaits(JOB, "paused", 1_000)]
        assert entries(body, TrackedJob(SPEC, "c", "f", "me", (), "pause", paused=True)) == []
    assert entries(StopRequested(JOB, "pause", "me"), tracked(ONE, stop="pause")) == [], "its ranks are still being stopped"
    over = TrackedJob(SPEC, "c", "f", "me", (ONE,), "cancel", over="cancelled while paused")
    (finished,) = entries(StopRequested(JOB, "cancel", "me"), over)
    assert finished == RunFinished(JOB, "KILLED", (ONE,), "cancelled while paused", 1_000)


def test_the_run_of_a_retried_job_waits_again_until_an_attempt_runs() -> None:
    assert entries(JobRetried(JOB, "me"), tracked(ONE)) == [RunWaits(JOB, "waits to be tried again", 1_000)]
    assert entries(JobRetried(JOB, "me"), tracked()) == []


def test_a_registered_model_becomes_a_version() -> None:
    (made,) = entries(ModelRegistered("demo", 3, JOB, TWO, SAVED, {"job": JOB}), tracked(TWO))
    assert made == ModelVersion("demo", 3, JOB, TWO, "/models/x", "w" * 64, {"job": JOB}, {"val_loss": 5.6}, 1_000)


def test_metrics_are_read_when_the_end_of_a_run_is_delivered() -> None:
    measured: dict[AttemptId, Measured] = {
        ONE: ([step(1), step(2)], []),
        TWO: ([step(2), step(3)], [Metric(rank=0, step=0, name="v", value=8.0, at_ms=1)]),
    }
    finished = RunFinished(JOB, "FINISHED", (ONE, TWO), "", 5)
    points, last = to_deliver(finished, measured.__getitem__)
    assert last == finished
    assert isinstance(points, MetricPoints)
    assert [(point.step, point.at_ms) for point in points.points if point.name == "loss"] == [(1, 17), (2, 27), (3, 37)]
    assert {point.name for point in points.points} == {"loss", "grad_norm", "lr", "tokens_per_s", "mfu", "step_ms", "v"}
    images, _ = to_deliver(finished, lambda _: ([replace(step(1), images=2, tokens=4)], []))
    assert isinstance(images, MetricPoints)
    assert [point.value for point in images.points if point.name == "images_per_s"] == [5.0]
    assert to_deliver(finished, lambda _: ([], [])) == [finished]


def test_of_a_step_done_again_the_newest_attempt_counts_and_of_ranks_the_lowest() -> None:
    attempts = [AttemptId(f"tiny-lm-7.{number}") for number in (10, 9)]
    found = points_of({attempts[0]: ([step(1, 1, 3.0), step(1, 0, 4.0)], []), attempts[1]: ([step(1, 0, 5.0)], [])})
    assert [point.value for point in found if point.name == "loss"] == [4.0]


def test_at_most_a_thousand_points_a_metric() -> None:
    points = points_of({ONE: ([step(number) for number in range(1, 5_001)], [])})
    losses = [point.step for point in points if point.name == "loss"]
    assert len(losses) == 1_000
    assert (losses[0], losses[-1]) == (1, 5_000)


def test_entries_survive_json_also_when_a_run_diverged() -> None:
    points = MetricPoints(JOB, (MetricPoint("loss", 1, math.nan, 1), MetricPoint("loss", 2, -math.inf, 2)))
    back = wire.build(Entry, json.loads(json.dumps(wire.plain(Entry, points))))
    assert repr(back) == repr(points)
    for entry in (
        *entries(AttemptRunning(JOB, ONE, ()), tracked(ONE)),
        *entries(ModelRegistered("demo", 3, JOB, TWO, SAVED, {}), tracked()),
    ):
        assert wire.loads(Entry, wire.dumps(Entry, entry)) == entry


@given(st.integers(0, 300), st.integers(2, 50))
def test_downsampling_keeps_order_the_first_and_the_last(size: int, limit: int) -> None:
    kept = downsample(range(size), limit)
    assert len(kept) == min(size, limit)
    assert kept == sorted(set(kept))
    assert not kept or (kept[0], kept[-1]) == (0, size - 1)


def test_a_curve_needs_two_points() -> None:
    with pytest.raises(ValueError, match="limit"):
        downsample([1, 2, 3], 1)


def test_lineage_joins_what_rank_and_platform_know() -> None:
    checkpoint = CheckpointCommitted(rank=0, step=400, path="/ckpt/400", digest="d", size_bytes=1, at_ms=1)
    found = lineage_of(SPEC, "c", "f", JOB, (ONE, TWO), SAVED, checkpoint)
    assert set(KEYS) <= set(found)
    assert found["job"] == JOB  # a rank cannot forge what the platform knows
    assert found["attempts"] == f"{ONE},{TWO}"
    assert found["checkpoint"] == "/ckpt/400@d"
    assert (found["data_manifest"], found["environment"], found["torch"]) == ("m" * 64, "e" * 64, "2.13.0")
    assert lineage_of(SPEC, "", "f", JOB, (), SAVED)["checkpoint"] == ""
