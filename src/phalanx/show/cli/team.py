"""team create, team ls, team add, team remove, team rm; team organisation."""

from enum import StrEnum
from typing import Annotated

import typer

from phalanx.show.cli.options import EXIT_CODES, HomeOption, Output, OutputOption
from phalanx.show.cli.user import UserArgument, roles_cell

TeamArgument = Annotated[str, typer.Argument(metavar="TEAM", help="A team's name, such as vision.", show_default=False)]


class RoleOption(StrEnum):
    """From the least to the most."""

    VIEWER = "viewer"
    MEMBER = "member"
    ADMIN = "admin"


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    for name, command in (
        ("create", create), ("ls", ls), ("add", add_member), ("remove", remove_member), ("rm", rm), ("organisation", organisation),
    ):  # fmt: skip
        app.command(name, epilog=EXIT_CODES)(command)


def create(
    team: TeamArgument,
    trusting: Annotated[
        bool, typer.Option("--trusting", help="Also where jobs are not kept apart: one team's can read what another's can.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Make a team, with nobody in it yet. A name is never given twice.

    A second one is refused where jobs of different teams would not be kept apart: see `Trust` in `phalanx status`.
    """
    from phalanx.client import connect
    from phalanx.show.cli.text import note

    with connect(home) as client:
        client.people.add_team(team, trusting)
    note(f"Made team {team}. `phalanx team add {team} USER --role member` puts somebody into it.")


def ls(home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """List your teams, and who is in them."""
    from phalanx.client import connect
    from phalanx.core.people import TeamView
    from phalanx.show.cli.grid import Grid
    from phalanx.show.cli.output import emit, line, moment_cell

    with connect(home) as client:
        views = client.people.teams()
    rows = [(view.team, roles_cell(view.members), moment_cell(view.created_ms)) for view in views]
    nobody = "There are no teams; `phalanx team create TEAM` makes one."
    emit(
        output, tuple[TeamView, ...], views, lambda: [Grid(("TEAM", "WHO", "SINCE (UTC)"), rows) if rows else line(nobody)]
    )  # fmt: skip


def add_member(
    team: TeamArgument,
    user: UserArgument,
    role: Annotated[RoleOption, typer.Option(help="What they may in it.")] = RoleOption.MEMBER,
    home: HomeOption = None,
) -> None:
    """Give somebody a role in a team, in place of another.

    viewer: read the team's jobs, logs, models and usage. member: submit too, and change their own jobs. admin: change everybody's
    jobs and who is in the team.
    """
    from phalanx.client import connect
    from phalanx.show.cli.text import note

    with connect(home) as client:
        client.people.set_member(team, user, role.value)
    note(f"{user} is {'an' if role is RoleOption.ADMIN else 'a'} {role.value} of {team} from now on.")


def remove_member(team: TeamArgument, user: UserArgument, home: HomeOption = None) -> None:
    """Take somebody out of a team. They see nothing of it any more; their jobs go on."""
    from phalanx.client import connect
    from phalanx.show.cli.text import note

    with connect(home) as client:
        client.people.remove_member(team, user)
    note(f"{user} is not in {team} any more.")


def rm(team: TeamArgument, home: HomeOption = None) -> None:
    """Remove a team, with all roles in it. Its jobs go on, and platform admins alone see them."""
    from phalanx.client import connect
    from phalanx.show.cli.text import note

    with connect(home) as client:
        client.people.remove_team(team)
    note(f"Removed team {team}.")


def organisation(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as 'Example Lab'.", show_default=False)],
    trusting: Annotated[
        bool | None,
        typer.Option(
            "--trusting/--no-trusting",
            help="Whether its teams trust each other: else nodes that do not keep jobs apart get none where there are two.",
            show_default=False,
        ),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Say whose platform this is, which `phalanx whoami` shows; and whether its teams trust each other."""
    from phalanx.client import connect
    from phalanx.show.cli.text import note

    with connect(home) as client:
        view = client.people.name_organisation(name, trusting)
    trust = "" if trusting is None else f" Its teams {'trust' if view.trusting else 'do not trust'} each other."
    note(f"This is the platform of {view.name}.{trust}")
