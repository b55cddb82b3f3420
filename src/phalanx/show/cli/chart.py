"""A curve in a terminal: dots of Braille patterns, two by four of them to a character; stars where the terminal has no such."""

import math
from collections.abc import Sequence
from typing import Final

from phalanx.core.svg import drawable

_FIRST: Final = 0x2800
_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""By row and column of a character (Unicode, Braille Patterns)."""
LABEL: Final = 10
HEIGHT: Final = 6
SPAN_LEAST: Final = 0.1
"""Of the highest value, from bottom to top: what is nearly even shall look so."""


def chart(points: Sequence[tuple[float, float]], width: int, plain: bool = False) -> list[str]:
    """HEIGHT lines of (where, value), at most `width` columns with the labels of least and most before them. Values that are no
    number are left out. plain: in ASCII."""
    known = [(at, drawable(value)) for at, value in points if math.isfinite(value)]
    if not known:
        return ["nothing to draw"]
    columns = max(8, width - LABEL - 1)
    across, down = (columns, HEIGHT) if plain else (2 * columns, 4 * HEIGHT)
    left, right = known[0][0], max(at for at, _ in known)
    low, high = min(value for _, value in known), max(value for _, value in known)
    low = min(low, high - SPAN_LEAST * abs(high))
    cells = [[0] * columns for _ in range(HEIGHT)]
    for at, value in known:
        column = _place(at, left, right, across)
        row = down - 1 - _place(value, low, high, down)
        if plain:
            cells[row][column] = 1
        else:
            cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
    labels = [label_of(high), *[""] * (HEIGHT - 2), label_of(low)]
    return [f"{label:>{LABEL}} {_text(row, plain)}".rstrip() for label, row in zip(labels, cells, strict=True)]


def _place(value: float, low: float, high: float, count: int) -> int:
    """0 to count - 1."""
    return min(count - 1, int((value - low) / (high - low) * count)) if high > low else 0


def _text(row: Sequence[int], plain: bool) -> str:
    return "".join(" " if not cell else "*" if plain else chr(_FIRST + cell) for cell in row)


def label_of(value: float) -> str:
    """At most LABEL characters, but for a tiny one."""
    if abs(value) >= 1e7:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
