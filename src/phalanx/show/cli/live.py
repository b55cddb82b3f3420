"""The live line of a followed job."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from phalanx.core.units import show_duration
from phalanx.core.views import JobView
from phalanx.show.cli.follow import eta_text, speed_text
from phalanx.show.cli.text import clean

GAP: Final = 2
BAR_COLUMNS: Final = 32


class LiveScreen:
    """A line that is drawn over, below lines that stay; at the end it goes."""

    def __init__(self, live: Live, now_ms: Callable[[], int]) -> None:
        self._live = live
        self._now_ms = now_ms

    def say(self, text: str) -> None:
        self._live.console.print(Text(clean(text)))

    def show(self, view: JobView, now_s: float) -> None:
        self._live.update(LiveLine(view, self._now_ms()), refresh=True)


@contextmanager
def live_screen(stream: TextIO, now_ms: Callable[[], int]) -> Iterator[LiveScreen]:
    console = Console(file=stream, markup=False, highlight=False, emoji=False)
    with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False) as live:
        yield LiveScreen(live, now_ms)


class LiveLine:
    """One line whatever the width: the bar goes first, then MFU, then tokens/s, then what else does not fit."""

    def __init__(self, view: JobView, now_ms: int) -> None:
        self._view = view
        self._now_ms = now_ms

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        parts = self._parts()
        for name in ("bar", "mfu", "tokens", "restarts", "loss", "eta"):
            if self._width(parts) <= options.max_width:
                break
            parts.pop(name, None)
        table = Table.grid(padding=(0, GAP, 0, 0), pad_edge=False)
        for _ in parts:
            table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_row(*parts.values())
        yield table

    def _parts(self) -> dict[str, Text | ProgressBar]:
        view, seen = self._view, self._view.progress
        parts: dict[str, Text | ProgressBar] = {"job": Text(clean(view.id), style="bold"), "state": Text(clean(view.state))}
        if seen is None:
            parts["state"] = Text(f"{clean(view.state)} for {show_duration(max(0, self._now_ms - _since_ms(view)))}")
        else:
            parts["bar"] = ProgressBar(total=max(seen.total_steps, 1), completed=seen.step, width=BAR_COLUMNS)
            parts["step"] = Text(f"step {seen.step}/{seen.total_steps}")
            parts["loss"] = Text(f"loss {seen.loss:.4f}")
            parts["tokens"] = Text(speed_text(seen))
            if seen.mfu > 0:
                parts["mfu"] = Text(f"MFU {seen.mfu:.1%}")
            for text in eta_text(view):
                parts["eta"] = Text(text)
        if view.restarts:
            parts["restarts"] = Text(f"restarts {view.restarts}")
        return parts

    @staticmethod
    def _width(parts: dict[str, Text | ProgressBar]) -> int:
        widths = [BAR_COLUMNS if isinstance(part, ProgressBar) else part.cell_len for part in parts.values()]
        return sum(widths) + GAP * (len(widths) - 1)


def _since_ms(view: JobView) -> int:
    """When the state of now began, as near as the view tells."""
    if view.state in ("pending", "paused") or not view.attempts:
        return view.attempts[-1].ended_ms or view.submitted_ms if view.attempts else view.submitted_ms
    newest = view.attempts[-1]
    return newest.placed_ms if newest.running_ms is None else newest.running_ms
