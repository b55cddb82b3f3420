"""Who is slower than its peers: found within a bounded number of steps, and never among ranks that are alike."""

import random
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.records import StepRecord
from phalanx.record.telemetry.health.stragglers import MOST, PENDING_MAX, RATIO, WINDOW, Outlier, Window, peers_median
from tests.drawn import examples

SLOW = 1.5


def record(rank: int, step: int, local_us: int) -> StepRecord:
    return StepRecord(
        rank=rank, step=step, total_steps=10_000, loss=1.0, loss_hex=(1.0).hex(), grad_norm=1.0, lr=0.1, tokens=1,
        tokens_per_s=1.0, mfu=0.0, started_ms=step, ended_ms=step + 1, local_us=local_us,
    )  # fmt: skip


def steps(ranks: int, count: int, time_us: Callable[[int, int], float], first: int = 1) -> list[StepRecord]:
    return [record(rank, step, round(time_us(rank, step))) for step in range(first, first + count) for rank in range(ranks)]


def noisy(seed: int, noise: float, slow: int | None = None, ratio: float = SLOW) -> Callable[[int, int], float]:
    """40 ms a step, `noise` of it at random (log-normal, as host interference is skewed upwards), and one rank slower."""
    rng = random.Random(seed)
    return lambda rank, _: 40_000 * rng.lognormvariate(0.0, noise) * (ratio if rank == slow else 1.0)


@settings(max_examples=examples(40))
@given(st.integers(2, 9), st.integers(0, 10**6), st.floats(0.0, 0.15))
def test_ranks_that_are_alike_raise_no_alarm(ranks: int, seed: int, noise: float) -> None:
    assert Window(ranks).take(steps(ranks, 400, noisy(seed, noise))) == []


@settings(max_examples=examples(60))
@given(st.integers(2, 9), st.integers(0, 10**6), st.floats(0.0, 0.05), st.data())
def test_one_that_takes_half_as_long_again_is_found_within_a_window_and_alone(
    ranks: int, seed: int, noise: float, data: st.DataObject
) -> None:
    slow, healthy = data.draw(st.integers(0, ranks - 1)), data.draw(st.integers(0, 100))
    window = Window(ranks)
    assert window.take(steps(ranks, healthy, noisy(seed, noise))) == []
    found = window.take(steps(ranks, WINDOW, noisy(seed + 1, noise, slow), first=healthy + 1))
    assert [one.rank for one in found] == [slow]
    (only,) = found
    assert only.step <= healthy + WINDOW and only.slow >= MOST and only.ratio > RATIO
    assert window.take(steps(ranks, 200, noisy(seed + 2, noise, slow), first=healthy + WINDOW + 1)) == [], "it is named once"


@given(st.integers(2, 6), st.integers(0, 10**6))
def test_a_short_pause_is_no_straggler(ranks: int, seed: int) -> None:
    pause = range(50, 50 + MOST - 8)
    times = noisy(seed, 0.02)
    assert (
        Window(ranks).take(steps(ranks, 200, lambda rank, step: times(rank, step) * (5 if rank == 0 and step in pause else 1)))
        == []
    )


@given(st.permutations(range(3 * MOST)), st.integers(1, 10))
def test_in_which_order_ranks_are_heard_changes_nothing(order: Sequence[int], piece: int) -> None:
    """Of steps whose order is kept, as each rank's file keeps it."""
    of_rank = {rank: [record(rank, step, 60_000 if rank == 2 else 40_000) for step in range(1, MOST + 1)] for rank in range(3)}
    window, found = Window(3), list[Outlier]()
    queue = [at % 3 for at in order]
    for start in range(0, len(queue), piece):
        found += window.take([of_rank[rank].pop(0) for rank in queue[start : start + piece]])
    assert [(one.rank, one.ratio, one.steps) for one in found] == [(2, 1.5, MOST)]


def test_what_was_not_measured_and_gangs_of_one_are_not_judged() -> None:
    assert Window(2).take(steps(2, 100, lambda rank, _: 0 if rank else 40_000)) == []
    assert Window(1).take(steps(1, 100, lambda _, step: 40_000 * step)) == []
    assert Window(2).take([record(rank, step, 9**rank) for step in range(99) for rank in (0, 7)]) == []


def test_a_rank_that_is_not_heard_of_does_not_fill_the_memory() -> None:
    window = Window(2)
    window.take(record(0, step, 1) for step in range(10 * PENDING_MAX))
    assert len(window._pending) == PENDING_MAX  # its bound is the point
    found = window.take(steps(2, MOST, lambda rank, _: 60_000 if rank else 40_000, first=20 * PENDING_MAX))
    assert [one.rank for one in found] == [1]


def test_who_was_named_before_is_not_named_again() -> None:
    assert Window(2, known=[1]).take(steps(2, 100, lambda rank, _: 60_000 if rank else 40_000)) == []


@pytest.mark.parametrize("share", [0.3, 0.45])
def test_some_slow_ranks_of_many_do_not_hide_each_other(share: float) -> None:
    slow = set(range(int(20 * share)))
    found = Window(20).take(steps(20, WINDOW, lambda rank, _: 60_000 if rank in slow else 40_000))
    assert {one.rank for one in found} == slow


@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=40))
def test_the_peers_median_is_that_of_the_others(values: list[int]) -> None:
    expected = [statistics.median(values[:at] + values[at + 1 :]) for at in range(len(values))]
    assert peers_median(np.array(values)).tolist() == expected


def test_a_gang_that_goes_on_without_a_rank_is_judged_by_those_that_live() -> None:
    window = Window(4)
    window.take(steps(4, 20, lambda rank, _: 60_000 if rank == 3 else 40_000))
    window.goes_on_without((0,))
    rest = [one for one in steps(4, WINDOW, lambda rank, _: 60_000 if rank == 3 else 40_000, first=21) if one.rank]
    (only,) = window.take(rest)
    assert (only.rank, only.step, only.slow) == (3, 20 + MOST, MOST), "what was before was another gang"
    window.goes_on_without(())
    assert window.take(steps(4, WINDOW, lambda rank, _: 60_000 if rank > 2 else 40_000, first=99)) == [], "it is named once"
