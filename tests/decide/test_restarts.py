"""When a job's next attempt may start."""

import pytest

from phalanx.decide.restarts import LONGEST_MS, delay_ms, left_ms


def test_attempts_that_get_nowhere_follow_later_and_later() -> None:
    waits = [delay_ms(10, progressed=False, quick_before=number) for number in range(9)]
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]
    assert delay_ms(10, progressed=False, quick_before=10**9) == LONGEST_MS


@pytest.mark.parametrize(("held_ms", "progressed"), [(10_000, False), (10, True), (-5, True)])
def test_an_attempt_that_got_somewhere_is_followed_at_once(held_ms: int, progressed: bool) -> None:
    assert delay_ms(held_ms, progressed, quick_before=7) == 0


@pytest.mark.parametrize(
    ("now_ms", "left"), [(40_000, 60_000), (99_999, 1), (100_000, 0), (200_000, 0), (39_999, 0), (-86_400_000, 0)]
)
def test_a_clock_that_is_set_back_holds_nobody_longer_than_the_longest_wait(now_ms: int, left: int) -> None:
    assert left_ms(100_000, now_ms) == left
