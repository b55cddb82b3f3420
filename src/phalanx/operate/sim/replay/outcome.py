"""What happened in a replay: each job's life, the fleet over time, and where its device time went."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from phalanx.decide.scheduler import NodeFacts
from phalanx.operate.sim.traces.trace import TraceJob


class Told(NamedTuple):
    """A predicted start, in milliseconds since the start of the trace. vague: so wide that nobody would be shown it."""

    low_ms: int
    high_ms: int
    vague: bool


@dataclass(slots=True)
class Life:
    """One job. Times are milliseconds since the start of the trace; None for what did not happen. queued_ms: all the time in which
    it waited, after evictions too. eta: what was predicted for its first start. never: why it never started; one that `fits` might
    have under another policy."""

    job: TraceJob
    started_ms: int | None = None
    ended_ms: int | None = None
    queued_ms: int = 0
    attempts: int = 0
    evictions: int = 0
    failures: int = 0
    never: str = ""
    fits: bool = True
    eta: Told | None = None

    @property
    def wait_ms(self) -> int | None:
        """Until its first start."""
        return None if self.started_ms is None else self.started_ms - self.job.submit_ms

    @property
    def jct_ms(self) -> int | None:
        """From its submission to its end."""
        return None if self.ended_ms is None else self.ended_ms - self.job.submit_ms


def _column() -> "array[int]":
    return array("q")


@dataclass(slots=True)
class Series:
    """The fleet after each decision: thousandths of devices held, and idle on nodes too full for the typical job; jobs and devices
    that wait. at_ms: since the start of the trace."""

    at_ms: "array[int]" = field(default_factory=_column)
    held_milli: "array[int]" = field(default_factory=_column)
    idle_milli: "array[int]" = field(default_factory=_column)
    stranded_milli: "array[int]" = field(default_factory=_column)
    blocked_milli: "array[int]" = field(default_factory=_column)
    waiting: "array[int]" = field(default_factory=_column)
    waiting_devices: "array[int]" = field(default_factory=_column)

    def add(self, at_ms: int, held: int, idle: int, stranded: int, blocked: int, waiting: int, devices: int) -> None:
        if self.at_ms and self.at_ms[-1] == at_ms:
            for column in self._columns():
                column.pop()
        for column, value in zip(self._columns(), (at_ms, held, idle, stranded, blocked, waiting, devices), strict=True):
            column.append(value)

    def _columns(self) -> "tuple[array[int], ...]":
        return (
            self.at_ms, self.held_milli, self.idle_milli, self.stranded_milli, self.blocked_milli, self.waiting,
            self.waiting_devices,
        )  # fmt: skip


@dataclass(slots=True)
class TenantShare:
    """held_ms: device-milliseconds that a tenant had while it wanted any. fair_ms: that it would have had by weighted max-min
    sharing of the devices that were there. served_ms: that it had in all."""

    weight: float = 1.0
    served_ms: int = 0
    held_ms: float = 0.0
    fair_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A replay that has ended. lives: in the trace's order. starts: (time, number of the job in the trace), as they were decided.
    ledger: by category, in thousandths of devices times milliseconds; it sums to `capacity`. held_submitting: what gangs held until
    the last submission. shares: by tenant. blocked_by: jobs that waited at the moments that were looked at, by kind of reason.
    evictions: by cause. decide_s: of CPU time. num_limited: jobs that said how long they run. start_ms: Unix time of time 0."""

    trace: str
    nodes: tuple[NodeFacts, ...]
    lives: Sequence[Life]
    starts: Sequence[tuple[int, int]]
    series: Series
    ledger: Mapping[str, int]
    capacity: int
    held_submitting: int
    ended_ms: int
    decisions: int
    decide_s: float
    interval_ms: int
    shares: Mapping[str, TenantShare]
    blocked_by: Mapping[str, int]
    evictions: Mapping[str, int]
    num_failures: int = 0
    num_limited: int = 0
    start_ms: int = 0
