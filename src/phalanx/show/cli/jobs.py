"""submit, follow, ls, describe, wait."""

import secrets
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from phalanx.core.errors import Exit, ServerUnreachable, SpecError
from phalanx.show.cli.clusters import ClustersOption, client_of, offers
from phalanx.show.cli.options import EXIT_CODES, HomeOption, JobArgument, Output, OutputOption, leave, tools_of

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.core.spec import JobSpec
    from phalanx.core.views import JobView

STATES: Final = ("pending", "starting", "running", "stopping", "paused", "finished", "succeeded", "failed", "cancelled")
"""As the list shows them; finished are the last three together."""


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    for command in (submit, follow, ls, describe, wait):
        app.command(command.__name__, epilog=EXIT_CODES)(command)


def submit(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The job spec, in YAML: see docs/job-spec.md.")],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a field, e.g. hyperparameters.steps=50; VALUE is read as YAML. Repeatable."
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Use this name instead of the file's.", show_default=False)] = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Watch it until it ends; the exit code is the job's outcome.")
    ] = False,
    clusters: ClustersOption = None,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Submit a job.

    With --clusters to the one of them that runs it at the least cost; what each would make of it is shown first.

    With --follow the exit code is the job's outcome, or 5 when it was paused; Ctrl-C stops watching (exit code 130) and never
    cancels the job.
    """
    from phalanx.core.views import JobView
    from phalanx.show.cli.data_ahead import look_ahead
    from phalanx.show.cli.follow import follow_job
    from phalanx.show.cli.job_page import submitted_page
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.overrides import spec_from

    spec = spec_from(file, [*(changes or ()), *([f"name={name}"] if name else ())], Path.cwd())
    look_ahead(tools_of(context), spec)
    pack = tools_of(context).pack_workdir(Path(spec.workdir)) if spec.workdir else None
    platform, phalanx = _platform_for(context, spec, clusters, home, output)
    with platform as client:
        job = _submitted(client, spec, pack, phalanx)
        if not follow or output is Output.TABLE:
            emit(output, JobView, job, lambda: submitted_page(job, follow, phalanx))
        if follow:
            code, last = follow_job(client, job, output, phalanx)
            if output is not Output.TABLE:
                emit(output, JobView, last, list)
            leave(code)


def _submitted(client: "Client", spec: "JobSpec", pack: bytes | None, phalanx: str) -> "JobView":
    """The job, or a word on whether there is one: a second `submit` would be a second job."""
    from phalanx.show.cli.text import note

    try:
        return client.submit(spec, pack, secrets.token_hex(16))
    except KeyboardInterrupt:
        note(f"Interrupted before the server answered: `{phalanx} ls` shows whether the job was submitted.")
        raise typer.Exit(int(Exit.DETACHED)) from None
    except ServerUnreachable as error:
        if error.lost:
            note(f"The job may have been submitted: look at `{phalanx} ls` before you submit it again.")
        raise


def _platform_for(
    context: typer.Context, spec: "JobSpec", clusters: str | None, home: Path | None, output: Output
) -> "tuple[Client, str]":
    """The one that the job goes to, and how a person writes a command for it. Where several are asked, people see what each would
    make of the job."""
    if clusters is None:
        from phalanx.client import connect

        return connect(home), "phalanx"
    from phalanx.client.address import clusters_of, home_folder
    from phalanx.show.cli.clusters_page import clusters_page
    from phalanx.show.cli.output import show
    from phalanx.show.cli.text import note

    known = clusters_of(home)
    found = offers(tools_of(context), spec, known, clusters)
    client = client_of(found, known, clusters)
    if output is Output.TABLE:
        show(clusters_page(found))
    where = f"PHALANX_HOME={shlex.quote(str(home_folder(home)))} " if home else ""
    where += f"PHALANX_CLUSTER={found.chosen}"
    note(f"It goes to {found.chosen}: with {where} every command speaks to that one.")
    return client, f"{where} phalanx"


def follow(job: JobArgument, home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """Watch a job until it ends or is paused.

    As `submit --follow` does. The exit code is the job's outcome, or 5 when it was paused; Ctrl-C stops watching (exit code 130)
    and never cancels the job.
    """
    from phalanx.client import connect
    from phalanx.core.views import JobView
    from phalanx.show.cli.follow import follow_job
    from phalanx.show.cli.output import emit

    with connect(home) as client:
        code, last = follow_job(client, client.job(job), output)
    if output is not Output.TABLE:
        emit(output, JobView, last, list)
    leave(code)


def ls(
    queue: Annotated[str, typer.Option(help="Only this queue.", show_default=False)] = "",
    project: Annotated[str, typer.Option(help="Only this project.", show_default=False)] = "",
    state: Annotated[
        str,
        typer.Option(
            help="Only this state: pending, starting, running, stopping, paused, finished, or succeeded, failed or cancelled.",
            show_default=False,
        ),
    ] = "",
    limit: Annotated[int, typer.Option(help="At most so many, newest first.", min=1)] = 50,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List jobs, newest first."""
    from phalanx.client import connect
    from phalanx.core.views import JobView
    from phalanx.show.cli.job_page import jobs_page
    from phalanx.show.cli.output import emit

    if state and state not in STATES:
        raise SpecError("--state", state, f"write one of {', '.join(STATES)}")
    asked = {"--queue": queue, "--project": project, "--state": state}
    filters = {option: value for option, value in asked.items() if value}
    with connect(home) as client:
        jobs = client.jobs(queue, project, state, limit)
        now_ms = time.time_ns() // 1_000_000
        emit(output, tuple[JobView, ...], jobs, lambda: jobs_page(jobs, filters, client.status().devices_are, now_ms))


def describe(job: JobArgument, home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show everything about a job.

    State and why, progress, attempts with their exits, checkpoints, model and spec.
    """
    from phalanx.client import connect
    from phalanx.core.views import JobView
    from phalanx.show.cli.job_page import job_page
    from phalanx.show.cli.output import emit

    with connect(home) as client:
        view = client.job(job)
        emit(output, JobView, view, lambda: job_page(view, client.why(job).sentence, client.status().devices_are))


def wait(
    job: JobArgument,
    timeout: Annotated[str, typer.Option(help="Give up after '90s', '2h'; exit code 5.", show_default="never")] = "",
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Wait until a job has finished.

    The exit code is the job's outcome, or 5 when --timeout came first. A paused job is waited for too: it goes on once it is
    resumed. Ctrl-C stops waiting, never the job.
    """
    from phalanx.client import connect
    from phalanx.core.views import JobView
    from phalanx.show.cli.durations import asked_ms
    from phalanx.show.cli.job_page import outcome_exit, outcome_page
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.text import note

    limit_ms = asked_ms("--timeout", timeout)
    try:
        with connect(home) as client:
            view = client.wait(job, None if limit_ms is None else limit_ms / 1000)
    except KeyboardInterrupt:
        note(f"Detached; {job} goes on. Wait again with `phalanx wait {job}`, or watch it with `phalanx follow {job}`.")
        leave(Exit.DETACHED)
    emit(output, JobView, view, lambda: outcome_page(view))
    leave(outcome_exit(view))
