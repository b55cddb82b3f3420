"""Progress of something that is counted, on standard error: a bar on a terminal, else nothing."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

CountSink = Callable[[int, int], None]
"""Called as (done, total)."""


@contextmanager
def counted(what: str) -> Iterator[CountSink]:
    """A sink; the bar goes away at the end."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    console = Console(file=sys.stderr, markup=False, highlight=False, emoji=False)
    columns = (MofNCompleteColumn(), TextColumn(what, markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as progress:
        line = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(line, completed=done, total=total)
