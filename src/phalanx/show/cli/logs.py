"""logs: what one rank wrote."""

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from phalanx.core.errors import Exit, SpecError
from phalanx.show.cli.options import EXIT_CODES, HomeOption, JobArgument, Output, OutputOption, leave

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from phalanx.client import Client
    from phalanx.core.views import LogPage


JOINED_CHARS_MAX: Final = 64 * 1024 * 1024
"""Of a log that becomes one document, and so lies in memory."""


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
    """All pages of one attempt as one. Raises SpecError for a log that is too long for one document."""
    parts, chars = [], 0
    for page in pages:
        parts.append(page)
        chars += len(page.text)
        if chars > JOINED_CHARS_MAX:
            fix = f"is over {JOINED_CHARS_MAX // 2**20} MiB, too long for one document; leave -o out, or add -f for one a page"
            raise SpecError("log", parts[0].attempt, fix)
    yield dataclasses.replace(parts[-1], offset=parts[0].offset, text="".join(part.text for part in parts))
