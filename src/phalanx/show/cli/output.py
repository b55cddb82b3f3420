"""Answers on standard output: a table for people, or JSON or YAML of the view and nothing else."""

import io
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from phalanx.core import wire
from phalanx.show.cli.options import Output
from phalanx.show.cli.text import clean

PIPE_COLUMNS: Final = 400


def emit(output: Output, kind: Any, value: Any, page: Callable[[], Iterable[RenderableType]]) -> None:
    """Write `value`, a `kind`. `page` makes what people see and is called only for them."""
    if output is Output.TABLE:
        show(page())
    else:
        emit_plain(output, json.loads(wire.dumps(kind, value)))


def emit_plain(output: Output, data: object, one_line: bool = False) -> None:
    """Write plain data. Everything outside ASCII is escaped, so that nothing in it can steer a terminal."""
    if output is Output.JSON:
        sys.stdout.write(json.dumps(data, indent=None if one_line else 2) + "\n")
    else:
        import yaml

        sys.stdout.write(yaml.safe_dump(data, sort_keys=False, explicit_start=one_line))
    sys.stdout.flush()


def show(parts: Iterable[RenderableType]) -> None:
    """For people. In a pipe nothing is folded to 80 columns, and no line ends in the spaces that fill up a table."""
    if sys.stdout.isatty():
        _print(parts, Console(file=sys.stdout, markup=False, highlight=False, emoji=False))
        return
    written = io.StringIO()
    _print(parts, Console(file=written, width=PIPE_COLUMNS, markup=False, highlight=False, emoji=False, color_system=None))
    for text in written.getvalue().splitlines():
        sys.stdout.write(text.rstrip() + "\n")
    sys.stdout.flush()


def _print(parts: Iterable[RenderableType], console: Console) -> None:
    for part in parts:
        console.print(part)


def line(value: object = "", style: str = "") -> Text:
    """One line of text that may come from anybody."""
    return Text(clean(value), style=style, overflow="fold")


def pairs(rows: Iterable[tuple[str, object]]) -> Table:
    """Names and values, one a line."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(line(name), value if isinstance(value, Text) else line(value))
    return table


def section(title: str, body: RenderableType) -> list[RenderableType]:
    """A titled part of a page."""
    return [Text(""), Text(title, style="bold underline"), Padding(body, (0, 0, 0, 2))]


def moment_cell(ms: int | None) -> str:
    """`moment` below a head that says UTC."""
    return moment(ms).removesuffix(" UTC")


def moment(ms: int | None) -> str:
    """Unix milliseconds as UTC, or '-'."""
    if ms is None:
        return "-"
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):  # such as the end of a job that may run for a billion years
        return "beyond year 9999"
