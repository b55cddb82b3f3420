"""runs ls, show, compare: what tracked runs were configured with, and what they came to."""

from typing import Annotated

import typer

from phalanx.core.errors import SpecError
from phalanx.show.cli.completing import job_ids
from phalanx.show.cli.options import EXIT_CODES, HomeOption, JobArgument, Output, OutputOption

RUNS_MAX = 20
"""Side by side: more are no table that anybody reads."""


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    app.command("ls", epilog=EXIT_CODES)(ls)
    app.command("show", epilog=EXIT_CODES)(show)
    app.command("compare", epilog=EXIT_CODES)(compare)


def ls(
    project: Annotated[str, typer.Option(help="Only runs of this project.")] = "",
    limit: Annotated[int, typer.Option(help="How many, the newest first.", min=1)] = 100,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List tracked runs, newest first: of each job that has begun, over all its attempts."""
    from phalanx.client import connect
    from phalanx.core.use_views import RunView
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.runs_page import runs_page

    with connect(home) as client:
        found = client.runs(project, limit)
    emit(output, tuple[RunView, ...], found, lambda: runs_page(found, project))


def show(job: JobArgument, home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show one run: its hyperparameters, where it stands, and the model that it registered.

    `phalanx curves` draws what it measured.
    """
    from phalanx.client import connect
    from phalanx.core.use_views import RunView
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.runs_page import run_page

    with connect(home) as client:
        found = client.run(job)
    emit(output, RunView, found, lambda: run_page(found))


def compare(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB JOB ...", help="Jobs' ids, such as tiny-lm-7.", autocompletion=job_ids)],
    every: Annotated[bool, typer.Option("--all", help="Also hyperparameters that are the same in all.")] = False,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show runs side by side: the hyperparameters in which they differ, and what each came to."""
    from phalanx.client import connect
    from phalanx.core.use_views import RunView
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.runs_page import compared_page

    asked = list(dict.fromkeys(jobs))
    if not 2 <= len(asked) <= RUNS_MAX:
        raise SpecError("JOB", " ".join(asked), f"name 2 to {RUNS_MAX} different runs")
    with connect(home) as client:
        found = tuple(client.run(job) for job in asked)
    emit(output, tuple[RunView, ...], found, lambda: compared_page(found, every))
