"""How a held span was spent on one device, from the step records of the rank on it. Pure.

Inside a step the phases are laid out as data wait, work, exposed communication, checkpoint stall; only their lengths are
known, and a fixed order lets a window cut through a step without losing a millisecond.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from phalanx.core.records import StepRecord
from phalanx.record.telemetry.ledger.categories import (
    ABSENT,
    CHECKPOINT_STALL,
    DATA_WAIT,
    DRAINING,
    EXPOSED_COMMUNICATION,
    INTERACTIVE,
    PRODUCTIVE,
    RECOMPUTE,
    RESTART,
    RUNNING_UNMEASURED,
    SERVICE,
    STARTUP,
)
from phalanx.record.telemetry.ledger.history import FOREVER, Hold, Span

GAP_MS: Final = 1_000
"""A shorter gap between two steps is the loop's own overhead and goes with the step after it; a longer one is not known."""

_UNMEASURED: Final = {
    "batch": RUNNING_UNMEASURED,
    "service": SERVICE,
    "interactive": INTERACTIVE,
    "shell": INTERACTIVE,
    "notebook": INTERACTIVE,
}

Piece = tuple[int, int, str]
"""[start, end) in Unix milliseconds, and its category."""


def spend(hold: Hold, steps: Iterable[StepRecord], done: frozenset[int] | set[int], absent: Iterable[Span] = ()) -> Iterator[Piece]:
    """Pieces in order that fill [hold.start, hold.end) exactly. `steps`: of one rank; `done`: steps that earlier attempts of
    the job had recorded for it; `absent`: when its gang went on without it. Records that overlap, run backwards or lie outside the
    span are cut to what fits."""
    away = sorted(absent)
    for start, end, category in _pieces(hold, steps, done):
        at = start
        for since, until in away:
            first, last = max(at, since), min(end, until, max(hold.stop_ms, hold.start))
            if first < last:
                yield from _piece(at, first, category)
                yield first, last, ABSENT
                at = last
        yield from _piece(at, end, category)


def _pieces(hold: Hold, steps: Iterable[StepRecord], done: frozenset[int] | set[int]) -> Iterator[Piece]:
    stop = min(max(hold.stop_ms, hold.start), hold.end)
    if hold.kind == "train":
        yield from _measured(hold, stop, steps, done)
    else:
        running = min(max(hold.running_ms, hold.start), stop)
        yield from _piece(hold.start, running, _before(hold))
        yield from _piece(running, stop, _UNMEASURED[hold.kind])
    yield from _piece(stop, hold.end, DRAINING)


def _measured(hold: Hold, stop: int, steps: Iterable[StepRecord], done: frozenset[int] | set[int]) -> Iterator[Piece]:
    at, first, recorded = hold.start, True, set(done)
    for record in sorted(steps, key=lambda one: (one.started_ms, one.step, one.ended_ms)):
        start, end = max(record.started_ms, at), min(record.ended_ms, stop)
        if start >= end:
            continue
        again = record.step in recorded
        yield from _piece(at, start, _before(hold) if first else _gap(start - at, again))
        yield from _step(record, start, end, again)
        at, first = end, False
        recorded.add(record.step)
    if first and hold.end != FOREVER:  # it ran and is over, and nobody knows what it did
        running = min(max(hold.running_ms, at), stop)
        yield from _piece(at, running, _before(hold))
        yield from _piece(running, stop, RUNNING_UNMEASURED)
        return
    yield from _piece(at, stop, _before(hold) if first else _after(stop))


def _step(record: StepRecord, start: int, end: int, again: bool) -> Iterator[Piece]:
    """The phases of a step, cut to [start, end)."""
    if again:
        yield from _piece(start, end, RECOMPUTE)
        return
    length = record.ended_ms - record.started_ms
    data = min(max(record.data_wait_ms, 0), length)
    stall = min(max(record.checkpoint_ms, 0), length - data)
    exposed = min(max(record.comm_ms, 0), length - data - stall)
    at = record.started_ms
    for until, category in (
        (at + data, DATA_WAIT),
        (record.ended_ms - stall - exposed, PRODUCTIVE),
        (record.ended_ms - stall, EXPOSED_COMMUNICATION),
        (record.ended_ms, CHECKPOINT_STALL),
    ):
        yield from _piece(max(at, start), min(until, end), category)
        at = until


def _before(hold: Hold) -> str:
    return STARTUP if hold.number == 1 else RESTART


def _gap(length: int, again: bool) -> str:
    if length >= GAP_MS:
        return RUNNING_UNMEASURED
    return RECOMPUTE if again else PRODUCTIVE


def _after(stop: int) -> str:
    """After the last step the gang winds down; while it still runs, the next record has just not come yet."""
    return RUNNING_UNMEASURED if stop == FOREVER else DRAINING


def _piece(start: int, end: int, category: str) -> Iterator[Piece]:
    if start < end:
        yield start, end, category
