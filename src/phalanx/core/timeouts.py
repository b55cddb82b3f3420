"""How long the parts of a gang wait for each other, in one order. Standard library only: shim and ranks import this.

Whoever knows more must be heard first: a process that gives no sign of life is noticed before its hang is judged, the hang before a
collective's own timeout, which knows only that somebody did not come, and that after a lost node's lease and grace. In any other
order the wrong one acts (torchft#164: a peer's death was noticed at a timeout).
"""

from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any, Final

LEASE_AND_GRACE_MS: Final = 60_000
"""More than a node's lease and kill grace: by then the control plane has said whether it is lost."""

HANG_MS_MIN: Final = 5_000
HANG_MS_MAX: Final = 86_400_000
HANG_MS: Final = 600_000
"""Where the job does not say: longer than a first step with compilation takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Milliseconds.

    beat_ms: between two signs of life of a process. silent_ms: without one a process counts as silent. gather_ms: for the ranks to
    come out of a generation that is over. shrink_ms: from a fault on, a spare that is starting is waited for where the gang could
    go on without it. grow_ms: a generation trains at least so long before the gang grows. hang_ms: without a rank's main thread
    moving on, it hangs. form_ms: from a generation's start to all its ranks being ready to train. spare_ms: for a spare to start.
    kill_ms: for a killed process to be gone. collective_ms: of a process group. node_ms: for the shims of two nodes to hear of each
    other again; then the node is lost, before one of its processes can count as one that does not leave its generation or does not
    end. meet_ms: for the shims of all nodes to reach the coordinator's at first, from when it hears that each of them runs; before,
    nodes may have environments to build or images to fetch. Longer than a node that is known may be silent, and over before ranks
    would be judged. unmet_ms: for them to meet at all, from each one's own start: nobody says that all run where the control plane
    is away, or older than that word.
    """

    beat_ms: int = 500
    silent_ms: int = 3_000
    gather_ms: int = 10_000
    shrink_ms: int = 2_000
    grow_ms: int = 10_000
    hang_ms: int = HANG_MS
    form_ms: int = HANG_MS
    spare_ms: int = 300_000
    kill_ms: int = 10_000
    collective_ms: int = 2 * HANG_MS
    node_ms: int = 8_000
    meet_ms: int = 30_000
    unmet_ms: int = 1_800_000

    def problems(self) -> list[str]:
        """Where the order is broken; empty when it holds."""
        order = ("beat_ms", "silent_ms", "hang_ms", "form_ms", "collective_ms")
        pairs = [(low, high) for low, high in pairwise(order) if low != "hang_ms"]
        pairs += [
            ("hang_ms", "collective_ms"),
            ("silent_ms", "node_ms"),
            ("node_ms", "meet_ms"),
            ("meet_ms", "form_ms"),
            ("meet_ms", "unmet_ms"),
            ("node_ms", "gather_ms"),
            ("node_ms", "kill_ms"),
            ("shrink_ms", "gather_ms"),
            ("gather_ms", "collective_ms"),
        ]
        found = [f"{low} ({getattr(self, low)}) must be less than {high} ({getattr(self, high)})" for low, high in pairs
                 if getattr(self, low) >= getattr(self, high)]  # fmt: skip
        if self.collective_ms <= LEASE_AND_GRACE_MS:
            found.append(f"collective_ms ({self.collective_ms}) must be more than a node's lease and grace ({LEASE_AND_GRACE_MS})")
        return found


def timeouts(hang_ms: int) -> Timeouts:
    """The whole order around the one that a job sets. Raises ValueError saying what to write."""
    if not HANG_MS_MIN <= hang_ms <= HANG_MS_MAX:
        raise ValueError(f"write {HANG_MS_MIN // 1000}s to {HANG_MS_MAX // 3_600_000}h, longer than the longest step")
    form_ms = max(hang_ms, 60_000)
    made = Timeouts(hang_ms=hang_ms, form_ms=form_ms, collective_ms=2 * form_ms + LEASE_AND_GRACE_MS)
    assert not made.problems(), made.problems()
    return made


def as_dict(made: Timeouts) -> dict[str, int]:
    return asdict(made)


def from_dict(said: dict[str, Any]) -> Timeouts:
    """What is not named has its default; what is unknown is left out: agent and job may be of different versions."""
    known = {item.name for item in fields(Timeouts)}
    return Timeouts(**{name: int(value) for name, value in said.items() if name in known})
