"""Traces that a running job is asked for: what can be told without it."""

import pytest

from phalanx.core.errors import SpecError
from phalanx.core.trace_request import TraceRequest, TracesAsked, check_asked


@pytest.mark.parametrize(
    ("asked", "field", "value"),
    [
        (TracesAsked(steps=0), "steps", 0),
        (TracesAsked(steps=101), "steps", 101),
        (TracesAsked(steps=2, ranks=(0, -1)), "ranks", -1),
        (TracesAsked(steps=2, ranks=(3, 0, 3)), "ranks", 3),
        (TracesAsked(steps=2, ranks=tuple(range(1_025))), "ranks", "1025 ranks"),
    ],
)
def test_what_cannot_be_traced_is_refused_by_name(asked: TracesAsked, field: str, value: int | str) -> None:
    with pytest.raises(SpecError) as refused:
        check_asked(asked)
    assert (refused.value.field, refused.value.value) == (field, value)


def test_a_request_without_ranks_is_of_all() -> None:
    check_asked(TracesAsked(steps=100, ranks=(0, 7)))
    every, one = TraceRequest(number=1, first=7, count=3), TraceRequest(number=2, first=7, count=1, ranks=(2,))
    assert [every.is_of(9), one.is_of(2), one.is_of(1)] == [True, True, False]
    assert (every.last, every.steps_text(), one.steps_text()) == (9, "steps 7 to 9", "step 7")
