"""fabric test, fabric show."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from phalanx.core.errors import DataError, Exit, NotFound, ServerUnreachable, SpecError
from phalanx.show.cli.completing import job_ids
from phalanx.show.cli.options import EXIT_CODES, HomeOption, Output, OutputOption, leave, tools_of

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.core.fabric_test import FabricAsked, FabricReport
    from phalanx.core.spec import JobSpec
    from phalanx.core.views import JobView

FOLDER: Final = "fabric"
"""Of the home: reports by the name of their job."""
HERE: Final = "here"
POLL_S: Final = 1.0
ARTIFACT_S: Final = 30.0
"""What a rank left reaches the control plane within seconds."""
QUEUE: Final = "default"
OPTIONS: Final = {"collectives": "--collectives", "sizes": "--sizes", "seconds": "--seconds", "num_ranks": "--gpus"}
"""By the fields that they give."""
UNFINISHED: Final = Exit.TIMEOUT
TEST_EXIT_CODES: Final = (
    "Exit codes: 0 fine, and nothing is slow; 1 something is slower than others of its kind; 2 bad input or a conflict; "
    "3 the server cannot be reached; 4 no such thing; 5 the test did not finish: its job failed, was cancelled or is paused; "
    "70 a bug in Phalanx; 130 detached by Ctrl-C."
)


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    app.command("test", epilog=TEST_EXIT_CODES)(test)
    app.command("show", epilog=EXIT_CODES)(show)


def test(
    context: typer.Context,
    nodes: Annotated[
        int | None, typer.Option("--nodes", help="So many nodes.", min=1, show_default="all that are up and have the GPUs")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(help="Of each node, as in a job: 8, H100:8.", show_default="all of the kind that there is most of")
    ] = None,
    here: Annotated[bool, typer.Option("--here", help="On this machine alone, without a platform.")] = False,
    sizes: Annotated[
        str | None, typer.Option(help="Of messages: 8KiB,1MiB,64MiB.", show_default="8KiB to 512MiB, without GPUs 4KiB to 8MiB")
    ] = None,
    collectives: Annotated[
        str | None, typer.Option(help="Which to measure.", show_default="all_reduce,all_gather,reduce_scatter,all_to_all")
    ] = None,
    seconds: Annotated[float, typer.Option(help="For each collective, size and tier.")] = 0.3,
    pairs: Annotated[bool, typer.Option("--pairs/--no-pairs", help="Measure pairs of ranks, by which slow ones are named.")] = True,
    queue: Annotated[str | None, typer.Option(help="The job's queue.", show_default=QUEUE)] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Measure what the links between GPUs carry, and name those that are slow.

    A gang with a rank on each GPU times all-reduce, all-gather, reduce-scatter and all-to-all inside nodes, between them and over
    all, and pairs of ranks. Exit code 1 says that something is slower than others of its kind, 5 that the test did not finish. It
    waits in its queue as any job does; Ctrl-C detaches.
    """
    from phalanx.show.cli.fabric_page import emit_report

    asked = _asked(sizes, collectives, seconds, pairs)
    if here and queue is not None:
        raise SpecError("--queue", queue, "with --here there is no job that could wait in it; leave one of the two out")
    if gpus is not None and not gpus.strip():
        raise SpecError("--gpus", gpus, "write a number such as 8, or leave it out")
    if here:
        report = _tested_here(context, asked, nodes, gpus or "", home)
    else:
        report = _tested_by_job(asked, nodes, gpus or "", QUEUE if queue is None else queue, home)
    emit_report(output, report)
    if report.slow:
        leave(Exit.FAILED)


def show(
    place: Annotated[
        str, typer.Argument(metavar="[JOB|FILE]", help="Of which test.  [default: the newest]", autocompletion=job_ids)
    ] = "",
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what a test of the fabric measured."""
    from phalanx.show.cli.fabric_page import emit_report

    emit_report(output, _read(place, home))


def _asked(sizes: str | None, collectives: str | None, seconds: float, pairs: bool) -> "FabricAsked":
    from phalanx.core.fabric_test import COLLECTIVES, FabricAsked, checked

    chosen = COLLECTIVES if collectives is None else tuple(dict.fromkeys(_words(collectives)))
    given = () if sizes is None else tuple(sorted({_size(word) for word in _words(sizes)}))
    if sizes is not None and not given:
        raise SpecError("--sizes", sizes, "write sizes such as 8KiB,1MiB, or leave it out")
    with _as_options():
        return checked(FabricAsked(collectives=chosen, sizes=given, seconds=seconds, pairs=pairs))


@contextmanager
def _as_options() -> Iterator[None]:
    """Others name fields; here people gave options."""
    try:
        yield
    except SpecError as error:
        raise SpecError(OPTIONS.get(error.field, error.field), error.value, error.fix) from error


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _size(word: str) -> int:
    from phalanx.core.units import size_bytes

    try:
        return size_bytes(word)
    except ValueError as error:
        raise SpecError("--sizes", word, str(error)) from error


# On this machine


def _tested_here(context: typer.Context, asked: "FabricAsked", nodes: int | None, gpus: str, home: Path | None) -> "FabricReport":
    from phalanx.client.address import home_folder
    from phalanx.show.cli.counted import counted

    if nodes not in (None, 1):
        raise SpecError("--nodes", nodes, "this machine is one node; leave it out, or leave out --here")
    if gpus and not (gpus.isascii() and gpus.isdecimal()):
        raise SpecError("--gpus", gpus, "write a number of this machine's GPUs, such as 8")
    with _as_options(), counted("measurements") as told:
        return tools_of(context).test_fabric(asked, int(gpus) if gpus else None, home_folder(home) / FOLDER / f"{HERE}.json", told)


# By a job


def _tested_by_job(asked: "FabricAsked", nodes: int | None, gpus: str, queue: str, home: Path | None) -> "FabricReport":
    from phalanx.client import connect
    from phalanx.client.address import home_folder
    from phalanx.core.fabric_test import read_report
    from phalanx.show.cli.text import note

    with connect(home) as client:
        spec = _spec(client, asked, nodes, gpus, queue)
        job = client.submit(spec)
        note(f"Submitted {job.id}: {spec.num_nodes} x {spec.resources.gpus}")
        try:
            last = _watched(client, job)
        except KeyboardInterrupt:
            note(f"Detached; {job.id} goes on. See `phalanx follow {job.id}`, then `phalanx fabric show {job.id}`.")
            raise typer.Exit(int(Exit.DETACHED)) from None
        _leave_unless_succeeded(client, last)
        out = home_folder(home) / FOLDER / f"{job.id}.json"
        _fetch(client, str(job.id), out, ARTIFACT_S)
    return read_report(out.read_bytes(), str(out))


def _spec(client: "Client", asked: "FabricAsked", num_nodes: int | None, gpus: str, queue: str) -> "JobSpec":
    from phalanx.core.fabric_test import hyperparameters, placed
    from phalanx.core.policy import TIERS
    from phalanx.core.spec import JobSpec, Resources
    from phalanx.show.cli.fabric_room import room

    found, count = room(client.nodes(), gpus, num_nodes)
    sent = hyperparameters(placed(asked, client.policy().policy.get("nodes", ()), TIERS))
    return JobSpec(
        name="fabric-test", kind="batch", entrypoint=("python", "-P", "-m", "phalanx.job.train.fabric_test"), num_nodes=count,
        resources=Resources(gpus=found), queue=queue, max_restarts=0, hyperparameters=sent,
    )  # fmt: skip


def _watched(client: "Client", job: "JobView") -> "JobView":
    """The job once it has finished or is paused; how far it is is read from rank 0's log."""
    from functools import partial

    from phalanx.core.fabric_test import read_progress
    from phalanx.show.cli.counted import counted
    from phalanx.show.cli.patience import patiently
    from phalanx.show.cli.text import note

    offset, why, view = 0, None, job
    with counted("measurements") as told:
        while True:
            if view.state == "pending" and view.why and view.why != why:
                why = view.why
                note(f"{view.id} {why}")
            if view.state == "running":
                page = patiently(client, note, partial(client.logs, view.id, 0, "", offset))
                offset = page.next_offset
                for found in filter(None, map(read_progress, page.text.splitlines()[-1:])):
                    told(found[1], found[2])
            if view.state in ("finished", "paused"):
                return view
            client.rest(POLL_S)
            view = patiently(client, note, partial(client.job, view.id))


def _leave_unless_succeeded(client: "Client", last: "JobView") -> None:
    from phalanx.show.cli.job_page import outcome_exit, outcome_text
    from phalanx.show.cli.ranklog import GrowingLog, last_words
    from phalanx.show.cli.text import note

    if outcome_exit(last) != Exit.OK:
        for text in (*last_words(client, last, GrowingLog(client, last)), outcome_text(last)):
            note(text)
        leave(UNFINISHED)


def _fetch(client: "Client", job: str, out: Path, patience_s: float) -> None:
    """Raises NotFound for a job that left no report, ServerUnreachable for one whose report does not come."""
    from phalanx.core.fabric_test import REPORT

    until_s = client.now_s() + patience_s
    while True:
        try:
            client.save_artifact(client.artifact(job, REPORT), out, force=True)
            return
        except NotFound as error:
            if not patience_s:
                raise NotFound("JOB", job, "left no report; name a job of `phalanx fabric test`") from error
            if client.now_s() > until_s:
                raise ServerUnreachable(f"the report of {job} has not come; look again by `phalanx fabric show {job}`") from error
        client.rest(POLL_S)


# What was measured before


def _read(place: str, home: Path | None) -> "FabricReport":
    from phalanx.client import connect
    from phalanx.client.address import home_folder
    from phalanx.core.fabric_test import read_report

    folder = home_folder(home) / FOLDER
    if not place:
        return _newest(folder)
    if "/" in place or Path(place).is_file():
        file = Path(place).expanduser()
    else:
        file = folder / f"{place}.json"
        if not file.is_file():
            with connect(home) as client:
                _fetch(client, place, file, 0.0)
    try:
        return read_report(file.read_bytes(), str(file))
    except FileNotFoundError as error:
        raise NotFound("FILE", str(file), "is not there; name a result of `phalanx fabric test`") from error
    except OSError as error:
        raise SpecError("FILE", str(file), f"cannot be read ({error.strerror})") from error


def _newest(folder: Path) -> "FabricReport":
    """What cannot be read is left out, with a word: it may be the newest."""
    from phalanx.core.fabric_test import FabricReport, read_report
    from phalanx.show.cli.text import note

    reports = list[FabricReport]()
    for file in sorted(folder.glob("*.json")):
        try:
            reports.append(read_report(file.read_bytes(), str(file)))
        except (OSError, DataError) as error:
            note(f"Left out {file}: {error.fix if isinstance(error, DataError) else error.strerror}")
    if not reports:
        raise NotFound("FILE", str(folder), "has no result yet; run `phalanx fabric test`")
    return max(reports, key=lambda report: report.made_ms)
