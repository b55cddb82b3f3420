"""Progress of something that is counted, on standard error: a bar on a terminal, else a line now and then."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from phalanx.show.cli.beats import beats

CountSink = Callable[[int, int], None]
"""Called as (done, total)."""


@contextmanager
def counted(what: str) -> Iterator[CountSink]:
    """A sink; the bar goes away at the end."""
    if not sys.stderr.isatty():
        plain = _Plain(what)
        with beats(plain.said):
            yield plain
        return
    console = Console(file=sys.stderr, markup=False, highlight=False, emoji=False)
    columns = (MofNCompleteColumn(), TextColumn(what, markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as progress:
        line = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(line, completed=done, total=total)


class _Plain:
    """A sink that only remembers. said: how far it is."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._last = (0, 0)

    def __call__(self, done: int, total: int) -> None:
        self._last = (done, total)

    def said(self) -> str:
        done, total = self._last
        return f"{done:,} of {total:,} {self._what}" if total else f"no {self._what} yet"
