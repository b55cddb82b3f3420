"""artifacts ls, artifacts get."""

from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from phalanx.show.cli.options import EXIT_CODES, HomeOption, JobArgument, Output, OutputOption

AttemptOption = Annotated[int | None, typer.Option(help="Only this attempt's, from 1.", min=1, show_default=False)]


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    app.command("ls", epilog=EXIT_CODES)(ls)
    app.command("get", epilog=EXIT_CODES)(get)


def ls(job: JobArgument, attempt: AttemptOption = None, home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the files that a job's ranks left in $PHALANX_ARTIFACTS."""
    from phalanx.client import connect
    from phalanx.core.units import show_size
    from phalanx.core.views import ArtifactView
    from phalanx.show.cli.grid import Grid
    from phalanx.show.cli.output import emit, line, moment_cell

    with connect(home) as client:
        views = client.artifacts(job, str(attempt) if attempt else "")
    rows = [(view.name, view.attempt, show_size(view.size_bytes), moment_cell(view.at_ms), view.sha256[:12]) for view in views]
    table = Grid(("NAME", "ATTEMPT", "SIZE", "SENT (UTC)", "SHA-256"), rows, right=("SIZE",), drop=("SHA-256",), cut="NAME")
    nothing = line(f"{job} has no artifacts; its ranks put files into $PHALANX_ARTIFACTS to have them kept.")
    emit(output, tuple[ArtifactView, ...], views, lambda: [table if rows else nothing])


def get(
    job: JobArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `artifacts ls` shows it.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="PATH", help="Where to write it.  [default: its last part, in this folder]")
    ] = None,
    attempt: AttemptOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is at that place.")] = False,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Fetch one artifact, of the newest attempt that has it.

    Its hash is checked, and the file is there whole or not at all.
    """
    from phalanx.client import connect
    from phalanx.core.views import ArtifactView
    from phalanx.show.cli.output import emit, line

    with connect(home) as client:
        view = client.artifact(job, name, str(attempt) if attempt else "")
        place = out if out is not None else Path(PurePosixPath(view.name).name)
        client.save_artifact(view, place, force)
    emit(output, ArtifactView, view, lambda: [line(f"Wrote {place} ({view.size_bytes} bytes, of {view.attempt}).")])
