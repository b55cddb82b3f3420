"""Curves of a job: the same from memory and from sealed parts, and of steps made again the later attempt's."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core.curves import CurvesView
from phalanx.core.ids import JobId
from phalanx.record.telemetry.curves import curves_of
from phalanx.record.telemetry.series import SeriesStore
from tests.record.telemetry.test_series import BOTH, ONE, TWO, metric, step

JOB = JobId("tiny-lm-7")


@pytest.fixture
def store(tmp_path: Path) -> SeriesStore:
    """Ten steps, and from the seventh on again; some of both attempts in a part already."""
    made = SeriesStore(tmp_path, part_max=7)
    made.append(ONE, [metric(0, value=9.0)])
    for number in range(1, 11):
        made.append(ONE, [step(number, rank, loss=float(number)) for rank in (0, 1)])
    for number in range(7, 13):
        made.append(TWO, [step(number, loss=100.0 + number), metric(number, value=float(number))])
    return made


def asked(store: SeriesStore, points: int, rank: int = 0) -> CurvesView:
    return curves_of(store, JOB, BOTH, rank, points)


def test_steps_made_again_are_those_of_the_later_attempt(store: SeriesStore) -> None:
    view = asked(store, 100)
    assert [(one.step, one.loss) for one in view.points] == [
        *((n, float(n)) for n in range(1, 7)),
        *((n, 100.0 + n) for n in range(7, 13)),
    ]
    assert view.begins == {ONE: 1, TWO: 7} and view.total_steps == 400
    first = view.points[0]
    assert (first.data_wait_ms, first.comm_ms, first.other_ms, first.tokens_per_s, first.mfu) == (3, 40, 857, 5000, 0.25)
    assert [(one.step, one.value) for one in view.metrics["val_loss"]] == [(0, 9.0), *((n, float(n)) for n in range(7, 13))]


def test_many_steps_are_one_point_with_their_least_and_most(store: SeriesStore) -> None:
    view = asked(store, 4)
    assert [(one.step, one.steps, one.loss, one.loss_min, one.loss_max) for one in view.points] == [
        (3, 3, 2, 1, 3), (6, 3, 5, 4, 6), (9, 3, 108, 107, 109), (12, 3, 111, 110, 112),
    ]  # fmt: skip


def test_what_is_sealed_gives_the_same_curves(store: SeriesStore) -> None:
    before = asked(store, 5)
    for attempt in BOTH:
        store.seal(attempt)
    assert asked(store, 5) == before


def test_a_loss_that_is_no_number_stays_one_and_hides_no_other(store: SeriesStore) -> None:
    store.append(TWO, [replace(step(13), loss=math.nan), replace(step(14), loss=3.0)])
    view = asked(store, 100)
    assert math.isnan(view.points[-2].loss) and view.points[-1].loss == 3.0


def test_a_rank_without_steps_and_a_job_without_attempts_have_no_points(store: SeriesStore) -> None:
    assert asked(store, 10, rank=5).points == () and asked(store, 10, rank=5).begins == {}
    assert curves_of(store, JOB, (), 0, 10).points == ()
