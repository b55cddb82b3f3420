"""The interval between saves is that of the papers, and the least costly one of a run that is played through."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core import interval

_SECONDS = st.floats(1e-3, 1e6)


def test_youngs_example() -> None:
    assert interval.young_s(cost_s=300.0, mtbf=24 * 3600.0) == pytest.approx(math.sqrt(2 * 300 * 86_400))


def test_dalys_higher_order_form() -> None:
    cost_s, mtbf = 600.0, 6 * 3600.0
    ratio = cost_s / (2 * mtbf)
    expected = math.sqrt(2 * cost_s * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s
    assert interval.daly_s(cost_s, mtbf) == pytest.approx(expected)
    assert interval.daly_s(cost_s=200.0, mtbf=100.0) == 100.0  # what is not worth saving more often


@given(_SECONDS, _SECONDS)
def test_the_two_agree_where_a_save_is_cheap(cost_s: float, mtbf: float) -> None:
    found = interval.daly_s(cost_s, mtbf)
    assert 0.0 < found <= max(mtbf, interval.young_s(cost_s, mtbf) * 1.5)
    if cost_s < mtbf / 1e4:
        assert found == pytest.approx(interval.young_s(cost_s, mtbf), rel=0.02)


@given(_SECONDS, _SECONDS, _SECONDS)
def test_dearer_saves_and_rarer_failures_are_further_apart(cost_s: float, more_s: float, mtbf: float) -> None:
    if cost_s + more_s < mtbf / 2:
        assert interval.daly_s(cost_s + more_s, mtbf) >= interval.daly_s(cost_s, mtbf) * 0.999
    assert interval.daly_s(cost_s, mtbf + more_s) >= interval.daly_s(cost_s, mtbf) * 0.999


def test_no_other_interval_loses_less_in_a_run_that_is_played_through() -> None:
    """Failures at random; the time until so much work is done, for Daly's interval and for those around it."""
    cost_s, mtbf = 30.0, 3600.0
    best = interval.daly_s(cost_s, mtbf)
    took = {factor: _wall_s(best * factor, cost_s, mtbf) for factor in (0.3, 1.0, 3.0)}
    assert took[1.0] < took[0.3] and took[1.0] < took[3.0], took


def _wall_s(interval_s: float, cost_s: float, mtbf: float) -> float:
    draw = random.Random(1)
    wall_s, done_s, fails_s = 0.0, 0.0, draw.expovariate(1 / mtbf)
    while done_s < 2_000 * mtbf:
        left_s = interval_s + cost_s
        if fails_s < left_s:
            wall_s, fails_s = wall_s + fails_s, draw.expovariate(1 / mtbf)
        else:
            wall_s, fails_s, done_s = wall_s + left_s, fails_s - left_s, done_s + interval_s
    return wall_s


def test_a_fleet_without_failures_goes_by_the_prior_until_it_has_outlived_it() -> None:
    prior = 1.0 / interval.PRIOR_NODE_HOURS
    assert interval.failures_per_node_hour(0, 0.0) == prior
    assert interval.failures_per_node_hour(0, 100.0) == prior
    assert interval.failures_per_node_hour(0, 10 * interval.PRIOR_NODE_HOURS) == pytest.approx(prior / 10)
    assert interval.failures_per_node_hour(3, 600.0) == pytest.approx(1 / 200)
    assert interval.mtbf_s(1 / 200, nodes=4) == pytest.approx(50 * 3600)


def test_steps_are_whole_and_never_closer_than_a_save_takes() -> None:
    assert interval.steps_between(cost_s=0.01, write_s=1.0, step_s=2.0, mtbf=3600.0) == 5  # 8.5 s
    assert interval.steps_between(cost_s=0.01, write_s=60.0, step_s=2.0, mtbf=3600.0) == 30
    assert interval.steps_between(cost_s=0.0, write_s=0.0, step_s=2.0, mtbf=3600.0) == 1
    assert interval.steps_between(cost_s=0.01, write_s=0.0, step_s=0.0, mtbf=3600.0) == 1
