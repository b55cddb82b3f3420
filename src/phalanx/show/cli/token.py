"""token create, token ls, token revoke."""

import sys
from enum import StrEnum
from typing import Annotated

import typer

from phalanx.core.errors import SpecError
from phalanx.show.cli.options import EXIT_CODES, HomeOption, Output, OutputOption


class ScopeOption(StrEnum):
    """From the least to the most."""

    READ = "read"
    SUBMIT = "submit"
    ADMIN = "admin"


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    for command in (create, ls, revoke):
        app.command(command.__name__, epilog=EXIT_CODES)(command)


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for, such as laptop.", show_default=False)],
    user: Annotated[str, typer.Option(help="Whose it is; another's only for a platform admin.", show_default="you")] = "",
    scope: Annotated[ScopeOption, typer.Option(help="The most that it lets its owner do.")] = ScopeOption.SUBMIT,
    team: Annotated[str, typer.Option(help="The only team that it is for.", show_default="all of theirs")] = "",
    expires: Annotated[str, typer.Option(help="How long it is good, at most 365d.")] = "30d",
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a token. It is told this once.

    It never reaches further than its owner does at the time. Only a token of scope admin makes others.
    """
    from phalanx.client import connect
    from phalanx.core import wire
    from phalanx.core.people import LIFETIME_MS_MAX, MadeTokenView
    from phalanx.show.cli.durations import asked_ms
    from phalanx.show.cli.output import emit_plain, moment
    from phalanx.show.cli.text import note

    lifetime_ms = asked_ms("--expires", expires)
    if lifetime_ms is None or not 60_000 <= lifetime_ms <= LIFETIME_MS_MAX:
        raise SpecError("--expires", expires, "write a duration from '1m' to '365d'")
    with connect(home) as client:
        made = client.people.make_token(name, user=user, scope=scope.value, team=team, lifetime_ms=lifetime_ms)
        if output is Output.TABLE:
            sys.stdout.write(f"{made.token}\n")
            sys.stdout.flush()
        else:
            emit_plain(output, wire.plain(MadeTokenView, made))
        view = made.view
        note(
            f"{view.user}'s token {view.id}, scope {view.scope}, good until {moment(view.expires_ms)}: `phalanx login {client.url}`"
        )


def ls(home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """List your tokens, without what they are; as a platform admin everybody's."""
    from phalanx.client import connect
    from phalanx.core.people import TokenView
    from phalanx.show.cli.grid import Grid
    from phalanx.show.cli.output import emit, line, moment_cell

    with connect(home) as client:
        views = client.people.tokens()
    rows = [
        (view.id, view.name, view.user, view.scope, view.team or "-", moment_cell(view.expires_ms), moment_cell(view.used_ms))
        for view in views
    ]
    heads = ("ID", "NAME", "USER", "SCOPE", "TEAM", "EXPIRES (UTC)", "LAST USED (UTC)")
    none = "There are none; `phalanx token create NAME` makes one."
    emit(output, tuple[TokenView, ...], views, lambda: [Grid(heads, rows) if rows else line(none)])


def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="As `phalanx token ls` shows it.", show_default=False)],
    home: HomeOption = None,
) -> None:
    """Make a token open nothing any more, at once."""
    from phalanx.client import connect
    from phalanx.show.cli.text import note

    with connect(home) as client:
        client.people.revoke_token(token)
    note(f"Token {token} opens nothing any more.")
