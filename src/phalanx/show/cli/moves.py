"""cancel, pause, resume, retry: of several jobs at once."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.core.errors import Exit, UserError
from phalanx.show.cli.options import EXIT_CODES, HomeOption, JobsArgument, Output, OutputOption, leave

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.core.views import JobView


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    for command in (cancel, pause, resume, retry):
        app.command(command.__name__, epilog=EXIT_CODES)(command)


def cancel(
    jobs: JobsArgument,
    array: Annotated[bool, typer.Option("--array", help="With each all jobs of its array that have not finished.")] = False,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Stop jobs for good.

    Their ranks get SIGTERM, and SIGKILL after a grace. A job that has finished is a conflict (exit code 2).
    """
    from phalanx.show.cli.job_page import array_text, outcome_text

    _each(jobs, home, output, lambda client, job: client.cancel(job, array), array_text if array else outcome_text)


def pause(jobs: JobsArgument, home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """Take jobs off their devices until they are resumed.

    Ranks get SIGTERM, and SIGKILL after a grace; `resume` goes on from the last checkpoint. It uses up no restart. A job that is
    paused already is left alone; one that has finished is a conflict (exit code 2).
    """
    _moved(jobs, home, output, lambda client, job: client.pause(job))


def resume(jobs: JobsArgument, home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """Let paused jobs go on.

    They wait for devices again, in their old place in the line, and go on from their last checkpoint. A job that runs or waits is
    left alone; one that has finished is a conflict (exit code 2).
    """
    _moved(jobs, home, output, lambda client, job: client.resume(job))


def retry(jobs: JobsArgument, home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """Open jobs that failed or were cancelled again.

    They go on from their last checkpoint, with all their restarts before them. Any other job is a conflict (exit code 2).
    """
    _moved(jobs, home, output, lambda client, job: client.retry(job))


def _moved(jobs: Sequence[str], home: HomeOption, output: Output, act: "Callable[[Client, str], JobView]") -> None:
    from phalanx.show.cli.job_page import moved_text

    _each(jobs, home, output, act, moved_text)


def _each(
    jobs: Sequence[str],
    home: HomeOption,
    output: Output,
    act: "Callable[[Client, str], JobView]",
    text: "Callable[[JobView], str]",
) -> None:
    """One answer or one error a job, in order; the exit code is the first error's."""
    from phalanx.client import connect
    from phalanx.core.views import JobView
    from phalanx.show.cli.output import emit, line
    from phalanx.show.cli.text import error_text

    views: list[JobView] = []
    code = Exit.OK
    with connect(home) as client:
        for job in dict.fromkeys(jobs):
            try:
                views.append(act(client, job))
            except UserError as error:
                sys.stderr.write(f"Error: {error_text(error)}\n")
                code = code or error.exit_code
    emit(output, tuple[JobView, ...], tuple(views), lambda: [line(text(view)) for view in views])
    leave(code)
