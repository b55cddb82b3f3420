"""data audit."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.core.errors import Exit, NotFound
from phalanx.show.cli.completing import job_ids
from phalanx.show.cli.options import HomeOption, Output, OutputOption, leave, tools_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from phalanx.core.data_audit import DataAudit


def audit(
    context: typer.Context,
    place: Annotated[
        str,
        typer.Argument(metavar="JOB|PATH", help="A job's id, or a folder that its deliveries lie in.", autocompletion=job_ids),
    ],
    contents: Annotated[
        bool, typer.Option("--contents/--no-contents", help="Read every sample again that was delivered, and compare it.")
    ] = True,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Prove that a run was given each sample exactly once an epoch, or name where it was not.

    By what its ranks recorded of each batch, over restarts, resizes and rollbacks. Exit code 1 says that something is missing,
    twice, or other than it should be.
    """
    from phalanx.core.data_audit import DataAudit
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.stages import stages

    folder = _folder_of(place, home)
    with stages() as progress:
        found = tools_of(context).audit_data(folder, contents, progress)
    emit(output, DataAudit, found, lambda: audit_page(found))
    if not found.complete:
        leave(Exit.FAILED)


def _folder_of(place: str, home: Path | None) -> Path:
    """A folder that is there is itself, what has a '/' is meant as one; any other word is a job, on the machine where it ran."""
    if "/" in place or Path(place).is_dir():
        return Path(place).expanduser()
    from phalanx.client import connect

    with connect(home) as client:
        job = client.job(place)
        saves = job.checkpoints_at
        folder = Path(client.status().home) / "jobs" / job.id if "://" in saves or not saves else Path(saves).parent
    if not folder.is_dir():
        raise NotFound("folder", str(folder), f"is where {job.id} recorded, and is not on this machine; run this where it is")
    return folder


def audit_page(found: "DataAudit") -> "Iterator[RenderableType]":
    """The verdict, then what was read by whom."""
    from phalanx.show.cli.grid import Grid
    from phalanx.show.cli.output import line, pairs

    yield line(f"{'Complete' if found.complete else 'NOT COMPLETE'}: {found.says}", style="green" if found.complete else "red")
    facts = [("Steps", f"1 to {found.steps}" if found.steps else "none"), ("Samples", found.samples), ("Contents", found.contents)]
    yield pairs([*facts, ("Set aside", f"{found.set_aside} damaged blocks")] if found.set_aside else facts)
    rows = [(one.name, one.samples, one.epochs, one.rest, one.replaced) for one in found.sources]
    head = ("SOURCE", "SAMPLES", "WHOLE EPOCHS", "OF THE NEXT", "REPLACED")
    yield Grid(head, rows, right=head[1:], drop=("REPLACED",))
    legs = [
        (
            leg.attempt, leg.generation, leg.world_size, f"{leg.first_step} to {leg.last_step}" if leg.last_step else "-",
            leg.superseded or "-",
        )
        for leg in found.legs
    ]  # fmt: skip
    names = ("ATTEMPT", "GENERATION", "RANKS", "STEPS", "MADE AGAIN")
    yield Grid(names, legs, right=("ATTEMPT", "GENERATION", "RANKS", "MADE AGAIN"), drop=("GENERATION",))
