"""What the scheduler answers: exactly one decision for each pending job, in the order they were considered, and what running gangs
have to do for them."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from phalanx.core.devices import Placement
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class Start:
    """The gang gets these devices, all of them at once."""

    job: JobId
    placement: Placement
    kind: Literal["start"] = field(default="start", kw_only=True)


@dataclass(frozen=True, slots=True)
class Eta:
    """The job is expected to start in [low_ms, high_ms] (Unix time) with a probability of 80 %. likely_ms: what counting alone
    says, of which the interval is learnt. latest_ms: by when it starts at the latest if no other job comes first, where
    limits, the end of what is kept or the age of gangs in its way say so; a gang that has to end may take a little longer."""

    low_ms: int
    high_ms: int
    likely_ms: int = 0
    latest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """The job stays pending for `reason`. `position` is its place, from 1, among the waiting jobs of its queue, in the order they
    were considered; None for a job that can never fit or may not start yet, since it stands in nobody's way. eta: None when nothing
    can be said."""

    job: JobId
    reason: Reason
    position: int | None
    eta: Eta | None = None
    kind: Literal["wait"] = field(default="wait", kw_only=True)


Decision = Annotated[Start | Wait, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class Evict:
    """The gang is ended, after a checkpoint if it can make one, and waits again. claimant: the job that gets its room, which may be
    itself in another size, or in its queue's own cells. keeps: what it starts again on then, None if nothing is kept for it.
    lost_ms: device-milliseconds that are done again or idle for it."""

    job: JobId
    attempt: AttemptId
    claimant: JobId
    cause: Literal["priority", "reclaim", "target", "shrink", "grow", "spot", "order", "booking", "home"]
    lost_ms: int
    keeps: Placement | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """The job waits for exactly these devices, some of which gangs must first let go of; nobody else gets them. None gives up an
    earlier claim."""

    job: JobId
    placement: Placement | None


@dataclass(frozen=True, slots=True)
class Reservation:
    """For the blocked head of a pool (`job`), or for `what` the policy keeps devices: `placement` is expected to be free at
    `start_ms` (Unix time; None where gangs without a limit hold some of it). kind: the type of its devices."""

    job: JobId | None
    kind: str
    start_ms: int | None
    placement: Placement
    what: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """One decision per pending job; evictions, with the claims they are for; what is kept for whom. cells: nodes of queues' own
    cells, each with the queue whose it is, '' where it is bound to none yet."""

    decisions: tuple[Decision, ...]
    evictions: tuple[Evict, ...] = ()
    claims: tuple[Claim, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    cells: tuple[tuple[NodeId, str], ...] = ()
