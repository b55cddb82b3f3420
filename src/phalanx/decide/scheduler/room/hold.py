"""Something kept: who may still use it, and how much besides."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.devices import Placement
from phalanx.core.ids import JobId
from phalanx.core.reasons import Behind, Kept, Reason
from phalanx.decide.scheduler.snapshot import JobFacts, PendingJob, Shape
from phalanx.decide.scheduler.where.fleet import CORES_SLACK, Counts, Fleet

NO_BOUND: Final = 2**30
"""More devices than a node has."""

CLOSED: Final = -(2**20)
"""Free devices of a row on which a job may not even use a device that shares hold already."""


def runs_into(job: JobFacts, from_ms: int, yields_ms: int | None, now_ms: int) -> bool:
    """Whether the job, started now, would still run at `from_ms`, and is not of those that may be started so long before."""
    if yields_ms is not None and job.preemptible and from_ms - now_ms > yields_ms:
        return False
    return job.limit_ms is None or now_ms + job.limit_ms > from_ms


@dataclass(slots=True)
class Hold:
    """Devices of a type that are kept from `from_ms` on (Unix time): what is done by then may use them before.

    kept: devices of the type on each row that are. spare: those that jobs may use for longer, NO_BOUND where nothing is kept.
    spare_cpus, spare_memory: cores and bytes likewise, None when that is no matter. head: for whom it is kept. queues: for whose
    jobs. repairs: it is kept for repairs. what: in a person's words. until_ms: when it is over, where that is known.
    yields_ms: preemptible jobs may be started on it as long before.
    """

    kind: str
    from_ms: int
    kept: Counts
    spare: Counts
    spare_cpus: NDArray[np.float64] | None = None
    spare_memory: NDArray[np.int64] | None = None
    head: JobId | None = None
    queues: frozenset[str] = field(default_factory=frozenset)
    repairs: bool = False
    what: str = ""
    until_ms: int | None = None
    yields_ms: int | None = None

    def binds(self, job: PendingJob, now_ms: int) -> bool:
        """Whether the job has to keep off."""
        facts = job.facts
        if (self.repairs and job.repair) or facts.queue in self.queues or facts.job == self.head:
            return False
        return runs_into(facts, self.from_ms, self.yields_ms, now_ms)

    def cut(self, shape: Shape, kind: str, free: Counts) -> Counts:
        """What is left of `free` for a job that has to keep off."""
        left, none = (np.minimum(free, self.spare) if kind == self.kind else free), (CLOSED if shape.request.is_share else 0)
        if shape.request.is_share and kind == self.kind:
            left = np.where(self.spare <= 0, CLOSED, left)  # nor a share of a device that comes free as a whole by then
        if self.spare_cpus is not None and shape.cpus > 0:
            left = np.where(self.spare_cpus + CORES_SLACK >= shape.cpus, left, none)
        if self.spare_memory is not None and shape.memory_bytes > 0:
            left = np.where(self.spare_memory >= shape.memory_bytes, left, none)
        return left

    def took(self, shape: Shape, kind: str, placement: Placement, fleet: Fleet) -> None:
        """A job that it does not bind to go by then has taken of what is to spare."""
        for part in placement.slices:
            row = fleet.ground.row[part.node]
            if kind == self.kind:
                self.spare[row] -= len(part.devices)
            if self.spare_cpus is not None:
                self.spare_cpus[row] -= shape.cpus
            if self.spare_memory is not None:
                self.spare_memory[row] -= shape.memory_bytes

    def why(self, position: int) -> Reason:
        return Behind(self.head, position) if self.head is not None else Kept(self.what, self.until_ms)
