"""chaos: a fault in a running job that allows them."""

from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from phalanx.core.chaos import KINDS
from phalanx.core.errors import SpecError
from phalanx.show.cli.completing import job_ids
from phalanx.show.cli.options import EXIT_CODES, HomeOption, Output, OutputOption

if TYPE_CHECKING:
    from phalanx.core.chaos import FaultKind, FlipOf
    from phalanx.core.views import JobView

FLIPS: Final = ("weights", "gradient")


def add(app: typer.Typer) -> None:
    """Add this subject's command."""
    app.command("chaos", epilog=EXIT_CODES)(chaos)


def chaos(
    fault: Annotated[str, typer.Argument(metavar="FAULT", help=f"One of {', '.join(KINDS)}.", show_default=False)],
    job: Annotated[
        str, typer.Option("--job", "-j", metavar="JOB", help="In this job.", show_default=False, autocompletion=job_ids)
    ],
    rank: Annotated[
        int | None,
        typer.Option(
            help="Which rank meets it, or says when; of fill-disk and drop-store each rank's keeper if none is named.",
            show_default="0",
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="Right after this step, which must be still to come.", show_default="the next")
    ] = None,
    duration: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="DURATION",
            help="How long it lasts, or a killed agent stays away, e.g. 30s. See docs/chaos.md.",
            show_default=False,
        ),
    ] = "",
    slow_ms: Annotated[
        int | None, typer.Option("--slow-ms", help="Of slow-rank: by how much each forward pass takes longer.", show_default="100")
    ] = None,
    flip: Annotated[str, typer.Option(help="Of flip-bit: weights or gradient.", show_default="weights")] = "",
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Plan a fault in a running job.

    Only in a job whose file says `chaos: true`. One of its ranks meets it at the step that was named, once, whoever is killed and
    started again meanwhile; `phalanx events JOB` tells when. A step that has passed and a rank that does not exist are refused.
    """
    from phalanx.client import connect
    from phalanx.core.views import JobView
    from phalanx.show.cli.durations import asked_ms
    from phalanx.show.cli.output import emit, line

    kind, flip_of = _checked(fault, flip)
    with connect(home) as client:
        view = client.chaos(job, kind, rank=rank, step=step, for_ms=asked_ms("--for", duration), slow_ms=slow_ms, flip=flip_of)
    emit(output, JobView, view, lambda: [line(planned_text(view))])


def _checked(fault: str, flip: str) -> "tuple[FaultKind, FlipOf | None]":
    """Raises SpecError."""
    if fault not in KINDS:
        raise SpecError("fault", fault, f"write one of {', '.join(KINDS)}")
    if flip and flip not in FLIPS:
        raise SpecError("--flip", flip, "write weights or gradient")
    return fault, cast("FlipOf | None", flip or None)


def planned_text(view: "JobView") -> str:
    """'Fault 3 of tiny-lm-7.1 is planned: kill-rank of rank 1 at step 40.'"""
    attempt = view.attempts[-1]
    newest = attempt.faults[-1]
    return f"Fault {newest.number} of {attempt.attempt} is planned: {newest.sentence}. `phalanx events {view.id} -f` shows it."
