"""`phalanx profile JOB --steps N`: asks a running job for traces, and says how they come on."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phalanx.core.errors import Conflict, Exit, PhalanxError, SpecError, WaitTimeout
from phalanx.show.cli.options import leave

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.core.trace_request import TraceRequestView

WHYS_SHOWN = 8


def check_options(steps: int | None, ranks: Sequence[int], no_wait: bool, attempt: int | None, first: int) -> None:
    """Raises SpecError for what is of the other use of the command."""
    if steps is None:
        fix = "is of traces that a running job is asked for: name also --steps"
        if ranks:
            raise SpecError("--rank", ranks[0], fix)
        if no_wait:
            raise SpecError("--no-wait", None, fix)
    for name, given in (("--attempt", attempt), ("--first", first)):
        if steps is not None and given:
            raise SpecError(name, given, "--steps asks the running attempt for its next steps: leave one of the two out")


def awaited(client: "Client", asked: "TraceRequestView") -> "TraceRequestView":
    """The request once there is something to show. Raises Conflict and WaitTimeout where nothing came of it."""
    from phalanx.core.records import ranks_text
    from phalanx.show.cli.beats import beats
    from phalanx.show.cli.text import clean, note

    view, stage = asked, stage_text(asked)
    note(f"{asked_text(asked)} It is at step {asked.at_step}.")
    try:
        with beats(lambda: clean(stage)):
            for view in client.follow_traces(asked):
                if stage_text(view) != stage:
                    stage = stage_text(view)
                    note(clean(stage))
    except KeyboardInterrupt:
        note(f"Stopped watching; the ranks trace all the same. `{later(asked)}` shows what they leave.")
        leave(Exit.DETACHED)
    for one in view.missed[:WHYS_SHOWN]:
        note(clean(f"rank {one.rank} leaves no trace: {one.why}"))
    if view.traced:
        if view.left:
            note(f"{ranks_text(view.left)} left nothing {'before the attempt ended' if view.ended else 'in time'}")
        return view
    raise _nothing(view)


def asked_text(view: "TraceRequestView") -> str:
    """'Steps 120 to 124 of tiny-lm-7.2 will be traced on all ranks.'"""
    from phalanx.core.records import ranks_text

    return f"{_steps(view)} of {view.attempt} will be traced on {ranks_text(view.ranks) or 'all ranks'}."


def later(view: "TraceRequestView") -> str:
    """The command that shows them when they are there."""
    return f"phalanx profile {view.job} --first {view.first}"


def stage_text(view: "TraceRequestView") -> str:
    """What is waited for, without the numbers that change all the time."""
    num_ranks = view.traced + len(view.left)
    if view.at_step + 1 < view.first:
        return f"{_steps(view)} are still to come"
    if view.at_step < view.last:
        return f"{_steps(view)} are being made"
    return f"{view.traced} of {num_ranks} traces are summed up"


def _nothing(view: "TraceRequestView") -> PhalanxError:
    if view.ended:
        return Conflict("job", view.job, f"{view.attempt} ended before {_steps(view).lower()} were traced; ask its next attempt")
    if view.left:
        silent = f"none of its ranks has left a trace of {_steps(view).lower()}: is it a script without phalanx.run()?"
        return WaitTimeout(f"{silent} `phalanx logs {view.job}` may say more")
    return Conflict("job", view.job, f"no rank leaves a trace of {_steps(view).lower()}; ask again")


def _steps(view: "TraceRequestView") -> str:
    return f"Step {view.first}" if view.first == view.last else f"Steps {view.first} to {view.last}"
