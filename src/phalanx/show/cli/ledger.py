"""ledger: where every device-second went."""

import time
from typing import Annotated

import typer

from phalanx.show.cli.completing import job_ids
from phalanx.show.cli.options import EXIT_CODES, HomeOption, Output, OutputOption


def add(app: typer.Typer) -> None:
    """Add this subject's command."""
    app.command("ledger", epilog=EXIT_CODES)(ledger)


def ledger(
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="Only this job's devices.", show_default=False, autocompletion=job_ids)
    ] = "",
    since: Annotated[str, typer.Option(help="Only the last '90s', '2h', '7d'.", show_default="from the start")] = "",
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show where every device-second went.

    By category, with the cost. The categories sum to capacity exactly.
    """
    from phalanx.client import connect
    from phalanx.core.views import LedgerView
    from phalanx.show.cli.durations import asked_ms
    from phalanx.show.cli.ledger_page import ledger_page
    from phalanx.show.cli.output import emit

    ago_ms = asked_ms("--since", since)
    since_ms = None if ago_ms is None else time.time_ns() // 1_000_000 - ago_ms
    with connect(home) as client:
        view = client.ledger(job, since_ms)
    emit(output, LedgerView, view, lambda: ledger_page(view))
