"""Bounds of untrusted data: the first thing that is too much is named, and what is within them passes."""

from typing import Any

import pytest

from phalanx.core.errors import SpecError, shown
from phalanx.core.validation import Bounds, beyond

BOUNDS = Bounds(depth=3, values=20, chars=100)


@pytest.mark.parametrize(
    ("data", "field", "value"),
    [
        ({"a": {"b": {"c": {}}}}, "a.b.c", "(one more level)"),
        ({"a": [[[]]]}, "a", "(one more level)"),
        ({"a": "x" * 101}, "a", "(over 100 characters)"),
        ({"x" * 101: 1}, "", "(over 100 characters)"),
        ({"a": ["x" * 60, "x" * 60]}, "a", "(over 100 characters)"),
        ({"a": [1] * 20}, "", "(over 20 values)"),
        ({"a": {"b": 2**64}}, "a.b", "(a number of 65 bits)"),
        ({"a": -(10**5000)}, "a", "(a number of 16610 bits)"),
    ],
)
def test_what_is_beyond_is_named(data: Any, field: str, value: str) -> None:
    found = beyond(data, BOUNDS)
    assert found is not None
    assert found[:2] == (field, value) and found[2].startswith("write ")


def test_what_is_within_passes() -> None:
    assert beyond({"a": {"b": ["x" * 90, None, True, 2**64 - 1, 1.5]}}, BOUNDS) is None
    assert beyond({"a": [1] * 17}, BOUNDS) is None
    assert beyond("x", BOUNDS) is None


def test_an_error_about_a_value_that_cannot_be_shown_is_that_error() -> None:
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    for value, says in ((10**5000, "(int too large to show)"), (nested, "(list too large to show)")):
        error = SpecError("x", value, "write less")
        assert str(error) == f"x: {says}: write less" and error.sentence() == f"x is {says}: write less"
    assert shown("a") == "'a'"
    while nested:  # taken apart from outside: freeing it at once would go as deep
        nested = nested[0]
