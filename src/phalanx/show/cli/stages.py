"""Progress of a long local command, on standard error: a bar on a terminal, else one line a stage, and how far it is
now and then."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from phalanx.core.units import show_size
from phalanx.show.cli.beats import beats
from phalanx.show.cli.text import clean, note
from phalanx.show.cli.tools import ProgressSink


@contextmanager
def stages() -> Iterator[ProgressSink]:
    """A sink for (stage, done, total)."""
    if not sys.stderr.isatty():
        plain = _Plain()
        with beats(plain.said):
            yield plain
        return
    console = Console(file=sys.stderr, markup=False, highlight=False, emoji=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _Sizes(),
    )
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as progress:
        yield _bars(progress)


class _Sizes(ProgressColumn):
    """'10.4 MiB of 22.0 MiB', or only what is done while the whole is not known."""

    def render(self, task: Task) -> Text:
        return Text(_sizes(int(task.completed), int(task.total or 0)))


def _sizes(done: int, total: int) -> str:
    return f"{show_size(done)} of {show_size(total)}" if total else show_size(done)


class _Plain:
    """A sink that says each stage once. said: how far the last one is."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._last = ("", 0, 0)

    def __call__(self, stage: str, done: int, total: int) -> None:
        self._last = (stage, done, total)
        if stage not in self._seen:
            self._seen.add(stage)
            note(stage)

    def said(self) -> str:
        stage, done, total = self._last
        return f"{stage or 'not begun'}: {_sizes(done, total)}"


def _bars(progress: Progress) -> ProgressSink:
    lines: dict[str, TaskID] = {}

    def sink(stage: str, done: int, total: int) -> None:
        if stage not in lines:
            for before in lines.values():  # an unknown whole is known once the next stage starts
                progress.update(before, total=progress.tasks[before].completed)
            lines[stage] = progress.add_task(clean(stage), total=None)
        progress.update(lines[stage], completed=done, total=total or None)

    return sink
