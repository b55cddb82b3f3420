"""Time in steps: of what is over it is read once, and read again once more of it came."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.ids import AttemptId, JobId
from phalanx.operate.control import step_times
from phalanx.operate.control.step_times import StepTimes
from phalanx.operate.control.usage_views import Window
from tests.operate.control.served import Served, served

RAN = AttemptId("ran-1.1")
ALL = Window(0, 2**53)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "home") as one:
        one.run("ran")
        yield one


@pytest.fixture
def read(one: Served, monkeypatch: pytest.MonkeyPatch) -> list[AttemptId]:
    """Of which attempts the measurements were read."""
    found: list[AttemptId] = []
    original = one.services.series.asked

    def counted(attempt: AttemptId, *args: Any) -> Any:
        found.append(attempt)
        return original(attempt, *args)

    monkeypatch.setattr(one.services.series, "asked", counted)
    return found


def test_what_runs_is_read_each_time_and_what_is_over_once(one: Served, read: list[AttemptId]) -> None:
    series, times = one.services.series, StepTimes()
    one.measure(RAN, 5)
    running = one.bench.attempt(JobId("ran-1"))
    assert [times.of(series, running, ALL) for _ in range(2)] == [5 * 900] * 2
    one.bench.clock.sleep(10_000)
    one.end(RAN)
    over = one.bench.world.attempts[RAN]
    assert [times.of(series, over, ALL) for _ in range(2)] == [5 * 900] * 2
    assert len(read) == 4, "it is over, and its last part not written"
    series.seal(RAN)
    assert [times.of(series, over, ALL) for _ in range(3)] == [5 * 900] * 3
    assert len(read) == 5
    ended_ms = over.ended_ms
    assert ended_ms is not None
    half = Window(0, over.placed_ms + 2_500)
    assert times.of(series, over, half) < 5 * 900
    assert times.of(series, over, Window(over.placed_ms, ended_ms)) == 5 * 900
    assert len(read) == 6, "a window that cuts it is read"


def test_what_came_late_counts(one: Served, read: list[AttemptId]) -> None:
    series, times = one.services.series, StepTimes()
    one.measure(RAN, 5)
    one.bench.clock.sleep(10_000)
    one.end(RAN)
    over = one.bench.world.attempts[RAN]
    series.seal(RAN)
    assert times.of(series, over, ALL) == 5 * 900
    one.measure(RAN, 7)
    assert times.of(series, over, ALL) == 7 * 900
    series.seal(RAN)
    assert [times.of(series, over, ALL) for _ in range(2)] == [7 * 900] * 2
    assert len(read) == 2


def test_what_measured_nothing_and_what_is_forgotten(one: Served, read: list[AttemptId], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_times, "KEPT", 1)
    series, times = one.services.series, StepTimes()
    one.bench.clock.sleep(10_000)
    one.end(RAN)
    over = one.bench.world.attempts[RAN]
    assert times.of(series, over, ALL) == 0
    other = one.run("other")
    for attempt in (RAN, other):
        one.measure(attempt, 3)
        series.seal(attempt)
    ended = replace(one.bench.world.attempts[other], ended_ms=one.bench.clock.now_ms())
    for _ in range(2):
        assert (times.of(series, over, ALL), times.of(series, ended, ALL)) == (3 * 900, 3 * 900)
    assert read == [RAN, other, RAN, other], "one number is kept"
