"""Progress of a long local command, on standard error: a bar on a terminal, else one line a stage."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from phalanx.core.units import show_size
from phalanx.show.cli.text import clean, note
from phalanx.show.cli.tools import ProgressSink


@contextmanager
def stages() -> Iterator[ProgressSink]:
    """A sink for (stage, done, total)."""
    if not sys.stderr.isatty():
        yield _plain()
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
        done = show_size(int(task.completed))
        return Text(done if task.total is None else f"{done} of {show_size(int(task.total))}")


def _plain() -> ProgressSink:
    seen: set[str] = set()

    def sink(stage: str, done: int, total: int) -> None:
        if stage not in seen:
            seen.add(stage)
            note(stage)

    return sink


def _bars(progress: Progress) -> ProgressSink:
    lines: dict[str, TaskID] = {}

    def sink(stage: str, done: int, total: int) -> None:
        if stage not in lines:
            for before in lines.values():  # an unknown whole is known once the next stage starts
                progress.update(before, total=progress.tasks[before].completed)
            lines[stage] = progress.add_task(clean(stage), total=None)
        progress.update(lines[stage], completed=done, total=total or None)

    return sink
