"""logs: what one rank wrote."""

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.core.errors import Exit
from phalanx.show.cli.options import EXIT_CODES, HomeOption, JobArgument, Output, OutputOption, leave

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from phalanx.client import Client
    from phalanx.core.views import LogPage


def add(app: typer.Typer) -> None:
    """Add this subject's command."""
    app.command("logs", epilog=EXIT_CODES)(logs)


def logs(
    job: JobArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as it grows, attempt after attempt, until the job ends.")
    ] = False,
    rank: Annotated[int, typer.Option(help="Which rank's log.", min=0)] = 0,
    attempt: Annotated[
        int | None,
        typer.Option(help="Only this attempt's log, from 1.", min=1, show_default="the newest; with -f the later ones too"),
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what one rank wrote.

    Ctrl-C stops looking, never the job. With -f, JSON is one page a line, YAML one a document.
    """
    from phalanx.client import connect
    from phalanx.show.cli.text import note

    name = f"{job}.{attempt}" if attempt else ""
    try:
        with connect(home) as client:
            pages = client.follow_logs(job, rank, name) if follow else _until_now(client, job, rank, name)
            _write(pages, output, follow)
    except KeyboardInterrupt:
        note(f"Detached; {job} is not affected. Look again with `phalanx logs -f {job}`, or watch it with `phalanx follow {job}`.")
        leave(Exit.DETACHED)


def _until_now(client: "Client", job: str, rank: int, attempt: str) -> "Iterator[LogPage]":
    page = client.logs(job, rank, attempt)
    yield page
    while page.next_offset > page.offset:
        page = client.logs(job, rank, page.attempt, page.next_offset)
        yield page


def _write(pages: "Iterable[LogPage]", output: Output, follow: bool) -> None:
    from phalanx.core import wire
    from phalanx.core.views import LogPage
    from phalanx.show.cli.text import clean_log

    if output is not Output.TABLE:
        from phalanx.show.cli.output import emit_plain

        for page in pages if follow else _joined(pages):
            emit_plain(output, wire.plain(LogPage, page), one_line=follow)
        return
    on_terminal, last = sys.stdout.isatty(), ""
    try:
        for page in pages:
            last = page.text or last
            sys.stdout.write(clean_log(page.text) if on_terminal else page.text)
            sys.stdout.flush()
    finally:
        if on_terminal and last and not last.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()


def _joined(pages: "Iterable[LogPage]") -> "Iterator[LogPage]":
    """All pages of one attempt as one."""
    parts = list(pages)
    yield dataclasses.replace(parts[-1], offset=parts[0].offset, text="".join(part.text for part in parts))
