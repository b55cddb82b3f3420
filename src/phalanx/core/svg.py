"""Plots as SVG text, in colours that the page defines. Every name that comes from outside is escaped."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 720
HEIGHT: Final = 276
LEFT, RIGHT, TOP, BOTTOM = 88, 16, 12, 60
"""Room for ticks and labels in the largest text, which the page takes where a plot is shown small."""

COLOURS: Final = 8
"""As many as the page names: --c0 to --c7."""

Points = Sequence[tuple[float, float]]
Band = Sequence[tuple[float, float, float]]
"""(where, low, high)."""

CHAR: Final = 11
"""About the width of a character of a tick in that text."""

GAP: Final = 8
"""Between two ticks: else the second one is left out in that text."""

_SPAN_LEAST: Final = 0.1
LARGEST, SMALLEST = 1e300, 1e-300
"""Of what is drawn: beyond them a difference, or a tenth, is no float any more. What is larger lies at the edge."""
_TIMES: Final = {
    1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 36_000: "10 h", 86_400: "1 d", 864_000: "10 d",
    8_640_000: "100 d", 86_400_000: "1,000 d", 864_000_000: "10,000 d",
}  # fmt: skip
"""Ticks of a logarithmic axis of time, by seconds."""


@dataclass(frozen=True, slots=True)
class Axis:
    """label: what it shows, with its unit. log: by powers of ten; its range then begins above 0. time: in seconds, which are shown
    in units that people use."""

    label: str
    low: float
    high: float
    log: bool = False
    percent: bool = False
    time: bool = False

    def at(self, value: float) -> float:
        """0 to 1 along it."""
        if self.log:
            low, high = math.log10(self.low), math.log10(self.high)
            return min(1.0, max(0.0, (math.log10(max(value, self.low)) - low) / (high - low)))
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def ticks(self) -> list[float]:
        if self.log and self.time:
            return [float(value) for value in _TIMES if self.low <= value <= self.high * 1.0001]
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            return [10.0**power for power in range(first, last + 1) if self.low <= 10.0**power <= self.high * 1.0001]
        step = nice((self.high - self.low) / 5)
        count = math.floor((self.high - self.low) / step + 1e-9)
        return [self.low + step * number for number in range(count + 1)]

    def show(self, value: float) -> str:
        if self.percent:
            return f"{100 * value:.0f} %"
        if self.log and self.time:
            return _TIMES[round(value)]
        if abs(value) >= 1e12:
            return f"{value:g}"
        if abs(value) >= 1_000_000:
            return f"{value / 1_000_000:.9g}M"
        if abs(value) >= 100_000:
            return f"{value / 1000:g}k"
        return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:g}"


def drawable(value: float) -> float:
    """A number that is drawn where this finite one would be."""
    return 0.0 if abs(value) < SMALLEST else min(LARGEST, max(-LARGEST, value))


def nice(step: float) -> float:
    """1, 2 or 5 times a power of ten, at least `step`."""
    if step <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next((power * factor for factor in (1, 2, 5, 10) if power * factor >= step * 0.999), power * 10)


def around(label: str, values: Iterable[float], percent: bool = False) -> Axis:
    """An axis that holds all of them, from 0 where that is not far, and over a tenth of their size at least: what is nearly even
    shall look so."""
    known = [drawable(value) for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if 0 < low < high / 2:
        low = 0.0
    if low == high:
        low, high = min(0.0, low), max(0.0, high) or 1.0
    more = max(0.0, _SPAN_LEAST * max(abs(low), abs(high)) - (high - low)) / 2
    low, high = low - more, high + more
    step = nice((high - low) / 5)
    return Axis(label, step * math.floor(low / step + 1e-9), step * (math.floor(high / step - 1e-9) + 1), percent=percent)


def up_to(values: Iterable[float], least: float = 1.0) -> float:
    """The end of an axis from 0 that holds all of them."""
    most = max((drawable(value) for value in values if math.isfinite(value)), default=least)
    step = nice(max(most, least) / 5)
    return step * math.ceil(max(most, least) / step - 1e-9)


def line_plot(
    x: Axis, y: Axis, lines: Mapping[str, Points], area: bool = False, steps: bool = False, band: Band = (),
    marks: Mapping[str, float] | None = None,
) -> str:  # fmt: skip
    """One line a name, in the page's colours, with a legend where there are several. steps: a value holds until the next one, the
    last to the axis' end; else points are joined, but for those that are no number. band: drawn behind the first line. marks: where
    on the axis something happened, by what."""
    if not any(lines.values()):
        return nothing()
    parts = [_frame(x, y), *_band(x, y, band), *_marks(x, marks or {})]
    for number, (name, points) in enumerate(lines.items()):
        if not points:
            continue
        path = _steps(x, y, points) if steps else _joined(x, y, points)
        if area and number == 0:
            floor, start, end = _y(y, y.low), _x(x, points[0][0]), _x(x, points[-1][0])
            parts.append(f'<path class="area f{number % COLOURS}" d="{path} L{end:.1f},{floor:.1f} L{start:.1f},{floor:.1f} Z"/>')
        parts.append(f'<path class="line s{number % COLOURS}" d="{path}"><title>{escape(name)}</title></path>')
    return _svg("".join(parts), f"{y.label} over {x.label}") + (legend(list(lines)) if len(lines) > 1 else "")


def stack_plot(x: Axis, y: Axis, layers: Mapping[str, Points], marks: Mapping[str, float] | None = None) -> str:
    """Layers one above the other, with a legend. All have points at the same places."""
    if not any(layers.values()):
        return nothing()
    parts = [_frame(x, y)]
    floor = [(at, 0.0) for at, _ in next(iter(layers.values()))]
    for number, (name, points) in enumerate(layers.items()):
        top = [(at, below + value) for (at, below), (_, value) in zip(floor, points, strict=True)]
        outline = _joined(x, y, [*top, *reversed(floor)])
        parts.append(f'<path class="layer f{number % COLOURS}" d="{outline} Z"><title>{escape(name)}</title></path>')
        floor = top
    parts += _marks(x, marks or {})
    return _svg("".join(parts), f"{y.label} over {x.label}") + legend(list(layers))


def nothing() -> str:
    """In place of a plot without anything in it."""
    return "<p>There is nothing to draw.</p>"


def _joined(x: Axis, y: Axis, points: Points) -> str:
    parts, letter = [], "M"
    for a, b in points:
        if math.isfinite(b):
            parts.append(f"{letter}{_x(x, a):.1f},{_y(y, b):.1f}")
        letter = "L" if math.isfinite(b) else "M"
    return " ".join(parts)


def _band(x: Axis, y: Axis, band: Band) -> list[str]:
    known = [(at, low, high) for at, low, high in band if math.isfinite(low) and math.isfinite(high)]
    if not known:
        return []
    outline = _joined(x, y, [*((at, high) for at, _, high in known), *((at, low) for at, low, _ in reversed(known))])
    return [f'<path class="area f0" d="{outline} Z"/>']


def _marks(x: Axis, marks: Mapping[str, float]) -> list[str]:
    return [
        f'<line class="mark" x1="{_x(x, at):.1f}" x2="{_x(x, at):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
        f"<title>{escape(name)}</title></line>"
        for name, at in marks.items()
    ]


def _steps(x: Axis, y: Axis, points: Points) -> str:
    (first, value), *rest = points
    parts = [f"M{_x(x, first):.1f},{_y(y, value):.1f}", *(f"H{_x(x, a):.1f} V{_y(y, b):.1f}" for a, b in rest)]
    return " ".join([*parts, f"H{_x(x, x.high):.1f}"])


def bar_plot(label: str, rows: Sequence[tuple[str, float, str]], marks: Mapping[str, float] | None = None) -> str:
    """Horizontal bars of (name, value, what is written behind it), as HTML, so that names have the size of the page's text. marks:
    a line across a bar, by name."""
    if not rows:
        return nothing()
    high = up_to([*(value for _, value, _ in rows), *(marks or {}).values()], least=1e-9)
    parts = []
    for name, value, said in rows:
        mark = f'<b style="left:{100 * marks[name] / high:.2f}%"></b>' if marks and name in marks else ""
        bar = f'<i class="b0" style="width:{100 * value / high:.2f}%"></i>' if value > 0 else ""
        shown = escape(name)
        parts.append(f'<span class="name" title="{shown}">{shown}</span><div>{bar}{mark}</div><span>{escape(said)}</span>')
    return f'<div class="bars">{"".join(parts)}</div><p>{escape(label[:1].upper() + label[1:])}.</p>'


def stack_bar(parts: Sequence[tuple[str, float, str, int]]) -> str:
    """One bar of (name, share of it, what is written of it, number of its colour), with a legend."""
    shapes, at = [], 0.0
    for name, share, said, number in parts:
        width = WIDTH * share
        shapes.append(
            f'<rect class="f{number % COLOURS}" x="{at:.2f}" y="4" width="{max(0.0, width):.2f}" height="36">'
            f"<title>{escape(name)}: {escape(said)}</title></rect>"
        )
        at += width
    return _svg("".join(shapes), "Where every device-second went", 44) + legend(
        [f"{name} {said}" for name, _, said, _ in parts], [number for *_, number in parts]
    )


def legend(names: Sequence[str], colours: Sequence[int] | None = None) -> str:
    """Names with the colours of their lines."""
    numbered = zip(colours or range(len(names)), names, strict=True)
    items = "".join(f'<li><i class="b{number % COLOURS}"></i>{escape(name)}</li>' for number, name in numbered)
    return f'<ul class="legend">{items}</ul>'


def _frame(x: Axis, y: Axis) -> str:
    parts = []
    for value in y.ticks():
        at = _y(y, value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="end" x="{LEFT - 6}" y="{at + 4:.1f}">{escape(y.show(value))}</text>')
    taken = 0.0  # up to where the last tick that is always shown reaches
    for value in x.ticks():
        at = _x(x, value)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        said = x.show(value)
        width = CHAR * len(said)
        clipped = at + width / 2 > WIDTH
        begin = WIDTH - width if clipped else at - width / 2
        thin = " thin" if begin < taken else ""
        taken = taken if thin else begin + width + GAP
        where = f'class="end{thin}" x="{WIDTH}"' if clipped else f'class="middle{thin}" x="{at:.1f}"'
        parts.append(f'<text {where} y="{HEIGHT - BOTTOM + 24}">{escape(said)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="axis middle" x="{middle:.0f}" y="{HEIGHT - 8}">{escape(x.label)}</text>')
    centre = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text class="axis middle" transform="translate(14 {centre:.0f}) rotate(-90)">{escape(y.label)}</text>')
    return "".join(parts)


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.at(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.at(value) * (HEIGHT - TOP - BOTTOM)


def _svg(inside: str, label: str, height: float = HEIGHT) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">{inside}</svg>'
