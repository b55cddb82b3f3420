"""audit: who changed what, from where."""

import time
from typing import Annotated

import typer

from phalanx.show.cli.options import EXIT_CODES, HomeOption, Output, OutputOption


def add(app: typer.Typer) -> None:
    """Add this subject's command."""
    app.command("audit", epilog=EXIT_CODES)(audit)


def audit(
    since: Annotated[str, typer.Option(help="Only of the last '90s', '2h', '7d'.", show_default="from the start")] = "",
    by: Annotated[str, typer.Option(help="Only what this user did; '?' did not say who they are.", show_default=False)] = "",
    what: Annotated[
        str, typer.Option(help="Only this, such as job.cancel, or all of a kind: job, team, token, refused.", show_default=False)
    ] = "",
    on: Annotated[str, typer.Option(help="Only what was done to this job, user or team.", show_default=False)] = "",
    limit: Annotated[int, typer.Option(help="At most so many, the newest.", min=1, max=1000)] = 100,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show who changed what, a line a change, oldest first; refused attempts too.

    For admins of the platform.
    """
    from phalanx.client import connect
    from phalanx.core.people import AuditView
    from phalanx.show.cli.durations import asked_ms
    from phalanx.show.cli.grid import Grid
    from phalanx.show.cli.output import emit, line, moment_cell

    ago_ms = asked_ms("--since", since)
    since_ms = None if ago_ms is None else time.time_ns() // 1_000_000 - ago_ms
    with connect(home) as client:
        views = client.people.audit(by=by, what=what, on=on, since_ms=since_ms, limit=limit, newest=True)
    heads = ("AT (UTC)", "BY", "TOKEN", "FROM", "WHAT", "ON", "OUTCOME", "DETAIL")
    rows = [
        (moment_cell(view.at_ms), view.by, view.token or "-", view.address, view.what, view.on, view.outcome, view.detail or "-")
        for view in views
    ]
    emit(output, tuple[AuditView, ...], views, lambda: [Grid(heads, rows) if rows else line("Nothing of that was written down.")])
