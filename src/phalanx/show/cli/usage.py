"""usage: who was given how much of the fleet, and how much of that was spent in steps."""

import sys
import time
from enum import StrEnum
from typing import Annotated

import typer

from phalanx.show.cli.options import EXIT_CODES, HomeOption, Output, OutputOption


class By(StrEnum):
    """Whose device time each row is."""

    QUEUE = "queue"
    JOB = "job"


def add(app: typer.Typer) -> None:
    """Add this subject's command."""
    app.command("usage", epilog=EXIT_CODES)(usage)


def usage(
    by: Annotated[By, typer.Option(help="A row for each queue, or for each job.")] = By.QUEUE,
    since: Annotated[str, typer.Option(help="Only the last '90s', '2h', '7d'.")] = "30d",
    csv: Annotated[bool, typer.Option("--csv", help="As a table for a spreadsheet.")] = False,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show device time by queue or job.

    Of an attempt that began earlier, what lies in the window. In steps: what of it ranks spent in steps that they measured.
    """
    from phalanx.client import connect
    from phalanx.core.use_views import UsageView
    from phalanx.show.cli.durations import asked_ms
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.usage_page import usage_page, usage_table

    ago_ms = asked_ms("--since", since)
    since_ms = None if ago_ms is None else max(0, time.time_ns() // 1_000_000 - ago_ms)
    with connect(home) as client:
        rows = client.usage(by.value, since_ms)
    if csv:
        sys.stdout.write(usage_table(rows))
        return
    emit(output, tuple[UsageView, ...], rows, lambda: usage_page(rows, by is By.JOB))
