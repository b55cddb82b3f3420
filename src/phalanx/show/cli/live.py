"""The live progress bar of a followed job."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from phalanx.core.views import JobView
from phalanx.show.cli.follow import progress_numbers
from phalanx.show.cli.text import clean


class LiveScreen:
    """A bar that is drawn over, below lines that stay."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def say(self, text: str) -> None:
        self._live.console.print(Text(clean(text)))

    def show(self, view: JobView, now_s: float) -> None:
        self._live.update(bar(view), refresh=True)


@contextmanager
def live_screen(stream: TextIO) -> Iterator[LiveScreen]:
    console = Console(file=stream, markup=False, highlight=False, emoji=False)
    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        yield LiveScreen(live)


def bar(view: JobView) -> Table:
    """Two lines: the bar with its step, and the numbers."""
    step, total = (view.progress.step, view.progress.total_steps) if view.progress else (0, 0)
    first = Table.grid(padding=(0, 2, 0, 0))
    first.add_row(
        Text(clean(view.id), style="bold"),
        Text(clean(view.state)),
        ProgressBar(total=max(total, 1), completed=step, width=32),
        Text(f"step {step}/{total}" if total else "step -"),
    )
    second = Text(clean("  ".join([*progress_numbers(view), f"restarts {view.restarts}"])))
    both = Table.grid()
    both.add_row(first)
    both.add_row(second)
    return both
