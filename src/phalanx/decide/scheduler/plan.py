"""What the scheduler answers: exactly one decision for each pending job, in the order they were considered."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from phalanx.core.devices import Placement
from phalanx.core.ids import JobId
from phalanx.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class Start:
    """The gang gets these devices, all of them at once."""

    job: JobId
    placement: Placement
    kind: Literal["start"] = field(default="start", kw_only=True)


@dataclass(frozen=True, slots=True)
class Wait:
    """The job stays pending for `reason`. `position` is its place, from 1, among the waiting jobs of its queue, in the order they
    were considered; None for a job that can never fit or whose restart is put off, since it stands in nobody's way."""

    job: JobId
    reason: Reason
    position: int | None
    kind: Literal["wait"] = field(default="wait", kw_only=True)


Decision = Annotated[Start | Wait, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class Plan:
    """One decision per pending job."""

    decisions: tuple[Decision, ...]
