"""Why a job waits: one dominant typed reason with numbers, decided by the scheduler, shown to people."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from phalanx.core.ids import JobId


@dataclass(frozen=True, slots=True)
class NeverFits:
    """No node, however idle, could hold one node's share of the gang, or there are too few such nodes. `largest` is 'none' for
    something that nodes have or have not: `asked` is then the number of nodes."""

    resource: str
    asked: str
    largest: str
    change: str
    kind: Literal["never_fits"] = field(default="never_fits", kw_only=True)

    def sentence(self) -> str:
        if self.largest == "none":
            return f"never fits: no node can do what {self.resource} asks for; {self.change}"
        return f"never fits: asks for {self.asked} of {self.resource}, the largest possible is {self.largest}; {self.change}"


@dataclass(frozen=True, slots=True)
class NoRoom:
    """The gang would fit an idle fleet, but not what is free now: too few devices, or not enough of them on one node. `fenced`: on
    which ranks of attempts that were given up still live. `closed`: of nodes that are away or drained."""

    asked: int
    free: int
    held: int
    fenced: int = 0
    closed: int = 0
    kind: Literal["no_room"] = field(default="no_room", kw_only=True)

    def sentence(self) -> str:
        scattered = " but not in shares that it can use" if self.free >= self.asked else ""
        fenced = f", {self.fenced} not yet let go of by ranks that were given up" if self.fenced else ""
        closed = f", {self.closed} on nodes that are away or drained" if self.closed else ""
        free = f"asks for {self.asked} at once, {self.free} free{scattered}"
        return f"waits for devices: {free}, {self.held} held by running jobs{fenced}{closed}"


@dataclass(frozen=True, slots=True)
class Behind:
    """It would fit now, but the freed devices are kept for the job at the head of the line."""

    head: JobId
    position: int
    kind: Literal["behind"] = field(default="behind", kw_only=True)

    def sentence(self) -> str:
        return f"would fit, but the devices are kept for {self.head}, which stands before it"


@dataclass(frozen=True, slots=True)
class NoNodes:
    """No node is connected, or none has reported since the control plane started; or all that are were drained."""

    known: int
    drained: int = 0
    kind: Literal["no_nodes"] = field(default="no_nodes", kw_only=True)

    def sentence(self) -> str:
        if self.drained:
            are = "is" if self.drained == 1 else "are"
            return (
                f"waits for nodes: {self.drained} of {self.known} known {are} drained; `phalanx node undrain NODE` opens one again"
            )
        return f"waits for nodes: none of the {self.known} known is connected; `phalanx up` starts this machine's"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Its last `attempts` each ended within `within_ms`, the last one as `detail` says, so the next one is put off."""

    wait_ms: int
    attempts: int
    within_ms: int
    detail: str
    kind: Literal["backoff"] = field(default="backoff", kw_only=True)

    def sentence(self) -> str:
        ended = "the last attempt ended" if self.attempts == 1 else f"the last {self.attempts} attempts each ended"
        return f"restarts in {_seconds(self.wait_ms)}: {ended} within {_seconds(self.within_ms)}; {self.detail}"


def _seconds(ms: int) -> str:
    """Whole seconds, upwards."""
    return f"{-(-max(0, ms) // 1000)}s"


Reason = Annotated[NeverFits | NoRoom | Behind | NoNodes | Backoff, Field(discriminator="kind")]
