"""Tables whose rows stay one line each, however narrow the terminal."""

from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from phalanx.show.cli.output import line

GAP: Final = 2
CUT_COLUMNS_MIN: Final = 24
"""A column that may be shortened keeps this much before another one is left out for it."""


class Grid:
    """A table without borders.

    right: columns of numbers. drop: columns that a narrow terminal goes without, the first one first; a last line names those that
    have a name. cut: the column that is shortened, which that line says too, from the left when it is a PATH, whose end tells more.
    A pipe gets everything.
    """

    def __init__(
        self,
        head: Sequence[str],
        rows: Iterable[Sequence[object]],
        right: Sequence[str] = (),
        drop: Sequence[str] = (),
        cut: str | None = None,
    ) -> None:
        cells = [[cell if isinstance(cell, Text) else line(cell) for cell in row] for row in rows]
        self._columns = {name: [row[index] for row in cells] for index, name in enumerate(head)}
        self._right, self._drop, self._cut = right, drop, cut

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names, room = list(self._columns), options.max_width
        widths = {name: max([len(name), *(cell.cell_len for cell in cells)]) for name, cells in self._columns.items()}
        least = {**widths, **({self._cut: min(widths[self._cut], CUT_COLUMNS_MIN)} if self._cut in widths else {})}
        left_out = []
        for name in self._drop if console.is_terminal else ():
            if sum(least[one] + GAP for one in names) - GAP <= room:
                break
            names.remove(name)
            left_out.append(name)
        cut_to = room - sum(widths[one] + GAP for one in names if one != self._cut)
        whole = 0 if self._cut is None else widths.get(self._cut, 0)
        yield self._table(names, cut_to if console.is_terminal else whole)
        missing = [name for name in left_out if name]
        if console.is_terminal and max(cut_to, 2) < whole:
            missing.append(f"all of {self._cut}")
        if missing:
            yield Text(f"(no room for {', '.join(missing)}; -o json has all)", style="dim")

    def _table(self, names: Sequence[str], cut_to: int) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
        for name in names:
            table.add_column(Text(name), justify="right" if name in self._right else "left", overflow="fold")
        columns = [
            [_shortened(cell, cut_to, name) if name == self._cut else cell for cell in self._columns[name]] for name in names
        ]
        for row in zip(*columns, strict=True):
            table.add_row(*row)
        return table


def _shortened(cell: Text, columns: int, name: str) -> Text:
    if cell.cell_len <= max(columns, 2):
        return cell
    if "PATH" in name:
        short = cell[-1:]
        while (longer := cell[-len(short) - 1 :]).cell_len < columns:
            short = longer
        return Text("…").append_text(short)
    short = cell.copy()
    short.truncate(max(columns, 2), overflow="ellipsis")
    return short
