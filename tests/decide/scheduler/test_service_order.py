"""Orders over jobs as columns: total, the same however the columns are sorted, and blind where they say so."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phalanx.decide.scheduler.line import service_order
from phalanx.decide.scheduler.line.attained import (
    EDGES,
    HALF,
    KEPT_MAX,
    NEAR_WEIGHT,
    NUM_BINS,
    PRIOR_HAZARD,
    PRIOR_WEIGHT,
    RADII,
    SIZE_WEIGHT,
    SIZES_MAX,
    ServiceHistory,
    bin_of,
    blind,
    learned,
    next_edge,
)
from phalanx.decide.scheduler.line.service_order import DEEP, LEAST_MS, Floats, ServiceJobs, favoured, in_service_order
from tests.drawn import examples

FLEET = 64
MINUTE = 60_000
HOUR = 60 * MINUTE
SERVICE_MAX = int(EDGES[-1]) * 3


@dataclass(frozen=True)
class One:
    """A row, for people."""

    sequence: int
    devices: int = 8
    attained: int = 0
    expected_ms: float = np.nan
    submitted_ms: int = 0
    running: bool = False


def columns(rows: Sequence[One]) -> ServiceJobs:
    return ServiceJobs(
        np.array([row.devices for row in rows], dtype=np.int64),
        np.array([row.attained for row in rows], dtype=np.int64),
        np.array([row.expected_ms for row in rows], dtype=np.float64),
        np.array([row.submitted_ms for row in rows], dtype=np.int64),
        np.array([row.sequence for row in rows], dtype=np.int64),
    )


def shortest(jobs: ServiceJobs) -> Floats:
    return service_order.shortest(jobs, FLEET)


def served(rows: Sequence[One], order: Callable[[ServiceJobs], Floats], margin: float = 0.0) -> list[int]:
    """Sequences, the first to be served first."""
    jobs, running = columns(rows), np.array([row.running for row in rows], dtype=bool)
    keys = favoured(order(jobs), running, margin)
    return [rows[row].sequence for row in in_service_order(jobs, keys, running)]


def after(*ends: tuple[int, int, int]) -> ServiceHistory:
    """Jobs that ended, as (devices, sequence, service)."""
    history = ServiceHistory()
    for devices, sequence, attained in ends:
        history = learned(history, devices, sequence, attained)
    return history


rows_of = st.lists(
    st.builds(
        One,
        sequence=st.integers(0, 400),
        devices=st.sampled_from([1, 2, 8, 32]),
        attained=st.integers(0, SERVICE_MAX) | st.sampled_from([0, *EDGES.tolist()]),
        expected_ms=st.floats(0, 1e9) | st.just(np.nan),
        submitted_ms=st.integers(0, 3),
        running=st.booleans(),
    ),
    max_size=14,
    unique_by=lambda row: row.sequence,
)
histories = st.lists(
    st.tuples(st.sampled_from([1, 2, 8, 64]), st.integers(401, 800), st.integers(0, SERVICE_MAX)),
    max_size=14,
    unique_by=lambda end: end[1],
).map(lambda ends: after(*ends))


@settings(max_examples=examples(40))
@given(rows_of, histories, st.randoms(use_true_random=False), st.sampled_from([0.0, 0.25]))
def test_the_order_of_the_columns_means_nothing(rows: list[One], history: ServiceHistory, random: object, margin: float) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for order in (shortest, lambda jobs: blind(jobs, history)):
        assert served(rows, order, margin) == served(shuffled, order, margin)


@settings(max_examples=examples(40))
@given(rows_of, histories)
def test_equals_are_served_by_age_and_those_that_run_before_those_that_wait(rows: list[One], history: ServiceHistory) -> None:
    for order in (shortest, lambda jobs: blind(jobs, history)):
        keys = {row.sequence: key for row, key in zip(rows, order(columns(rows)).tolist(), strict=True)}
        by_sequence = {row.sequence: row for row in rows}
        line = [by_sequence[sequence] for sequence in served(rows, order)]
        ranks = [(keys[row.sequence], not row.running, row.submitted_ms, row.sequence) for row in line]
        assert ranks == sorted(ranks)


@settings(max_examples=examples(40))
@given(rows_of, histories, st.floats(0, 1e9))
def test_the_blind_order_does_not_depend_on_expected_times(rows: list[One], history: ServiceHistory, other_ms: float) -> None:
    changed = [replace(row, expected_ms=other_ms) for row in rows]
    assert blind(columns(rows), history).tolist() == blind(columns(changed), history).tolist()


@settings(max_examples=examples(40))
@given(rows_of, histories)
@example([One(0), One(1), One(2)], ServiceHistory())  # best served far beyond where any of them is
def test_the_index_is_what_its_definition_says(rows: list[One], history: ServiceHistory) -> None:
    found = blind(columns(rows), history)
    assert found.tolist() == pytest.approx([-by_definition(row, rows, history) for row in rows], rel=1e-9)


def by_definition(job: One, rows: Sequence[One], history: ServiceHistory) -> float:
    """Gittins' index, one job and one bin at a time, over all bins."""
    hazards = [hazard(at, job, rows, history) for at in range(NUM_BINS)]
    widths = [*np.diff(EDGES).tolist(), EDGES[-1] / 2]
    best, left, service = 0.0, 1.0, 0.0
    for at in range(bin_of(job.attained), NUM_BINS):
        ends = left * hazards[at]
        service += widths[at] * (ends / 2 + left - ends)
        left -= ends
        best = max(best, (1 - left) / service)
    return best


def hazard(at: int, job: One, rows: Sequence[One], history: ServiceHistory) -> float:
    """Of ending in a bin: of everybody, corrected by those of the size, corrected by ever nearer neighbours."""
    line = sorted(
        [(one.sequence, bin_of(one.attained), False) for one in rows if one.devices == job.devices]
        + [
            (sequence, of, True)
            for size, past in history.sizes.items() if size == job.devices
            for sequence, of in zip(past.sequences, past.bins, strict=True)
        ]
    )  # fmt: skip
    everybody = [(bin_of(one.attained), False) for one in rows]
    everybody += [(of, True) for past in history.sizes.values() for of in past.bins]
    found = corrected(PRIOR_HAZARD, PRIOR_WEIGHT, at, everybody)
    found = corrected(found, SIZE_WEIGHT, at, [one[1:] for one in line])
    place = next(place for place, one in enumerate(line) if one[0] == job.sequence)
    for radius in RADII:
        near = [one[1:] for one in line[max(0, place - radius) : place + radius + 1]]
        found = corrected(found, NEAR_WEIGHT, at, near)
    return min(found, 1.0)


def corrected(before: float, weight: float, at: int, jobs: Sequence[tuple[int, bool]]) -> float:
    ended = sum(1 for of, done in jobs if done and of == at)
    reached = sum(1.0 if of > at or (done and of == at) else HALF if of == at else 0.0 for of, done in jobs)
    return (ended + weight * before) / (reached + weight)


def test_without_a_history_the_least_served_comes_first() -> None:
    rows = [One(number, attained=attained) for number, attained in enumerate([HOUR, 0, 100 * HOUR, 5 * MINUTE])]
    assert served(rows, lambda jobs: blind(jobs, ServiceHistory())) == [1, 3, 0, 2]


def test_of_a_campaign_of_short_jobs_the_next_one_comes_first() -> None:
    history = after(
        *((8, sequence, 10 * MINUTE) for sequence in range(4)), *((8, sequence, 999 * HOUR) for sequence in range(60, 64))
    )
    rows = [One(62 + 30), One(64), One(4, submitted_ms=1)]
    assert served(rows, lambda jobs: blind(jobs, history))[0] == 4


def test_of_a_campaign_one_is_tried_and_the_others_wait_for_what_it_tells() -> None:
    long_tried = One(10, attained=100 * HOUR, running=True)
    campaign = [One(sequence, submitted_ms=0) for sequence in (11, 12)]
    stranger = One(300, submitted_ms=9)
    between = [One(sequence, attained=1) for sequence in range(100, 140)]
    line = served([long_tried, *campaign, stranger, *between], lambda jobs: blind(jobs, ServiceHistory()))
    assert line.index(300) < line.index(11)
    assert line.index(300) < line.index(12)


def test_one_gang_size_does_not_say_much_of_another() -> None:
    history = after(*((1, sequence, MINUTE) for sequence in range(40)), *((32, sequence, 999 * HOUR) for sequence in range(50, 90)))
    assert served([One(100, devices=32), One(101, devices=1)], lambda jobs: blind(jobs, history)) == [101, 100]


def test_shortest_is_by_what_is_left_of_devices_times_time() -> None:
    rows = [One(0, devices=8, expected_ms=HOUR), One(1, devices=1, expected_ms=2 * HOUR), One(2, devices=32, expected_ms=MINUTE)]
    assert served(rows, shortest) == [2, 1, 0]


def test_shortest_helps_the_larger_of_two_gangs_with_the_same_service_left() -> None:
    assert served([One(0, devices=1, expected_ms=32 * HOUR), One(1, devices=32, expected_ms=HOUR)], shortest) == [1, 0]


def test_behind_a_deep_line_it_does_not() -> None:
    large, small = One(0, devices=32, expected_ms=HOUR), One(1, devices=1, expected_ms=31 * HOUR)
    others = [One(2 + number, devices=FLEET, expected_ms=99 * HOUR) for number in range(DEEP)]
    assert served([large, small], shortest) == [0, 1]
    assert served([large, small, *others], shortest)[:2] == [1, 0]


def test_a_job_without_an_estimate_is_expected_to_run_as_long_again() -> None:
    rows = [One(0, attained=8 * HOUR), One(1, expected_ms=2 * HOUR), One(2, expected_ms=HOUR / 2), One(3)]
    assert served(rows, shortest) == [3, 2, 0, 1]
    assert shortest(columns([One(0)])).tolist() == shortest(columns([One(0, expected_ms=LEAST_MS)])).tolist()


def test_who_is_only_a_little_better_does_not_pass_one_that_runs() -> None:
    rows = [One(0, expected_ms=100, running=True), One(1, expected_ms=80)]
    assert served(rows, shortest) == [1, 0]
    assert served(rows, shortest, margin=0.25) == [0, 1]
    keys = np.array([-4.0, -4.5])
    assert favoured(keys, np.array([True, False]), 0.25).tolist() == [-5.0, -4.5]


@given(st.integers(0, SERVICE_MAX))
def test_a_job_is_looked_at_again_exactly_where_its_bin_ends(attained: int) -> None:
    edge = next_edge(attained)
    if edge is None:
        assert bin_of(attained) == NUM_BINS - 1
        return
    assert edge > attained
    assert bin_of(edge - 1) == bin_of(attained) == bin_of(edge) - 1


def test_a_history_keeps_a_bounded_size_and_every_count() -> None:
    history = ServiceHistory()
    for sequence in range(KEPT_MAX + 10):
        before, history = history, learned(history, 8, sequence, MINUTE * (1 + sequence % 3))
        assert len(history.sizes[8]) == len(before.sizes.get(8, ())) + 1
    assert len(history.sizes[8].sequences) == KEPT_MAX
    assert history.sizes[8].sequences[0] == 10
    for size in range(9, 9 + 2 * SIZES_MAX):
        history = learned(history, size, 10_000 + size, HOUR)
    assert len(history.sizes) == SIZES_MAX
    assert len(history.sizes[8]) == KEPT_MAX + 10


def test_no_job_has_no_key() -> None:
    assert blind(columns([]), after((8, 1, HOUR))).tolist() == []
    assert served([], shortest) == []
