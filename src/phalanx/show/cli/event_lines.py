"""Events as lines: when, of what, what happened. One line each, whatever the width; a pipe gets all of the text."""

import os
import shutil
import sys
from collections.abc import Iterable
from typing import Final

from rich.cells import cell_len, set_cell_size

from phalanx.core.views import EventView
from phalanx.show.cli.event_words import words
from phalanx.show.cli.output import moment_cell
from phalanx.show.cli.text import clean

SUBJECT_COLUMNS: Final = 16
"""Of most attempts' ids: lines of a log that grows cannot wait for the longest."""

GAP: Final = "  "
FOUND: Final = frozenset({"spike", "corruption", "data"})
"""Facts of ranks that somebody may have to look at."""
_STYLES: Final = {
    "attempt_running": "32",
    "part_lost": "31",
    "node_away": "31",
    "stop_requested": "33",
    "node_drained": "33",
    "straggler_found": "33",
    "job_waits": "2",
}
"""ANSI codes by kind: green for what starts, red for what broke, yellow for what was asked to stop, dim for waiting."""


def write_lines(events: Iterable[EventView]) -> None:
    """To standard output, at once."""
    on_terminal = sys.stdout.isatty()
    coloured = on_terminal and not os.environ.get("NO_COLOR")
    columns = shutil.get_terminal_size().columns if on_terminal else 0
    for event in events:
        text = event_line(event, columns)
        sys.stdout.write((_coloured(event, text) if coloured else text) + "\n")
    sys.stdout.flush()


def event_line(event: EventView, columns: int = 0) -> str:
    """'2026-11-27 23:22:47  tiny-lm-1.1       running: 2 ranks up', cut to `columns` where that is not 0. Times are UTC."""
    subject, told = words(event)
    text = f"{moment_cell(event.at_ms)}{GAP}{clean(subject):<{SUBJECT_COLUMNS}}{GAP}{clean(told)}"
    if columns and cell_len(text) > columns:
        return set_cell_size(text, max(1, columns - 1)).rstrip() + "…"
    return text


def _coloured(event: EventView, text: str) -> str:
    style = _STYLES.get(event.kind, "")
    if event.kind == "rank_said" and event.body.get("fact", {}).get("kind") in FOUND:
        style = "33"
    if event.kind == "attempt_ended":
        style = "32" if event.body.get("ok") else "31"
    return f"\x1b[{style}m{text}\x1b[0m" if style else text
