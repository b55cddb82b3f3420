"""secret set, ls, rm, rotate-key. A value comes from standard input or a file, never from the command line; none is shown."""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from phalanx.core.errors import SpecError
from phalanx.show.cli.options import EXIT_CODES, HomeOption, Output, OutputOption

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Its name, and that of the ranks' environment variable.")]
TeamOption = Annotated[str, typer.Option("--team", help="Whose it is.", show_default="your only team, or the platform's own")]
READ_BYTES_MAX: Final = 1024 * 1024


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    app.command("set", epilog=EXIT_CODES)(set_value)
    app.command("ls", epilog=EXIT_CODES)(ls)
    app.command("rm", epilog=EXIT_CODES)(rm)
    app.command("rotate-key", epilog=EXIT_CODES)(rotate_key)


def set_value(
    name: NameArgument,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", metavar="FILE", help="Read the value here instead of from standard input.")
    ] = None,
    team: TeamOption = "",
    home: HomeOption = None,
) -> None:
    """Store a secret, in place of an older value.

    The value is read from standard input, without echo on a terminal; one line break at its end is not part of it.
    """
    from phalanx.client import connect
    from phalanx.client.checks import checked_secret
    from phalanx.show.cli.text import note

    with connect(home) as client:
        checked_secret(name)  # before anybody types a value
        client.set_secret(name, _value(name, from_file), team)
    note(f"Stored {name}. Jobs get it by `secrets: [{name}]`.")


def ls(home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the names of stored secrets."""
    from phalanx.client import connect
    from phalanx.core.views import SecretView
    from phalanx.show.cli.grid import Grid
    from phalanx.show.cli.output import emit, line, moment_cell

    with connect(home) as client:
        views = client.secrets()
    teams = any(view.team for view in views)  # a platform of one user has no use for the column
    heads = ("NAME", "TEAM", "SET (UTC)") if teams else ("NAME", "SET (UTC)")
    rows = [(view.name, *([view.team or "-"] if teams else []), moment_cell(view.set_ms)) for view in views]
    emit(
        output,
        tuple[SecretView, ...],
        views,
        lambda: [Grid(heads, rows) if rows else line("No secrets are stored; `phalanx secret set NAME` stores one.")],
    )


def rm(name: NameArgument, team: TeamOption = "", home: HomeOption = None) -> None:
    """Remove a secret. Ranks that run keep what they were given."""
    from phalanx.client import connect
    from phalanx.show.cli.text import note

    with connect(home) as client:
        client.remove_secret(name, team)
    note(f"Removed {name}.")


def rotate_key(home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """Seal all secrets anew with a fresh key.

    The old key opens nothing any more, nor does a copy of the database that was made before with the new one: back up both again.
    """
    from phalanx.client import connect
    from phalanx.core.views import KeyRotatedView
    from phalanx.show.cli.output import emit, line

    with connect(home) as client:
        view = client.rotate_secret_key()
    words = (
        f"{view.secrets} secret{'' if view.secrets == 1 else 's'} sealed with a new key; back up the database and secret.key again."
    )
    emit(output, KeyRotatedView, view, lambda: [line(words)])


def _value(name: str, file: Path | None) -> bytes:
    if file is not None:
        try:
            with file.open("rb") as opened:
                data = opened.read(READ_BYTES_MAX)
        except OSError as error:
            raise SpecError("--from-file", str(file), f"cannot be read ({error.strerror})") from error
    elif sys.stdin.isatty():
        from getpass import getpass

        try:
            data = getpass(f"Value of {name}: ").encode()
        except EOFError as error:
            raise SpecError("value", "(nothing)", "type it, or pipe it into the command") from error
    else:
        data = sys.stdin.buffer.read(READ_BYTES_MAX)
    return data.removesuffix(b"\r\n" if data.endswith(b"\r\n") else b"\n")
