"""queue ls, queue part."""

from collections.abc import Mapping
from typing import Annotated

import typer

from phalanx.core.errors import SpecError
from phalanx.show.cli.options import EXIT_CODES, HomeOption, Output, OutputOption


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    app.command("ls", epilog=EXIT_CODES)(ls)
    app.command("part", epilog=EXIT_CODES)(part)


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


def part(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="A queue of the policy.", show_default=False)],
    weight: Annotated[float | None, typer.Option(help="Of its share among those beside it.", min=0.0)] = None,
    quota: Annotated[
        str | None, typer.Option(metavar="TYPE:N,...", help="Devices guaranteed, in place of all that were; '' is none.")
    ] = None,
    limit: Annotated[str | None, typer.Option(metavar="TYPE:N,...", help="Devices at most, likewise.")] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change one queue's weight, quota or limit, from the next decision on.

    Admins of a team part among its queues what its highest queue is guaranteed; platform admins change any.
    """
    from phalanx.client import connect
    from phalanx.core.views import PolicyView
    from phalanx.show.cli.output import emit, line

    if weight is None and quota is None and limit is None:
        raise SpecError("queue part", queue, "give --weight, --quota or --limit")
    guaranteed, most = _devices("--quota", quota), _devices("--limit", limit)
    with connect(home) as client:
        view = client.part_queue(queue, weight=weight, quota=guaranteed, limit=most)
    emit(output, PolicyView, view, lambda: [line(f"Queue {queue} has its new share from the next decision on.")])


def _devices(option: str, text: str | None) -> Mapping[str, int] | None:
    """'H100:8,A100:4' by type; None where it is not given. Raises SpecError."""
    if text is None:
        return None
    found: dict[str, int] = {}
    for one in filter(None, (piece.strip() for piece in text.split(","))):
        kind, _, count = one.rpartition(":")
        if not kind or not count.isascii() or not count.isdecimal() or len(count) > 9 or kind in found:
            raise SpecError(option, one, "write each type once with its number, such as H100:8,A100:4")
        found[kind] = int(count)
    return found
