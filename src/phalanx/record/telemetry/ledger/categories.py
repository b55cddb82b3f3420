"""The categories of the ledger. Every millisecond of every device is in exactly one."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

PRODUCTIVE: Final = "productive"
RUNNING_UNMEASURED: Final = "running_unmeasured"
DATA_WAIT: Final = "data_wait"
EXPOSED_COMMUNICATION: Final = "exposed_communication"
CHECKPOINT_STALL: Final = "checkpoint_stall"
RECOMPUTE: Final = "recompute"
RESTART: Final = "restart"
ABSENT: Final = "absent"
STARTUP: Final = "startup"
DRAINING: Final = "draining"
SERVICE: Final = "service"
INTERACTIVE: Final = "interactive"
IDLE: Final = "idle"
IDLE_WAITING_QUOTA: Final = "idle_waiting_quota"
IDLE_WAITING_GEOMETRY: Final = "idle_waiting_geometry"
IDLE_WAITING_RESERVATION: Final = "idle_waiting_reservation"
FRAGMENTED: Final = "fragmented"
RESERVED: Final = "reserved"
UNHEALTHY: Final = "unhealthy"

CATEGORIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        PRODUCTIVE: "training steps, less the waits below",
        RUNNING_UNMEASURED: "held by ranks that report no steps, or between steps",
        DATA_WAIT: "a step waited for its batch",
        EXPOSED_COMMUNICATION: "a step waited for other ranks, with nothing to compute meanwhile",
        CHECKPOINT_STALL: "a step waited for a checkpoint to be taken",
        RECOMPUTE: "steps done again after a failure, since an earlier attempt had done them",
        RESTART: "from the placement of a later attempt to its first step",
        ABSENT: "held for a rank that had no part in its gang, whose other ranks did the work of all",
        STARTUP: "from the placement of a first attempt to its first step",
        DRAINING: "from the last step, the request to stop or the loss of a node, until every rank is gone",
        SERVICE: "held by a service",
        INTERACTIVE: "held by an interactive session",
        IDLE: "free, and no job waited for devices",
        IDLE_WAITING_QUOTA: "free while the first waiting job was over a quota, a limit or a budget",
        IDLE_WAITING_GEOMETRY: "free, and enough for the first waiting job, but not in shapes that it can use",
        IDLE_WAITING_RESERVATION: "free, and kept for a job or a booking, or too few for the first waiting job",
        FRAGMENTED: "free, but in pieces too small for any waiting job",
        RESERVED: "kept free by a reservation, a calendar or a drain",
        UNHEALTHY: "free, and its node was away",
    }
)
"""Category name to its meaning; every account has every one of them, 0 when nothing was."""
