"""What a free device's time is booked as while the first job in line waits, by why it waits: one rule, live and simulated. Pure."""

from typing import assert_never

from phalanx.core.reasons import (
    ArrayFull,
    Backoff,
    Behind,
    Dependencies,
    DependencyCycle,
    Geometry,
    Kept,
    MakingRoom,
    NeverFits,
    NoNodes,
    NoRoom,
    OutsideWindow,
    OverBudget,
    OverLimit,
    OverQuota,
    Reason,
)
from phalanx.record.telemetry.ledger.categories import IDLE_WAITING_GEOMETRY, IDLE_WAITING_QUOTA, IDLE_WAITING_RESERVATION


def waits_as(reason: Reason) -> str | None:
    """The category; None for a job on whose account no device is idle, since no device would start it."""
    match reason:
        case OverQuota() | OverLimit() | OverBudget():
            return IDLE_WAITING_QUOTA
        case Geometry():
            return IDLE_WAITING_GEOMETRY
        case NoRoom(asked=asked, free=free):  # too few: what is free waits for the rest
            return IDLE_WAITING_GEOMETRY if free >= asked else IDLE_WAITING_RESERVATION
        case Behind() | Kept() | MakingRoom() | NoNodes():
            return IDLE_WAITING_RESERVATION
        case Backoff() | Dependencies() | DependencyCycle() | ArrayFull() | OutsideWindow() | NeverFits():
            return None
        case _:
            assert_never(reason)
