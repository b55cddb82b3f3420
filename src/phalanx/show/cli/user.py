"""user create, user ls, user rm."""

from typing import Annotated

import typer

from phalanx.show.cli.options import EXIT_CODES, HomeOption, Output, OutputOption

UserArgument = Annotated[str, typer.Argument(metavar="USER", help="A user's name, such as ada.", show_default=False)]


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    for command in (create, ls, rm):
        app.command(command.__name__, epilog=EXIT_CODES)(command)


def create(
    user: UserArgument,
    platform: Annotated[bool, typer.Option("--platform", help="May everything: nodes, policy, accounts, all teams.")] = False,
    home: HomeOption = None,
) -> None:
    """Make an account. It may nothing before it is in a team.

    `phalanx team add TEAM USER` gives a role, `phalanx token create NAME --user USER` a token. A name is never given twice.
    """
    from phalanx.client import connect
    from phalanx.show.cli.text import note

    with connect(home) as client:
        client.people.add_user(user, platform)
    follows = "They may everything" if platform else f"`phalanx team add TEAM {user}` puts them into a team"
    note(f"Made {user}. {follows}; `phalanx token create NAME --user {user}` makes their token.")


def ls(home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """List everybody, and their roles."""
    from phalanx.client import connect
    from phalanx.core.people import UserView
    from phalanx.show.cli.grid import Grid
    from phalanx.show.cli.output import emit, line, moment_cell

    with connect(home) as client:
        views = client.people.users()
    rows = [(view.user, "yes" if view.platform else "no", roles_cell(view.teams), moment_cell(view.created_ms)) for view in views]
    nobody = "There are no users but the built-in admin; `phalanx user create USER` makes one."
    emit(
        output, tuple[UserView, ...], views,
        lambda: [Grid(("USER", "PLATFORM ADMIN", "TEAMS", "SINCE (UTC)"), rows) if rows else line(nobody)],
    )  # fmt: skip


def rm(user: UserArgument, home: HomeOption = None) -> None:
    """Remove an account, with its roles and tokens. Its jobs stay and go on."""
    from phalanx.client import connect
    from phalanx.show.cli.text import note

    with connect(home) as client:
        client.people.remove_user(user)
    note(f"Removed {user}; nothing of theirs opens this platform any more.")


def roles_cell(roles: object) -> str:
    """'blue (viewer), red (admin)'."""
    assert isinstance(roles, dict)
    return ", ".join(f"{name} ({role})" for name, role in sorted(roles.items())) or "-"
