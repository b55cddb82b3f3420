"""Device time of queues and jobs, as a page and as a table for a spreadsheet."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import astuple, fields
from typing import Final

from rich.console import RenderableType

from phalanx.core.units import MILLI, show_amount
from phalanx.core.use_views import UsageView
from phalanx.show.cli.grid import Grid
from phalanx.show.cli.output import line

_HOUR: Final = MILLI * 3_600_000


def usage_page(rows: Sequence[UsageView], of_jobs: bool) -> Iterator[RenderableType]:
    """Those that had the most first."""
    if not rows:
        yield line("Nothing held a device in that time.")
        return
    head = (
        "JOB" if of_jobs else "QUEUE",
        *(("QUEUE", "USER") if of_jobs else ()),
        "ATTEMPTS",
        "DEVICE H",
        "IN STEPS H",
        "IN STEPS",
    )
    found = [_row(row, of_jobs) for row in sorted(rows, key=lambda row: -row.allocated)]
    yield Grid(head, found, right=("ATTEMPTS", "DEVICE H", "IN STEPS H", "IN STEPS"), drop=("USER", "ATTEMPTS"), cut=head[0])


def usage_table(rows: Sequence[UsageView]) -> str:
    """CSV with a head, every digit in it."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(one.name for one in fields(UsageView))
    table.writerows(astuple(row) for row in rows)
    return text.getvalue()


def _row(row: UsageView, of_jobs: bool) -> tuple[object, ...]:
    share = f"{100 * row.used / row.allocated:.0f} %" if row.allocated and row.used else "-"
    whose = (row.queue, row.user) if of_jobs else ()
    return (row.name, *whose, row.attempts, show_amount(row.allocated / _HOUR), show_amount(row.used / _HOUR), share)
