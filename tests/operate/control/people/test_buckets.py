"""Token buckets: a burst, a pace, and a bound on what they remember."""

from hypothesis import given
from hypothesis import strategies as st

from phalanx.operate.control.people.buckets import Buckets


def test_a_burst_then_a_pace() -> None:
    buckets = Buckets(per_s=2.0, burst=3.0)
    assert [buckets.take("a", 5.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert buckets.take("b", 5.0) == 0.0
    assert buckets.take("a", 5.25) == 0.25
    assert buckets.take("a", 5.5) == 0.0
    assert buckets.take("a", 1.0) > 0, "a clock that went back adds nothing"


def test_what_is_remembered_is_bounded() -> None:
    buckets = Buckets(per_s=1.0, burst=1.0, keys_max=2)
    assert [buckets.take(key, 0.0) for key in "abc"] == [0.0, 0.0, 0.0]
    assert buckets.take("c", 0.0) > 0 and buckets.take("b", 0.0) > 0
    assert len(buckets._known) == 2


@given(st.lists(st.floats(0, 3), max_size=40))
def test_never_more_than_burst_and_pace_together(pauses: list[float]) -> None:
    buckets, now_s, taken = Buckets(per_s=1.5, burst=4.0), 0.0, 0
    for pause in pauses:
        now_s += pause
        taken += buckets.take("k", now_s) == 0.0
    assert taken <= 4.0 + 1.5 * now_s + 1e-6
