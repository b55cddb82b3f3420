"""up, down, status."""

from typing import Annotated

import typer

from phalanx.show.cli.options import EXIT_CODES, HomeOption, IsolationOption, LocalHomeOption, Output, OutputOption, tools_of


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    app.command("up", epilog=EXIT_CODES)(up)
    app.command("down", epilog=EXIT_CODES)(down)
    app.command("status", epilog=EXIT_CODES)(status)


def up(
    context: typer.Context,
    home: LocalHomeOption = None,
    port: Annotated[
        int,
        typer.Option(help="Loopback port of the API; 0 is last time's, or a free one.", envvar="PHALANX_PORT", min=0, max=65535),
    ] = 0,
    cpu_slots: Annotated[
        int | None, typer.Option(help="Offer this many CPU slots instead of the devices found.", min=1, max=1024)
    ] = None,
    store: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Keep blobs there from now on: a folder, s3://bucket/prefix, gs:// or az://.  [default: last time's, else "
            "$PHALANX_STORE, else the home]",
            show_default=False,
        ),
    ] = "",
    database: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Keep decisions in this PostgreSQL database: postgresql://user@host/name; its password comes from "
            "$PHALANX_DATABASE or ~/.pgpass.  [default: last time's, else $PHALANX_DATABASE, else SQLite in the home]",
            show_default=False,
        ),
    ] = "",
    standby: Annotated[
        bool, typer.Option("--standby", help="Start a server that waits, and leads once the one that does is gone or hangs.")
    ] = False,
    isolation: IsolationOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start the platform on this machine.

    That is the server, its scheduler and tracking processes, and this machine's agent. Safe to repeat: what runs is left alone.
    """
    from phalanx.client import connect, home_folder
    from phalanx.show.cli.text import note

    folder = home_folder(home)
    if isolation is not None:
        tools_of(context).isolate(folder, isolation)
    fresh = tools_of(context).up(folder, port, cpu_slots, store, database, standby)
    if standby:
        note(f"A standby {'waits' if fresh else 'waited already'} in {folder}; what it says is in its run/server.log.")
        return
    note("Phalanx is up." if fresh else "Phalanx was up already.")
    with connect(folder) as client:
        _show_status(client.status(), output)


def down(
    context: typer.Context,
    home: LocalHomeOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also when jobs hold devices: their ranks are stopped, on joined nodes too.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Stop the platform on this machine. Jobs, models and the ledger stay in the home."""
    from phalanx.client import home_folder
    from phalanx.core.views import DownView
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.text import note

    folder = home_folder(home)
    view = tools_of(context).down(folder, force)
    note(f"Phalanx is down; its home stays at {folder}." if view.stopped else f"Nothing was running in {folder}.")
    if view.left is None:
        note("The server did not answer, so ranks on joined nodes, if any, run on: `phalanx up`, then `phalanx down --force`.")
    elif view.left:
        note(f"Ranks may still run on {', '.join(view.left)}: `phalanx down --force` there, with the home of its agent, ends them.")
    if output is not Output.TABLE:
        emit(output, DownView, view, lambda: ())


def status(home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show the platform at a glance."""
    from phalanx.client import connect

    with connect(home) as client:
        _show_status(client.status(), output)


def _show_status(view: object, output: Output) -> None:
    from phalanx.core.views import StatusView
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.pages import status_page

    assert isinstance(view, StatusView)
    emit(output, StatusView, view, lambda: status_page(view))
