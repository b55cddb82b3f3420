"""The demo's choice of the step to kill at."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from killing import REPLAYED_MIN, choose, valid_steps


@given(st.integers(6, 80), st.integers(100, 500), st.integers(0, 2**32))
def test_random_kill_can_replay_enough_and_comes_before_the_next_save(every: int, steps: int, seed: int) -> None:
    kill = choose(every, steps, 2, None, random.Random(seed))
    saved = kill.step // every * every
    assert saved >= every
    assert kill.step - saved >= REPLAYED_MIN
    assert kill.step < min(saved + every, steps)


@pytest.mark.parametrize(("step", "near"), [(0, "55"), (50, "55"), (52, "55"), (100, "99 or 105"), (400, "399"), (10**6, "399")])
def test_impossible_kill_step_names_the_nearest_valid_ones(step: int, near: str) -> None:
    with pytest.raises(ValueError, match=f"nearest valid is {near}$"):
        choose(50, 400, 2, step, random.Random(0))


def test_given_step_is_taken() -> None:
    assert choose(50, 400, 2, 137, random.Random(0)).step == 137
    assert 137 in valid_steps(50, 400)
