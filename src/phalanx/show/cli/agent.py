"""agent token, agent join, agent revoke."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from phalanx.core.errors import SpecError
from phalanx.show.cli.options import (
    EXIT_CODES,
    HomeOption,
    IsolationOption,
    LocalHomeOption,
    NodeArgument,
    Output,
    OutputOption,
    leave,
    tools_of,
)

if TYPE_CHECKING:
    from phalanx.core.views import JoinTokenView

FILE_MODE: Final = 0o600


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    for command in (token, join, revoke):
        app.command(command.__name__, epilog=EXIT_CODES)(command)


def token(
    expires: Annotated[str, typer.Option(help="How long it may be used: '90s', '1h', '7d'.")] = "1h",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write it to a new file for you alone instead of the screen."),
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a token that lets one node join.

    It is told this once, and is good for one `phalanx agent join`.
    """
    from phalanx.client import connect
    from phalanx.core.views import JOIN_TOKEN_MS
    from phalanx.show.cli.durations import asked_ms
    from phalanx.show.cli.output import moment
    from phalanx.show.cli.text import note

    lifetime_ms = asked_ms("--expires", expires)
    if lifetime_ms is None or not JOIN_TOKEN_MS[0] <= lifetime_ms <= JOIN_TOKEN_MS[1]:
        raise SpecError("--expires", expires, "write a duration from '1s' to '30d'")
    with connect(home) as client:
        if out is None:
            view = client.make_join_token(lifetime_ms)
            _show(view, output)
        else:
            handle = _new_file(out)
            try:
                view = client.make_join_token(lifetime_ms)
                os.write(handle, f"{view.token}\n".encode())
            except BaseException:
                out.unlink(missing_ok=True)
                raise
            finally:
                os.close(handle)
            _show_file(out, view, output)
        note(f"Good for one node until {moment(view.expires_ms)}: `phalanx agent join {client.url} --token-file {out or 'FILE'}`")


def join(
    context: typer.Context,
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="The control plane: https, or http on this machine's loopback; its standby's too, with a comma between.",
        ),
    ],
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="Holds a token of `phalanx agent token`; needed the first time only."),
    ] = None,
    name: Annotated[str, typer.Option(help="Join as this node.", show_default="this machine's name, or the one of before")] = "",
    home: LocalHomeOption = None,
    cpu_slots: Annotated[
        int | None, typer.Option(help="Offer this many CPU slots instead of the devices found.", min=1, max=1024)
    ] = None,
    isolation: IsolationOption = None,
) -> None:
    """Run this machine's agent for a control plane elsewhere.

    In the foreground, until Ctrl-C or SIGTERM, which leave its ranks alone. The token is exchanged once for a credential that stays
    in the home; started again, the agent needs no token.
    """
    from phalanx.client import home_folder
    from phalanx.client.address import checked_url
    from phalanx.show.cli.text import note

    folder, address = home_folder(home), ",".join(checked_url("URL", one) for one in url.split(","))
    tools = tools_of(context)
    if isolation is not None:
        tools.isolate(folder, isolation)
    node = tools.join(folder, address, token_file, name)
    note(f"This is node {node} of {address}. Ctrl-C stops the agent and leaves its ranks alone; the same command goes on.")
    leave(tools.serve_node(folder, cpu_slots))


def revoke(node: NodeArgument, home: HomeOption = None) -> None:
    """Shut a node out that joined.

    Its credential opens nothing any more and its connection ends; ranks that run there are left alone, so drain it first. A new
    token lets a node of that name join again.
    """
    from phalanx.client import connect
    from phalanx.show.cli.text import note

    with connect(home) as client:
        client.revoke_node(node)
    note(f"{node} is shut out; `phalanx agent token` lets a node of that name join again.")


def _new_file(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    except FileExistsError as error:
        raise SpecError("--out", str(path), "is there already; name a new file") from error
    except OSError as error:
        raise SpecError("--out", str(path), f"cannot be written ({error.strerror}); name another file") from error


def _show(view: "JoinTokenView", output: Output) -> None:
    from phalanx.core import wire
    from phalanx.core.views import JoinTokenView
    from phalanx.show.cli.output import emit_plain

    if output is Output.TABLE:
        sys.stdout.write(f"{view.token}\n")
        sys.stdout.flush()
    else:
        emit_plain(output, wire.plain(JoinTokenView, view))


def _show_file(path: Path, view: "JoinTokenView", output: Output) -> None:
    from phalanx.show.cli.output import emit_plain

    if output is not Output.TABLE:
        emit_plain(output, {"file": str(path), "expires_ms": view.expires_ms})
