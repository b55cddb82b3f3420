"""Fewer points of a curve, for a tracker that keeps every point as a database row."""

from collections.abc import Sequence
from typing import Final, TypeVar

POINTS_MAX: Final = 1_000
"""Points of one metric that go to the tracker; the full series stays in ours."""

Point = TypeVar("Point")


def downsample(points: Sequence[Point], limit: int = POINTS_MAX) -> list[Point]:
    """At most `limit` (2 or more) of `points` in order, evenly spread, the first and the last among them."""
    if limit < 2:
        raise ValueError("limit: a curve needs its first and its last point, so 2 or more")
    if len(points) <= limit:
        return list(points)
    last = len(points) - 1
    return [points[index * last // (limit - 1)] for index in range(limit)]
