"""A job's life. Each state carries only what is true in it; `advance` is the only way from one to another."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from phalanx.core.devices import Placement
from phalanx.core.errors import IllegalTransition
from phalanx.core.ids import JobId

Outcome = Literal["succeeded", "failed", "cancelled"]
StopCause = Literal["cancel", "max_duration"]


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
    """Asked to stop; holds its devices until its agents say that every rank is gone."""

    attempt: int
    placement: Placement
    cause: StopCause
    name: Literal["stopping"] = field(default="stopping", kw_only=True)


@dataclass(frozen=True, slots=True)
class Finished:
    """Over for good. `detail` is one line for people."""

    attempt: int
    outcome: Outcome
    detail: str
    name: Literal["finished"] = field(default="finished", kw_only=True)


JobState = Annotated[Pending | Starting | Running | Stopping | Finished, Field(discriminator="name")]
Holding = Starting | Running | Stopping


@dataclass(frozen=True, slots=True)
class Placed:
    """The scheduler chose devices for the next attempt."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class GangUp:
    """Every rank of the attempt has a process."""


@dataclass(frozen=True, slots=True)
class GangEnded:
    """Every rank of the attempt is gone and its logs are drained. `again` asks for another attempt, not before `not_before_ms`."""

    ok: bool
    again: bool
    detail: str
    not_before_ms: int = 0


@dataclass(frozen=True, slots=True)
class StopAsked:
    """A user cancelled, or a limit was reached."""

    cause: StopCause


JobMove = Placed | GangUp | GangEnded | StopAsked


def advance(job: JobId, state: JobState, move: JobMove) -> JobState:
    """The only way a job changes state. Total: every pair moves or raises IllegalTransition."""
    match state, move:
        case Pending(attempt), Placed(placement):
            return Starting(attempt + 1, placement)
        case Pending(attempt), StopAsked("cancel"):
            return Finished(attempt, "cancelled", "cancelled while waiting")
        case Starting(attempt, placement), GangUp():
            return Running(attempt, placement)
        case ((Starting(attempt, placement) | Running(attempt, placement)), StopAsked(cause)):
            return Stopping(attempt, placement, cause)
        case Stopping(attempt, placement), StopAsked("cancel"):
            return Stopping(attempt, placement, "cancel")
        case ((Starting(attempt) | Running(attempt)), GangEnded(ok, again, detail, not_before_ms)):
            return Pending(attempt, not_before_ms) if again else Finished(attempt, "succeeded" if ok else "failed", detail)
        case Stopping(attempt, _, "cancel"), GangEnded(detail=detail):
            return Finished(attempt, "cancelled", detail)
        case Stopping(attempt, _, "max_duration"), GangEnded(detail=detail):
            return Finished(attempt, "failed", detail)
        case _:
            raise IllegalTransition(f"{job}: {type(state).__name__} cannot take {type(move).__name__}: {state} {move}")
