"""What people see of a job's attempts: how each went, and the errors, recoveries and faults in them."""

from collections.abc import Iterable, Iterator, Sequence
from signal import Signals
from typing import Final

from rich.console import RenderableType

from phalanx.core.messages import RankExit
from phalanx.core.records import ranks_text
from phalanx.core.units import show_duration
from phalanx.core.views import AttemptView
from phalanx.show.cli.grid import Grid
from phalanx.show.cli.output import line, moment_cell, pairs, section

_ERRORS_SHOWN: Final = 5
_WHY_CHARS_MAX: Final = 160
"""In a table; `why` says all of it, and so does `describe` beside its table."""


def attempts_parts(attempts: Sequence[AttemptView], sentence: str) -> Iterator[RenderableType]:
    """The titled parts of a job's page. sentence: on the whole job; what it says already is not said again."""
    yield from section("Attempts", _attempts(attempts))
    if errors := [(name, said) for name, said in _errors(attempts) if said not in sentence]:
        yield from section("Errors", pairs(errors[-_ERRORS_SHOWN:]))
    if any(one.recoveries for one in attempts):
        yield from section("Recoveries", _recoveries(attempts))
    if any(one.faults for one in attempts):
        yield from section("Chaos", _faults(attempts))


def exits_text(exits: Iterable[RankExit]) -> str:
    """'rank 1 SIGKILL first, rank 0 SIGTERM', or 'all ranks 0'."""
    known = sorted(exits, key=lambda one: (not one.first, one.rank))
    if known and all(one.code == 0 for one in known):
        return "all ranks exited 0"
    return ", ".join(f"rank {one.rank} {exit_word(one.code)}{' first' if one.first else ''}" for one in known) or "-"


def exit_word(code: int) -> str:
    """'exited 3' or 'SIGKILL'."""
    if code >= 0:
        return f"exited {code}"
    return Signals(-code).name if -code in set(Signals) else f"signal {-code}"


def short(why: str) -> str:
    """For a table."""
    return why if len(why) <= _WHY_CHARS_MAX else f"{why[: _WHY_CHARS_MAX - 1]}…"


def _attempts(attempts: Sequence[AttemptView]) -> RenderableType:
    if not attempts:
        return line("none yet")
    head = ("ATTEMPT", "PLACED (UTC)", "RAN", "RESUMED", "RANKS", "EXITS", "DETAIL")
    return Grid(head, (_attempt_row(one) for one in attempts), drop=("RANKS", "EXITS", "PLACED (UTC)"), cut="DETAIL")


def _errors(attempts: Sequence[AttemptView]) -> Iterator[tuple[str, str]]:
    """What ranks that fell said last, whole."""
    return ((f"{attempt.attempt}, rank {one.rank}", one.said) for attempt in attempts for one in attempt.exits if one.said)


def _recoveries(attempts: Sequence[AttemptView]) -> RenderableType:
    """Faults that gangs healed inside, each without a restart, and how they grew after one."""
    head = ("ATTEMPT", "AT (UTC)", "GENERATION", "SECONDS", "WENT ON AFTER", "WITHOUT", "STEPS LOST", "WHY")
    rows = [
        (
            one.attempt, moment_cell(r.at_ms), r.generation, f"{r.recovery_ms / 1000:.1f}", f"step {r.step}",
            ranks_text(r.absent) or "-", r.steps_lost, r.why,
        )
        for one in attempts
        for r in one.recoveries
    ]  # fmt: skip
    return Grid(head, rows, right=("GENERATION", "SECONDS", "STEPS LOST"), drop=("GENERATION", "AT (UTC)", "ATTEMPT"), cut="WHY")


def _faults(attempts: Sequence[AttemptView]) -> RenderableType:
    """Those that somebody asked for, and what became of them."""
    rows = [
        (fault.number, one.attempt, moment_cell(fault.at_ms), fault.by, fault.sentence, fault.met or _open_fault(one))
        for one in attempts
        for fault in one.faults
    ]
    head = ("FAULT", "ATTEMPT", "ASKED (UTC)", "BY", "WHAT", "MET")
    return Grid(head, rows, right=("FAULT",), drop=("ASKED (UTC)", "BY", "ATTEMPT"), cut="WHAT")


def _open_fault(attempt: AttemptView) -> str:
    return "not yet" if attempt.ended_ms is None else "no: the attempt ended before"


def _attempt_row(one: AttemptView) -> Sequence[object]:
    ran = "-" if one.running_ms is None else "running" if one.ended_ms is None else show_duration(one.ended_ms - one.running_ms)
    resumed = "-" if one.resumed_step is None else f"after {one.resumed_step}"
    ranks = ", ".join(f"{rank.rank}@{rank.node}/{rank.device}" + (f" pid {rank.pid}" if rank.pid else "") for rank in one.ranks)
    return one.attempt, moment_cell(one.placed_ms), ran, resumed, ranks or "-", exits_text(one.exits), short(one.detail)
