"""events: the log of one job or of everything."""

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from phalanx.core.errors import Exit
from phalanx.show.cli.completing import job_ids
from phalanx.show.cli.options import EXIT_CODES, HomeOption, Output, OutputOption, leave

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from phalanx.client import Client
    from phalanx.core.views import EventView

POLL_S: Final = 0.5


def add(app: typer.Typer) -> None:
    """Add this subject's command."""
    app.command("events", epilog=EXIT_CODES)(events)


def events(
    job: Annotated[
        str,
        typer.Argument(metavar="JOB", help="Only this job's, e.g. of tiny-lm-7.", show_default=False, autocompletion=job_ids),
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens from now on, until Ctrl-C.")] = False,
    since: Annotated[str, typer.Option(help="Only of the last '90s', '2h', '7d'.", show_default="from the start")] = "",
    kind: Annotated[
        str, typer.Option(help="Only this kind, such as attempt_ended; an unknown one names them all.", show_default=False)
    ] = "",
    limit: Annotated[int, typer.Option(help="At most so many of those so far, the newest.", min=1, max=1000)] = 100,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what happened, a line an event, oldest first.

    Of one job, or of all jobs and nodes. With -f, JSON is one event a line, YAML one a document. Ctrl-C stops looking, nothing
    else.
    """
    from phalanx.client import connect
    from phalanx.show.cli.durations import asked_ms
    from phalanx.show.cli.text import note

    ago_ms = asked_ms("--since", since)
    since_ms = None if ago_ms is None else time.time_ns() // 1_000_000 - ago_ms
    try:
        with connect(home) as client:
            # Where nothing matches yet, each look would seek through the whole log.
            newest = client.events(limit=1, newest=True) if follow and (kind or since) else ()
            known = client.events(job or None, limit=limit, kind=kind, since_ms=since_ms, newest=True)
            _write(known, output, one_line=follow)
            if follow:
                after = max((one.seq for one in (*newest, *known)), default=0)
                for page in _later(client, job, kind, after, since_ms):
                    _write(page, output, one_line=True)
    except KeyboardInterrupt:
        note("Stopped looking; nothing else was stopped.")
        leave(Exit.DETACHED)


def _later(client: "Client", job: str, kind: str, after: int, since_ms: int | None) -> "Iterator[Iterable[EventView]]":
    """Pages of what happens, for ever. A server that is away is waited for."""
    from phalanx.show.cli.patience import patiently
    from phalanx.show.cli.text import note

    while True:
        page = patiently(client, note, partial(client.events, job or None, after, kind=kind, since_ms=since_ms))
        if page:
            yield page
            after = page[-1].seq
        else:
            client.rest(POLL_S)


def _write(events: "Iterable[EventView]", output: Output, one_line: bool) -> None:
    from phalanx.core import wire
    from phalanx.core.views import EventView

    if output is Output.TABLE:
        from phalanx.show.cli.event_lines import write_lines

        write_lines(events)
        return
    from phalanx.show.cli.output import emit_plain

    if not one_line:
        emit_plain(output, wire.plain(tuple[EventView, ...], tuple(events)))
        return
    for event in events:
        emit_plain(output, wire.plain(EventView, event), one_line=True)
