"""`phalanx profile`: what a job's traces say, of a running one also traces that are asked for now."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from phalanx.show.cli.artifacts import AttemptOption
from phalanx.show.cli.options import EXIT_CODES, HomeOption, JobArgument, Output, OutputOption

if TYPE_CHECKING:
    from rich.console import RenderableType

    from phalanx.core.profile import BubbleView, ProfileView, RankProfile

RANKS_SHOWN: Final = 16
NAME_CHARS: Final = 72


def add(app: typer.Typer) -> None:
    """Add this subject's command."""
    app.command("profile", epilog=EXIT_CODES)(profile)


def profile(
    job: JobArgument,
    attempt: AttemptOption = None,
    first: Annotated[
        int, typer.Option(help="Of several traces the one that begins with this step.", min=0, show_default="the last")
    ] = 0,
    steps: Annotated[
        int | None,
        typer.Option(help="Ask the running job to trace so many of its next steps.", show_default="none, show what there is"),
    ] = None,
    rank: Annotated[
        list[int] | None, typer.Option(help="With --steps: only on this rank; may be given several times.", show_default="all")
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="With --steps: return at once, and wait for no trace.")] = False,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say what the traces of a job's ranks show: exposed communication, waits for data, bubble, MFU.

    With --steps a running job is asked for some now: its ranks go on training, and all begin with the same step. A job asks for
    traces in its file too: profile: {first: 100, count: 3}. `artifacts get` fetches one for Perfetto.
    """
    from phalanx.client import connect
    from phalanx.core.profile import ProfileView
    from phalanx.core.trace_request import TraceRequestView
    from phalanx.show.cli.output import emit, line
    from phalanx.show.cli.profile_asked import asked_text, awaited, check_options, later

    check_options(steps, rank or (), no_wait, attempt, first)
    named = str(attempt) if attempt else ""
    with connect(home) as client:
        if steps is not None:
            asked = client.request_traces(job, steps, rank or ())
            if no_wait:
                emit(output, TraceRequestView, asked, lambda: [line(f"{asked_text(asked)} `{later(asked)}` shows them then.")])
                return
            asked = awaited(client, asked)
            named, first = asked.attempt, asked.first
        view = client.profile(job, named, first)
    emit(output, ProfileView, view, lambda: profile_page(view))


def profile_page(view: "ProfileView") -> "Iterator[RenderableType]":
    """A line for each rank, those that wait most for others first where there are many; and what took most of the time."""
    from phalanx.core.units import count_of
    from phalanx.show.cli.grid import Grid
    from phalanx.show.cli.output import line

    steps = f"step {view.first}" if view.first == view.last else f"steps {view.first} to {view.last}"
    yield line(f"{view.attempt}, {steps} of {count_of(len(view.ranks), 'rank')}; milliseconds a step, and shares of it")
    shown = sorted(view.ranks, key=lambda one: -one.exposed_communication_ms)[:RANKS_SHOWN]
    rows = [_row(one) for one in sorted(shown, key=lambda one: one.rank)]
    if len(view.ranks) > 1:
        rows.append(_row(view.whole))
    head = ("RANK", "STEP", "DATA WAIT", "COMM.", "EXPOSED", "OPTIMIZER", "CHECKPOINT", "COPY", "BUBBLE", "MFU")
    yield Grid(head, rows, right=head[1:], drop=("COPY", "CHECKPOINT", "OPTIMIZER"))
    if len(view.ranks) > len(shown):
        yield line(f"Shown are the {len(shown)} ranks of most exposed communication; -o json has all.")
    if view.bubble is not None:
        yield line(_bubble(view.bubble))
    busy = [(f"{one.share:.1%}", f"{one.total_ms:,.2f}", f"{one.calls:,}", one.name[:NAME_CHARS]) for one in view.busiest]
    if busy:
        kind = "KERNEL" if view.on_gpu else "OPERATOR"
        yield line("")
        yield Grid(("SHARE", "MS", "CALLS", kind), busy, right=("SHARE", "MS", "CALLS"), cut=kind)
    yield from map(line, _notes(view))


def _row(one: "RankProfile") -> tuple[str, ...]:
    times = (
        one.data_wait_ms, one.communication_ms, one.exposed_communication_ms, one.optimizer_ms, one.checkpoint_ms, one.copy_ms,
        one.bubble_ms,
    )  # fmt: skip
    name = "all" if one.rank < 0 else str(one.rank)
    return (name, f"{one.wall_ms:,.2f}", *(_part(time, one.wall_ms) for time in times), f"{one.mfu:.1%}" if one.mfu > 0 else "-")


def _part(time_ms: float, of_ms: float) -> str:
    if time_ms <= 0:
        return "-"
    return f"{time_ms:,.2f} {time_ms / of_ms:6.1%}" if of_ms > 0 else f"{time_ms:,.2f}"


def _bubble(found: "BubbleView") -> str:
    formula = "no formula for passes like these" if found.formula_ms is None else f"{found.formula_ms:,.2f} ms by its formula"
    return (
        f"Bubble of {found.schedule} over {found.num_ranks} ranks, {found.num_microbatches} microbatches: "
        f"{found.measured_ms:,.2f} ms; {formula}"
    )


def _notes(view: "ProfileView") -> Iterator[str]:
    if view.unread:
        yield f"The summary of rank {', '.join(map(str, view.unread[:8]))} cannot be read; it is left out."
    if view.others:
        several = ", ".join(f"{first} to {last}" for first, last in view.others[:8])
        yield f"Also traced: steps {several} (--first)."
    if view.ranks:
        yield f"phalanx artifacts get {view.job} {view.ranks[0].trace}   # for https://ui.perfetto.dev"
