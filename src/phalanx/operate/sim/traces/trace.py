"""What every reader gives: jobs by time of submission, from 0."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from phalanx.core.sim_report import Skipped
from phalanx.core.spec import SpotUse
from phalanx.operate.sim.traces.errors import TraceError


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace. devices: of the whole gang; `milli` under 1000 is a share of one. cpus and memory_bytes: of the whole
    gang, 0 where the trace does not tell. limit_ms: the time that was asked for, None where the trace does not tell. spot: whether
    nodes will do that may be taken away. line: of its row, 0 for none."""

    name: str
    submit_ms: int
    duration_ms: int
    devices: int
    tenant: str = "default"
    limit_ms: int | None = None
    priority: int = 50
    types: tuple[str, ...] = ()
    milli: int = 1000
    cpus: float = 0.0
    memory_bytes: int = 0
    spot: SpotUse = "never"
    line: int = field(default=0, compare=False)

    @property
    def work_ms(self) -> int:
        """Device-milliseconds."""
        return self.devices * self.duration_ms


@dataclass(frozen=True, slots=True)
class Trace:
    """jobs: sorted by submission, the first one at 0. skipped: rows that are left out, all of them for one cause, `skipped_for`.
    source: for people. machine_devices: of the whole machine, and start_ms: Unix time of the first submission, where the trace
    tells."""

    name: str
    jobs: tuple[TraceJob, ...]
    source: str = ""
    skipped: int = 0
    machine_devices: int = 0
    skipped_for: Skipped = "never_ran"
    start_ms: int | None = None

    @classmethod
    def of(
        cls,
        name: str,
        jobs: Iterable[TraceJob],
        source: str = "",
        skipped: int = 0,
        machine_devices: int = 0,
        skipped_for: Skipped = "never_ran",
        epoch_ms: int | None = None,
    ) -> "Trace":
        """From rows in any order; equal times stay in the order of the rows. epoch_ms: Unix time from which they count, where the
        trace tells."""
        ordered = sorted(jobs, key=lambda job: job.submit_ms)
        first_ms = ordered[0].submit_ms if ordered else 0
        shifted = tuple(replace(job, submit_ms=job.submit_ms - first_ms) if first_ms else job for job in ordered)
        start_ms = None if epoch_ms is None else epoch_ms + first_ms
        return cls(name, shifted, source, skipped, machine_devices, skipped_for, start_ms)

    def first(self, count: int | None) -> "Trace":
        """The `count` jobs that were submitted first."""
        return self if count is None else replace(self, jobs=self.jobs[:count])

    def must_have_jobs(self, file: Path) -> "Trace":
        """Raises TraceError when there is none."""
        if not self.jobs:
            raise TraceError(file.name, None, "has no job that ran; name a trace with at least one")
        return self

    @property
    def peak_devices(self) -> int:
        """Most devices in use at once if nobody ever waited."""
        held = peak = 0
        for _, change in sorted(self._changes()):
            held += change
            peak = max(peak, held)
        return peak

    def _changes(self) -> Iterator[tuple[int, int]]:
        for job in self.jobs:
            yield job.submit_ms, job.devices
            yield job.submit_ms + job.duration_ms, -job.devices
