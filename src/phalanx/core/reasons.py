"""Why a job waits: one dominant typed reason with numbers, decided by the scheduler, shown to people."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from phalanx.core.ids import JobId


@dataclass(frozen=True, slots=True)
class NeverFits:
    """No node, however idle, could hold one node's share of the gang, or there are too few such nodes."""

    resource: str
    asked: str
    largest: str
    change: str
    kind: Literal["never_fits"] = field(default="never_fits", kw_only=True)

    def sentence(self) -> str:
        return f"never fits: asks for {self.asked} of {self.resource}, the largest possible is {self.largest}; {self.change}"


@dataclass(frozen=True, slots=True)
class NoRoom:
    """The gang would fit an idle fleet, but too few devices are free at once now."""

    asked: int
    free: int
    held: int
    kind: Literal["no_room"] = field(default="no_room", kw_only=True)

    def sentence(self) -> str:
        return f"waits for devices: asks for {self.asked} at once, {self.free} free where it fits, {self.held} held by running jobs"


@dataclass(frozen=True, slots=True)
class Behind:
    """It would fit now, but the freed devices are kept for the job at the head of the line."""

    head: JobId
    position: int
    kind: Literal["behind"] = field(default="behind", kw_only=True)

    def sentence(self) -> str:
        return f"position {self.position} in line: the devices are kept for {self.head}, which stands before it"


@dataclass(frozen=True, slots=True)
class NoNodes:
    """No node is connected, or none has reported since the control plane started."""

    known: int
    kind: Literal["no_nodes"] = field(default="no_nodes", kw_only=True)

    def sentence(self) -> str:
        return f"waits for nodes: {self.known} known, none has reported yet"


Reason = Annotated[NeverFits | NoRoom | Behind | NoNodes, Field(discriminator="kind")]
