"""checkpoint ls, checkpoint verify."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.core.errors import Exit
from phalanx.show.cli.completing import job_ids
from phalanx.show.cli.options import EXIT_CODES, HomeOption, Output, OutputOption, leave, tools_of

if TYPE_CHECKING:
    from phalanx.core.checkpoints import StoredCheckpoint

PlaceArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB|PATH",
        help="A job's id, such as tiny-lm-7, or a folder or URL: of checkpoints, or of one.",
        autocompletion=job_ids,
    ),
]


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    app.command("ls", epilog=EXIT_CODES)(ls)
    app.command("verify", epilog=EXIT_CODES)(verify)


def ls(context: typer.Context, place: PlaceArgument, home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the checkpoints of a job, newest first: in a folder of this machine, or in an object store.

    Manifest, indexes and sizes are checked; `verify` reads the rest. Credentials of a store come from the environment.
    """
    from phalanx.show.cli.checkpoint_page import place_of

    _show(tools_of(context).list_checkpoints(place_of(place, home)), output)


def verify(context: typer.Context, place: PlaceArgument, home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """Read every byte of checkpoints, in a folder of this machine or an object store, and compare it with its hash.

    Exit code 1 names the damaged file and part. A folder that was never committed is shown, and is no damage.
    """
    from phalanx.show.cli.checkpoint_page import damaged, place_of
    from phalanx.show.cli.stages import stages

    where = place_of(place, home)
    with stages() as progress:
        found = tools_of(context).verify_checkpoints(where, progress)
    _show(found, output)
    if damaged(found):
        leave(Exit.FAILED)


def _show(found: "Sequence[StoredCheckpoint]", output: Output) -> None:
    from phalanx.core.checkpoints import StoredCheckpoint
    from phalanx.show.cli.checkpoint_page import checkpoints_page
    from phalanx.show.cli.output import emit

    emit(output, tuple[StoredCheckpoint, ...], tuple(found), lambda: checkpoints_page(found))
