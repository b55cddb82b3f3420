"""Curves of a job: the same from memory and from sealed parts, and of steps made again the later attempt's."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.curves import METRICS_MAX, CurvesView
from phalanx.core.ids import AttemptId, JobId
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


def test_of_many_steps_one_without_a_number_makes_a_gap(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path)
    losses = [1.0, math.nan, 3.0, 4.0, 5.0, 6.0]
    store.append(ONE, [step(number, loss=loss) for number, loss in enumerate(losses, 1)])
    store.append(ONE, [metric(number, value=loss) for number, loss in enumerate(losses, 1)])
    for is_sealed in (False, True):
        if is_sealed:
            store.seal(ONE)
        view = asked(store, 2)
        assert math.isnan(view.points[0].loss) and view.points[1].loss == 5.0
        assert (view.points[0].loss_min, view.points[0].loss_max, view.points[0].grad_norm) == (1.0, 3.0, 1.0)
        gap, known = view.metrics["val_loss"]
        assert math.isnan(gap.value) and known.value == 5.0


def test_a_run_that_begins_late_has_as_many_points(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path)
    store.append(ONE, [step(number) for number in range(1_000_001, 1_000_011)])
    assert [(one.step, one.steps) for one in asked(store, 5).points] == [(number, 2) for number in range(1_000_002, 1_000_011, 2)]


def test_a_metric_is_the_rank_s_own_and_else_the_first_rank_s_that_told_it(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path)
    store.append(ONE, [step(number, rank) for number in (1, 2) for rank in (0, 1, 2)])
    told = [(0, 1, "own", 1.0), (1, 1, "own", 2.0), (2, 1, "own", 3.0), (0, 1, "shared", 4.0), (2, 2, "shared", 5.0)]
    store.append(ONE, [replace(metric(number, name, value), rank=rank) for rank, number, name, value in told])
    seen = [{name: [one.value for one in several] for name, several in asked(store, 9, rank).metrics.items()} for rank in (0, 1, 2)]
    assert seen == [{"own": [1.0], "shared": [4.0]}, {"own": [2.0], "shared": [4.0, 5.0]}, {"own": [3.0], "shared": [5.0]}]


def test_a_metric_that_counts_something_else_is_thinned_over_its_own_span(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path)
    store.append(ONE, [step(number) for number in range(1, 5)])
    store.append(ONE, [metric(1_000 * number, "by_tokens", float(number)) for number in range(5, 105)])
    assert [one.value for one in asked(store, 2).metrics["by_tokens"]] == [29.5, 79.5]


def test_of_many_names_those_are_chosen_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, read = SeriesStore(tmp_path), list[int]()
    store.append(ONE, [step(1)])
    store.append(ONE, [metric(number, f"m{name:03}") for number in (1, 2) for name in range(200)])
    plain = SeriesStore.asked

    def counted(self: SeriesStore, attempt: AttemptId, query: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        rows = plain(self, attempt, query, values)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(SeriesStore, "asked", counted)
    assert list(asked(store, 10).metrics) == [f"m{name:03}" for name in range(METRICS_MAX)]
    assert max(read) == 2 * METRICS_MAX


def test_a_rank_without_steps_and_a_job_without_attempts_have_no_points(store: SeriesStore) -> None:
    assert asked(store, 10, rank=5).points == () and asked(store, 10, rank=5).begins == {}
    assert curves_of(store, JOB, (), 0, 10).points == ()
