"""A job's life. Each state carries only what is true in it; `advance` is the only way from one to another."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from phalanx.core.devices import Placement
from phalanx.core.errors import IllegalTransition
from phalanx.core.ids import JobId

Outcome = Literal["succeeded", "failed", "cancelled"]
StopCause = Literal["cancel", "max_duration", "pause", "drain", "preempt", "down", "idle"]


@dataclass(frozen=True, slots=True)
class Pending:
    """Waits for a placement, which may not come before `not_before_ms` (Unix time; 0 is at once). `attempt` counts the launches
    so far."""

    attempt: int
    not_before_ms: int = 0
    name: Literal["pending"] = field(default="pending", kw_only=True)


@dataclass(frozen=True, slots=True)
class Starting:
    """Placed; its ranks are being started."""

    attempt: int
    placement: Placement
    name: Literal["starting"] = field(default="starting", kw_only=True)


@dataclass(frozen=True, slots=True)
class Running:
    """Every rank is up."""

    attempt: int
    placement: Placement
    name: Literal["running"] = field(default="running", kw_only=True)


@dataclass(frozen=True, slots=True)
class Stopping:
    """Asked to stop; holds its devices until its agents say that every rank is gone. why: of an idle one, in words."""

    attempt: int
    placement: Placement
    cause: StopCause
    why: str = ""
    name: Literal["stopping"] = field(default="stopping", kw_only=True)


@dataclass(frozen=True, slots=True)
class Paused:
    """Holds nothing and waits for nothing until somebody resumes it. `attempt` counts the launches so far."""

    attempt: int
    name: Literal["paused"] = field(default="paused", kw_only=True)


@dataclass(frozen=True, slots=True)
class Finished:
    """Over for good. `detail` is one line for people."""

    attempt: int
    outcome: Outcome
    detail: str
    name: Literal["finished"] = field(default="finished", kw_only=True)


JobState = Annotated[Pending | Starting | Running | Stopping | Paused | Finished, Field(discriminator="name")]
Holding = Starting | Running | Stopping


@dataclass(frozen=True, slots=True)
class Placed:
    """The scheduler chose devices for the next attempt. `skipped`: numbers that it does not take, since nodes still know attempts
    of them from a time of which this control plane has no record."""

    placement: Placement
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class GangUp:
    """Every rank of the attempt has a process."""


@dataclass(frozen=True, slots=True)
class GangEnded:
    """Every rank of the attempt is gone and its logs are drained. `ok`: it did all it had to do. `again` asks for another attempt,
    not before `not_before_ms`."""

    ok: bool
    again: bool
    detail: str
    not_before_ms: int = 0


@dataclass(frozen=True, slots=True)
class StopAsked:
    """A user cancelled or paused it, a limit was reached, its node is to be emptied, the platform goes down, or it is idle."""

    cause: StopCause
    why: str = ""


@dataclass(frozen=True, slots=True)
class ResumeAsked:
    """A paused job shall go on."""


@dataclass(frozen=True, slots=True)
class RetryAsked:
    """A job that did not succeed shall be tried again, from its last checkpoint."""


JobMove = Placed | GangUp | GangEnded | StopAsked | ResumeAsked | RetryAsked


def advance(job: JobId, state: JobState, move: JobMove) -> JobState:
    """The only way a job changes state. Total: every pair moves or raises IllegalTransition."""
    moved = _from_holding(state, move) if isinstance(state, Holding) else _from_free(state, move)
    if moved is None:
        raise IllegalTransition(f"{job}: {type(state).__name__} cannot take {type(move).__name__}: {state} {move}")
    return moved


def _from_free(state: Pending | Paused | Finished, move: JobMove) -> JobState | None:
    """Of a job that holds no devices."""
    match state, move:
        case Pending(attempt), Placed(placement, skipped) if skipped >= 0:
            return Starting(attempt + 1 + skipped, placement)
        case Pending(attempt), StopAsked("cancel"):
            return Finished(attempt, "cancelled", "cancelled while waiting")
        case Paused(attempt), StopAsked("cancel"):
            return Finished(attempt, "cancelled", "cancelled while paused")
        case Pending(attempt), StopAsked("pause"):
            return Paused(attempt)
        case Paused(attempt), ResumeAsked():
            return Pending(attempt)
        case Finished(attempt, "failed" | "cancelled"), RetryAsked():
            return Pending(attempt)
        case _:
            return None


def _from_holding(state: Holding, move: JobMove) -> JobState | None:
    """Of a job whose gang holds devices."""
    match state, move:
        case Starting(attempt, placement), GangUp():
            return Running(attempt, placement)
        case ((Starting(attempt, placement) | Running(attempt, placement)), StopAsked(cause, why)):
            return Stopping(attempt, placement, cause, why)
        case Stopping(attempt, placement), StopAsked("cancel"):
            return Stopping(attempt, placement, "cancel")
        case Stopping(attempt, placement, "drain" | "preempt" | "down"), StopAsked("pause"):
            return Stopping(attempt, placement, "pause")
        case ((Starting(attempt) | Running(attempt)), GangEnded(ok, again, detail, not_before_ms)):
            return Pending(attempt, not_before_ms) if again else Finished(attempt, "succeeded" if ok else "failed", detail)
        case Stopping(attempt), GangEnded(ok, _, detail):
            return _stopped(attempt, state.cause, ok, detail)
        case _:
            return None


def _stopped(attempt: int, cause: StopCause, ok: bool, detail: str) -> JobState:
    """A job that got to its end before the stop reached it has nothing left to go on with, or to do again elsewhere."""
    match cause:
        case "cancel" | "idle":
            return Finished(attempt, "cancelled", detail)
        case "max_duration":
            return Finished(attempt, "failed", detail)
        case "pause" | "drain" | "preempt" | "down" if ok:
            return Finished(attempt, "succeeded", detail)
        case "pause":
            return Paused(attempt)
        case "drain" | "preempt" | "down":
            return Pending(attempt)
