"""Faults that somebody asks for in a running job: what there is, what may be said of each, and what became of them.

The plan of an attempt lies in a folder of it on each of its nodes, as do the marks of what was met: agent, ranks and keepers read
and write the same files, so a fault happens once, whoever is killed and started again in between.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, get_args

from phalanx.core.errors import SpecError

FaultKind = Literal["kill-rank", "hang-rank", "slow-rank", "flip-bit", "kill-agent", "kill-node", "fill-disk", "drop-store"]
FlipOf = Literal["weights", "gradient"]

KINDS: Final[tuple[FaultKind, ...]] = get_args(FaultKind)
OF_AGENT: Final[tuple[FaultKind, ...]] = ("kill-agent", "kill-node")
"""The rank only says when: the node's agent carries them out."""
OF_STORE: Final[tuple[FaultKind, ...]] = ("fill-disk", "drop-store")
"""The rank only says when: its keeper carries them out. Of all ranks where none is named."""
OF_TRAINER: Final[tuple[FaultKind, ...]] = ("slow-rank", "flip-bit")
"""Only a recipe's loop has the places where they act."""

FOLDER: Final = "PHALANX_CHAOS"
"""The variable that names the attempt's folder of faults, where its job allows any."""
PLAN: Final = "plan.json"
LATE: Final = "late"
"""In the mark of a fault: whoever met it came too late, and nothing is to befall anybody."""
EVERY: Final = -1
"""As a rank: each of them."""

FAULTS_MAX: Final = 256
"""Of one attempt: each is kept in its record."""
FOR_MS_MAX: Final = 3_600_000
SLOW_MS_MAX: Final = 60_000
_FOR_MS: Final[Mapping[FaultKind, int]] = {
    "hang-rank": 0,
    "slow-rank": 30_000,
    "flip-bit": 30_000,
    "kill-agent": 0,
    "kill-node": 0,
    "fill-disk": 30_000,
    "drop-store": 30_000,
}
"""Where nobody says. A rank hangs for ever at 0, an agent that was killed comes back at once."""
SLOW_MS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A fault as somebody asks for it. rank: None is the first, or for the store each. step: None is the next one.
    for_ms: how long it lasts, None as long as is usual. slow_ms: of slow-rank. flip: of flip-bit."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}  # `wire.CLOSED` without its import: ranks read this module

    fault: FaultKind
    rank: int | None = None
    step: int | None = None
    for_ms: int | None = None
    slow_ms: int | None = None
    flip: FlipOf | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One fault of one attempt. number: from 1, in the order in which they were asked for. rank: EVERY is each. step: 0 is the
    next that the rank makes. for_ms: 0 is without end, or at once. slow_ms: by which each forward pass takes longer."""

    number: int
    fault: FaultKind
    rank: int
    step: int
    for_ms: int
    slow_ms: int = 0
    flip: FlipOf = "weights"

    def sentence(self) -> str:
        """'kill-rank of rank 1 at step 40'."""
        who = "each rank" if self.rank == EVERY else f"rank {self.rank}"
        when = f"at step {self.step}" if self.step else "at its next step"
        return f"{self.fault} of {who} {when}{self._how()}"

    def _how(self) -> str:
        lasting = f" for {self.for_ms / 1000:g} s" if self.for_ms else ""
        match self.fault:
            case "slow-rank":
                return f", each forward pass by {self.slow_ms} ms{lasting}"
            case "flip-bit":
                return ", in its weights" if self.flip == "weights" else f", in each backward pass{lasting}"
            case _:
                return lasting


@dataclass(frozen=True, slots=True)
class Plan:
    """plan.json: the faults of an attempt that are not known to be met, oldest first. last: number of the newest there is."""

    faults: tuple[PlannedFault, ...]
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultMet:
    """A rank met a fault that was planned for it, or heard of it too late. step: the one it was at."""

    rank: int
    step: int
    number: int
    fault: FaultKind
    late: bool
    at_ms: int
    kind: Literal["fault"] = field(default="fault")

    def what(self) -> str:
        """'met by rank 1 at step 40'."""
        if self.late:
            return f"not met: rank {self.rank} was at step {self.step} when it heard of it"
        return f"met by rank {self.rank} at step {self.step}"

    def sentence(self) -> str:
        """'fault 3: kill-rank met by rank 1 at step 40'."""
        return f"fault {self.number}: {self.fault} {self.what()}"


def met_name(number: int, rank: int) -> str:
    """The file by which it is known for ever that this rank met the fault, or was too late: its holder alone may act."""
    return f"met-{number}-{rank}"


def planned(asked: Asked, number: int) -> PlannedFault:
    """With what nobody said. Raises SpecError naming the field, its value and what to change."""
    fault = asked.fault
    _refuse_out_of_bounds(asked)
    _refuse_misplaced(asked)
    rank = asked.rank if asked.rank is not None else EVERY if fault in OF_STORE else 0
    for_ms = asked.for_ms if asked.for_ms is not None else _FOR_MS.get(fault, 0)
    slow_ms = (asked.slow_ms or SLOW_MS) if fault == "slow-rank" else 0
    return PlannedFault(
        number=number, fault=fault, rank=rank, step=asked.step or 0, for_ms=for_ms, slow_ms=slow_ms, flip=asked.flip or "weights"
    )  # fmt: skip


def _refuse_out_of_bounds(asked: Asked) -> None:
    bounds = (
        ("rank", asked.rank, 0, 1_000_000, "write a rank's number, from 0"),
        ("step", asked.step, 1, 10**12, "write a step that is still to come, from 1; leave it out for the next one"),
        ("for", asked.for_ms, 1, FOR_MS_MAX, "write a duration from 1ms to 1h, such as 30s"),
        ("slow_ms", asked.slow_ms, 1, SLOW_MS_MAX, f"write 1 to {SLOW_MS_MAX} milliseconds"),
    )
    for name, value, least, most, fix in bounds:
        if value is not None and not least <= value <= most:
            raise SpecError(name, _said(name, value), fix)


def _refuse_misplaced(asked: Asked) -> None:
    """What the fault has not."""
    places = (
        ("for", asked.for_ms, (*_FOR_MS,)),
        ("slow_ms", asked.slow_ms, ("slow-rank",)),
        ("flip", asked.flip, ("flip-bit",)),
    )
    if asked.fault == "flip-bit" and asked.for_ms is not None and asked.flip != "gradient":
        raise SpecError(
            "for", _said("for", asked.for_ms), "a bit of the weights is flipped once; leave it out, or write flip: gradient"
        )
    for name, value, kinds in places:
        if value is not None and asked.fault not in kinds:
            raise SpecError(name, _said(name, value), f"{asked.fault} has none; leave it out, or ask for {' or '.join(kinds)}")


def _said(name: str, value: str | int) -> str | int:
    """Durations are written with a unit."""
    return f"{value / 1000:g}s" if name == "for" and isinstance(value, int) else value
