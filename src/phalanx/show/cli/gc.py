"""gc: removes what finished jobs left."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from phalanx.core.errors import Exit, NotFound, SpecError, StoreUnavailable
from phalanx.show.cli.options import EXIT_CODES, HomeOption, Output, OutputOption, leave

if TYPE_CHECKING:
    from rich.console import RenderableType

    from phalanx.client import Client
    from phalanx.core.views import GcView

POLL_S: Final = (0.05, 1.0)
PATIENCE_S: Final = 120.0
_ANEW: Final = "the server was started anew meanwhile; run it again, which goes on where it ended"


def add(app: typer.Typer) -> None:
    """Add this subject's command."""
    app.command("gc", epilog=EXIT_CODES)(gc)


def gc(
    older_than: Annotated[str, typer.Option(help="Of jobs that finished that long ago, such as 12h or 30d.")] = "30d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove what finished jobs left: packed workdirs, work folders, checkpoints, logs, records.

    Nothing goes that an open job, a job that finished lately or a model version needs. Rows and events of jobs stay for ever. A job
    whose files are collected cannot be retried. Ctrl-C stops watching, not the collection.
    """
    from phalanx.client import connect
    from phalanx.core.units import duration_ms
    from phalanx.core.views import GcView
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.text import note

    try:
        duration_ms(older_than)
    except ValueError as error:
        raise SpecError("--older-than", older_than, str(error)) from error
    with connect(home) as client:
        view = client.collect(older_than, dry_run)
        try:
            view = _ended(client, view)
        except KeyboardInterrupt:
            note("Stopped watching; the collection goes on.")
            leave(Exit.DETACHED)
    if view.state != "failed" or output is not Output.TABLE:
        emit(output, GcView, view, lambda: gc_page(view))
    if view.state == "failed":
        raise StoreUnavailable(f"the collection ended early: {view.error}; run it again")


def _ended(client: "Client", view: "GcView") -> "GcView":
    """The same collection once it has ended. Raises StoreUnavailable when the server was started anew meanwhile."""
    started_ms, pause_s = view.started_ms, POLL_S[0]
    while view.state == "running":
        client.rest(pause_s)
        pause_s = min(2 * pause_s, POLL_S[1])
        try:
            view = client.patient(client.collection, PATIENCE_S)
        except NotFound as error:
            raise StoreUnavailable(_ANEW) from error
        if view.started_ms != started_ms:
            raise StoreUnavailable(_ANEW)
    return view


def gc_page(view: "GcView") -> "Iterator[RenderableType]":
    """What went and what stays."""
    from phalanx.core.units import show_size
    from phalanx.show.cli.grid import Grid
    from phalanx.show.cli.output import line, section

    total = sum(amount.size_bytes for amount in view.taken)
    done = "Would remove" if view.dry_run else "Removed"
    jobs = f" of {len(view.jobs)} job{'s' if len(view.jobs) != 1 else ''}" if view.jobs else ""
    yield line(f"{done} {show_size(total)}{jobs}." if view.taken else f"{done} nothing.")
    if view.taken:
        rows = [(one.kind, one.count, show_size(one.size_bytes)) for one in view.taken]
        yield from section("Would go" if view.dry_run else "Gone", Grid(("KIND", "COUNT", "SIZE"), rows, right=("COUNT", "SIZE")))
    if view.kept:
        kept = [(one.kind, one.count, show_size(one.size_bytes), one.why) for one in view.kept]
        yield from section("Kept", Grid(("KIND", "COUNT", "SIZE", "WHY"), kept, right=("COUNT", "SIZE"), cut="WHY"))
    if view.problems:
        yield from section("Not removed, tried again next time", line("\n".join(view.problems)))
