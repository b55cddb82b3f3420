"""login, logout, whoami: a platform elsewhere, and who one is there. A token is never an argument."""

import sys
from typing import Annotated

import typer

from phalanx.core.errors import SpecError
from phalanx.show.cli.options import EXIT_CODES, HomeOption, LocalHomeOption, Output, OutputOption
from phalanx.show.cli.user import roles_cell

TOKEN_CHARS_MAX = 4_096


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    for command in (login, logout, whoami):
        app.command(command.__name__, epilog=EXIT_CODES)(command)


def login(
    url: Annotated[str, typer.Argument(metavar="URL", help="The control plane: https, or http on this machine's loopback.")],
    oidc: Annotated[bool, typer.Option("--oidc", help="Log in by the platform's OpenID provider, in a browser.")] = False,
    device: Annotated[
        bool, typer.Option("--device", help="Likewise, without a browser here: by a code that is typed in another one, elsewhere.")
    ] = False,
    home: LocalHomeOption = None,
) -> None:
    """Keep a token of a platform elsewhere, so that every command means that one.

    The token, of `phalanx token create`, is read without echo from a terminal, else from standard input. It is tried before it is
    kept, in a file for you alone. PHALANX_URL and PHALANX_CLUSTER go before it. With --oidc or --device no token is asked for: the
    platform gives one to whom its provider knows.
    """
    from phalanx.client import Client, home_folder
    from phalanx.client.address import checked_token, checked_url
    from phalanx.client.login import keep_login
    from phalanx.show.cli.text import note

    if oidc and device:
        raise SpecError("login", "--oidc --device", "are two ways of the same; leave one out")
    address = checked_url("URL", url)
    token = _by_code(address) if device else _by_provider(address) if oidc else checked_token("token", _token())
    with Client(address, token) as client:
        view = client.people.whoami()
    file = keep_login(home_folder(home), address, token)
    note(f"You are {view.user} at {address}: {_may(view.platform, dict(view.teams))}. Kept in {file}; `phalanx logout` forgets it.")


def logout(home: LocalHomeOption = None) -> None:
    """Forget the login of this home. The token stays good until it expires or is revoked."""
    from phalanx.client import home_folder
    from phalanx.client.login import forget_login
    from phalanx.show.cli.text import note

    there_was = forget_login(home_folder(home))
    note("Forgotten; `phalanx token revoke ID` would end the token itself." if there_was else "There was no login here.")


def whoami(home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show whose token is used, and what it lets you do."""
    from phalanx.client import connect
    from phalanx.core.people import WhoView
    from phalanx.show.cli.output import emit, moment, pairs

    with connect(home) as client:
        view, url = client.people.whoami(), client.url
    rows = [
        ("user", view.user),
        ("may", _may(view.platform, dict(view.teams))),
        ("token", f"{view.token}, scope {view.scope}{f', for team {view.team}' if view.team else ''}"),
        ("good until", moment(view.expires_ms) if view.expires_ms else "somebody replaces it"),
        ("at", f"{url}{f', {view.organisation}' if view.organisation else ''}"),
    ]
    emit(output, WhoView, view, lambda: [pairs(rows)])


def _may(platform: bool, teams: dict[str, str]) -> str:
    if platform:
        return "everything"
    return roles_cell(teams) if teams else "nothing yet: an admin has to put you into a team"


def _by_provider(address: str) -> str:
    from phalanx.client.oidc import log_in
    from phalanx.show.cli.text import note

    return log_in(address, lambda url: note(f"Open this in a browser of this machine:\n{url}"))


def _by_code(address: str) -> str:
    from phalanx.client.oidc_device import log_in_elsewhere
    from phalanx.show.cli.text import note

    return log_in_elsewhere(address, lambda url, code: note(f"On any device open {url} and type the code {code}"))


def _token() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.read(TOKEN_CHARS_MAX).strip()
    from getpass import getpass

    try:
        return getpass("Token: ").strip()
    except EOFError as error:
        raise SpecError("token", "(nothing)", "type it, or pipe it into the command") from error
