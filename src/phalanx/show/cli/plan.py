"""why, plan."""

from pathlib import Path
from typing import Annotated

import typer

from phalanx.core.errors import SetupError
from phalanx.show.cli.clusters import ClustersOption, offers
from phalanx.show.cli.options import EXIT_CODES, HomeOption, JobArgument, Output, OutputOption, tools_of
from phalanx.show.cli.text import note


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    for command in (why, plan):
        app.command(command.__name__, epilog=EXIT_CODES)(command)


def why(
    job: JobArgument,
    changes: Annotated[
        bool, typer.Option("--changes/--no-changes", help="Of a waiting job also its expected start, and what would start it now.")
    ] = True,
    save_snapshot: Annotated[
        Path | None,
        typer.Option(
            "--save-snapshot", metavar="FILE", help="Also save what was decided from, for `phalanx sim replay`.", show_default=False
        ),
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say in one sentence why a job is where it is.

    Of a job that waits also when it is expected to start, and the smallest changes that would start it now.
    """
    from phalanx.client import connect
    from phalanx.core.views import WhyView
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.plan_page import why_page
    from phalanx.show.cli.ranklog import log_command

    with connect(home) as client:
        view = client.why(job, changes)
        if save_snapshot is not None:
            _save(save_snapshot, client.snapshot())
        emit(output, WhyView, view, lambda: why_page(view, log_command(client.job(job))))


def plan(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The job spec, in YAML: see docs/job-spec.md.")],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field, e.g. num_nodes=2; VALUE is read as YAML. Repeatable."),
    ] = None,
    clusters: ClustersOption = None,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say what would happen to a job if it were submitted now. Nothing is submitted.

    Where it would start, what it costs, what its queue would hold; or why it would wait, until when, and what would start it now.
    With --clusters what each cluster would make of it, and which one `submit --clusters` would choose.
    """
    from phalanx.client import connect
    from phalanx.core.views import PlanView
    from phalanx.show.cli.data_ahead import look_ahead
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.overrides import spec_from
    from phalanx.show.cli.plan_page import plan_page

    spec = spec_from(file, changes or (), Path.cwd())
    look_ahead(tools_of(context), spec)
    if clusters is not None:  # an empty one, as of a variable that is not set, must not mean this platform
        from phalanx.client.address import clusters_of
        from phalanx.core.clusters import DispatchView
        from phalanx.show.cli.clusters_page import clusters_page

        found = offers(tools_of(context), spec, clusters_of(home), clusters)
        emit(output, DispatchView, found, lambda: clusters_page(found, " Nothing was submitted."))
        return
    with connect(home) as client:
        view = client.plan(spec)
    emit(output, PlanView, view, lambda: plan_page(spec.name, view))


def _save(file: Path, text: bytes) -> None:
    """Raises SetupError. What stands there is replaced."""
    try:
        file.write_bytes(text)
    except OSError as error:
        raise SetupError("--save-snapshot", str(file), f"cannot be written ({error.strerror}); name another file") from error
    note(f"Saved in {file} what the newest decision was made from, for `phalanx sim replay {file} --policy OTHER`.")
