"""webhook ls, redeliver, history: what receivers have not accepted yet, and what became of the rest."""

import time
from typing import Annotated

import typer

from phalanx.show.cli.options import EXIT_CODES, HomeOption, Output, OutputOption


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    app.command("ls", epilog=EXIT_CODES)(ls)
    app.command("redeliver", epilog=EXIT_CODES)(redeliver)
    app.command("history", epilog=EXIT_CODES)(history)


def ls(home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """List deliveries that no receiver has accepted yet, oldest first.

    Each is tried again, ever more rarely, for a day. `phalanx webhook history` lists what was accepted or given up.
    """
    from phalanx.client import connect
    from phalanx.core.use_views import DeliveryView
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.webhook_page import deliveries_page

    with connect(home) as client:
        found = client.deliveries()
    now_ms = time.time_ns() // 1_000_000
    emit(output, tuple[DeliveryView, ...], found, lambda: deliveries_page(found, now_ms))


def redeliver(
    delivery: Annotated[int, typer.Argument(help="Its number, of `phalanx webhook ls`.", min=1, show_default=False)],
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send a delivery again now, and what waits for the same receiver."""
    from phalanx.client import connect
    from phalanx.core.use_views import DeliveryView
    from phalanx.show.cli.output import emit, line

    with connect(home) as client:
        view = client.redeliver(delivery)
    emit(output, DeliveryView, view, lambda: [line(f"What {view.job} has to tell {view.host} is sent again now.")])


def history(
    limit: Annotated[int, typer.Option(help="How many, the newest first.", min=1)] = 100,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List deliveries that were accepted or given up, newest first. Of each webhook the last 100 are kept."""
    from phalanx.client import connect
    from phalanx.core.use_views import EndedDeliveryView
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.webhook_page import history_page

    with connect(home) as client:
        found = client.ended_deliveries(limit)
    emit(output, tuple[EndedDeliveryView, ...], found, lambda: history_page(found))
