"""queue ls."""

import typer

from phalanx.show.cli.options import EXIT_CODES, HomeOption, Output, OutputOption


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    app.callback()(_several)
    app.command("ls", epilog=EXIT_CODES)(ls)


def _several() -> None:
    """Without a callback, Typer would take the one command's name away."""


def ls(home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """List queues, each with those below it.

    Jobs that run and wait, devices held, guaranteed (quota) and at most (limit), what of the held is borrowed, device-hours used
    (older ones count less), and what of its budget is spent.
    """
    from phalanx.client import connect
    from phalanx.core.views import QueueView
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.queue_page import queues_page

    with connect(home) as client:
        queues = client.queues()
    emit(output, tuple[QueueView, ...], queues, lambda: queues_page(queues))
