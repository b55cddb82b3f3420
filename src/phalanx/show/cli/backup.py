"""backup, restore: a home's database as one file."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.show.cli.options import EXIT_CODES, LocalHomeOption, Output, OutputOption, tools_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from phalanx.core.views import BackupView, RestoreView


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    app.command("backup", epilog=EXIT_CODES)(backup)
    app.command("restore", epilog=EXIT_CODES)(restore)


def backup(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    home: LocalHomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write the database into one file, of one moment, while the platform runs.

    Jobs, events, quotas, models, tokens' hashes and sealed secrets are in it. Logs, checkpoints, blobs and the home's keys are not.
    """
    from phalanx.client import home_folder
    from phalanx.core.views import BackupView
    from phalanx.show.cli.output import emit

    view = tools_of(context).backup(home_folder(home), file.absolute())
    emit(output, BackupView, view, lambda: backup_page(view))


def restore(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Of `phalanx backup`.")],
    home: LocalHomeOption = None,
    database: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Into this empty PostgreSQL database: postgresql://user@host/name.  [default: $PHALANX_DATABASE, else the home's]",
            show_default=False,
        ),
    ] = "",
    keep_tokens: Annotated[
        bool,
        typer.Option("--keep-tokens", help="Also people's tokens and join tokens, those that were revoked since the backup too."),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a backup the database of a home whose platform is down.

    Into an empty database alone, of either kind. A home that holds this very platform in SQLite moves to the database that is
    named, if nothing was written since the backup.
    """
    from phalanx.client import home_folder
    from phalanx.core.views import RestoreView
    from phalanx.show.cli.output import emit

    view = tools_of(context).restore(home_folder(home), file.absolute(), database, keep_tokens)
    emit(output, RestoreView, view, lambda: restore_page(view))


def backup_page(view: "BackupView") -> "Iterator[RenderableType]":
    """Where it is and what is in it."""
    from phalanx.core.units import show_size
    from phalanx.show.cli.output import pairs

    yield pairs(
        [
            ("File", f"{view.file}, {show_size(view.size_bytes)}"),
            ("Of", view.database),
            ("Holds", f"{view.rows} rows, up to event {view.events}; schema {view.schema}"),
        ]
    )


def restore_page(view: "RestoreView") -> "Iterator[RenderableType]":
    """What the home holds now."""
    from phalanx.show.cli.output import moment, pairs

    yield pairs(
        [
            ("Home", view.home),
            ("Database", view.database),
            ("Holds", f"{view.rows} rows, up to event {view.events}, as of {moment(view.made_ms)}"),
            (
                "Tokens",
                f"{view.tokens_left_out} of people and unused join tokens left out; --keep-tokens brings back also revoked ones",
            ),
            ("Look at", "roles (`phalanx team ls`) and nodes (`phalanx node ls`): what was taken since the backup is back"),
        ]
    )
