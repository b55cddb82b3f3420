"""data audit."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.core.errors import DataError, Exit, NotFound
from phalanx.show.cli.completing import job_ids
from phalanx.show.cli.options import HomeOption, Output, OutputOption, leave, tools_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from phalanx.core.data_asked import AuditAsked
    from phalanx.core.data_audit import DataAudit, Reached
    from phalanx.core.views import JobView


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

    asked = _asked(place, contents, home)
    with stages() as progress:
        found = tools_of(context).audit_data(asked, progress)
    emit(output, DataAudit, found, lambda: audit_page(found))
    if not found.complete or found.damaged:
        leave(Exit.FAILED)


def _asked(place: str, contents: bool, home: Path | None) -> "AuditAsked":
    """A folder that is there is itself, what has a '/' is meant as one; any other word is a job, on the machine where it ran."""
    from phalanx.core.data_asked import AuditAsked

    if "/" in place or Path(place).is_dir():
        if not (folder := Path(place).expanduser()).exists():
            raise NotFound("folder", place, "is not there; name the folder of a job, or the job")
        return AuditAsked(folder=folder, contents=contents)
    from phalanx.client import connect

    with connect(home) as client:
        job = client.job(place)
        saves = job.checkpoints_at
        folder = Path(client.status().home) / "jobs" / job.id if "://" in saves or not saves else Path(saves).parent
    if not folder.is_dir():
        if job.progress is None:
            raise DataError("deliveries", job.id, _why_none(job))
        raise NotFound("folder", str(folder), f"is where {job.id} recorded, and is not on this machine; run this where it is")
    return AuditAsked(
        folder=folder, contents=contents, checkpoints=saves, reached=_reached(job), heard=_heard(job), none=_why_none(job)
    )


def _why_none(job: "JobView") -> str:
    """Why a job may have recorded nothing; '' where its record does not say."""
    if not job.spec.get("recipe"):
        return f"{job.id} runs a script, which records only what it gives a DeliveryLog"
    if (job.spec.get("data") or {}).get("record") is False:
        return f"the `data` of {job.id} says `record: false`; leave that out of a job that is to be audited"
    if job.progress is not None:
        return ""
    if job.outcome is not None:
        ended = "was cancelled" if job.outcome == "cancelled" else job.outcome
        return f"{job.id} {ended} before its first step; see `phalanx why {job.id}`"
    return f"{job.id} has not made a step yet; wait for its first one"


def _reached(job: "JobView") -> "tuple[Reached, ...]":
    """By the job's record. A job that was ended before its time has come as far as its newest checkpoint, and nobody knows more."""
    from phalanx.core.data_audit import Reached

    if job.outcome != "succeeded":
        return (Reached(by=f"{job.id} has {'not ended' if job.outcome is None else 'not succeeded'}"),)
    step = job.progress.step if job.progress and job.spec.get("recipe") else 0  # a script counts its steps as it likes
    return (Reached(by=f"{job.id} ended with", steps=step),) if step else ()


def _heard(job: "JobView") -> "tuple[Reached, ...]":
    from phalanx.core.data_audit import Reached
    from phalanx.core.ids import split_attempt

    saved = [(split_attempt(one.attempt)[1], one.step) for one in job.checkpoints] if job.spec.get("recipe") else []
    attempt, step = max(saved, default=(0, 0))
    return (Reached(by="the newest checkpoint is of", steps=step, attempt=attempt),) if saved else ()


def audit_page(found: "DataAudit") -> "Iterator[RenderableType]":
    """The verdict, then what was read by whom."""
    from phalanx.show.cli.grid import Grid
    from phalanx.show.cli.output import line, pairs

    yield line(f"{_verdict(found)}: {found.says}", style="green" if found.complete and not found.damaged else "red")
    facts = [("Steps", f"1 to {found.steps}" if found.steps else "none"), ("Samples", found.samples), ("Contents", found.contents)]
    facts += [("End", found.end)] if found.end else []
    facts += (
        [("Not recorded", f"{found.lost} batch{'es' if found.lost != 1 else ''} that a disk did not take")] if found.lost else []
    )
    yield pairs(
        [*facts, ("Set aside", f"{found.set_aside} damaged block{'s' if found.set_aside != 1 else ''}")]
        if found.set_aside
        else facts
    )
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


def _verdict(found: "DataAudit") -> str:
    """Where nobody knows how far the run came, it is one on the steps that are recorded."""
    if not found.complete:
        return "NOT COMPLETE"
    whole = "Complete" if found.ended or not found.steps else f"Complete up to step {found.steps}"
    return f"{whole} in its order, and the data is damaged" if found.damaged else whole
