"""What a simulation found, in numbers: shared by the simulator and the command line. Times are seconds, shares are 0 to 1."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Skipped = Literal["never_ran", "no_gpu"]
"""Why rows of a trace are no jobs: they were cancelled before they ran, or ask for no GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimAsked:
    """What `phalanx sim run` asks for. trace: a name below `trace_dir`, or a file. cluster: TYPE:COUNTxNODES, a file, or '' for one
    sized to the trace. policy, report, jobs: files, '' for none. limit: only the first so many jobs. failures: mean time between
    failures of a node, '' for none. start: UTC time of time 0, '' for the trace's own."""

    trace: str
    trace_dir: str = ""
    cluster: str = ""
    policy: str = ""
    limit: int | None = None
    seed: int = 0
    start: str = ""
    limits: str = "trace"
    interval: str = "10s"
    startup: str = "30s"
    restart: str = "1m"
    checkpoint: str = "30m"
    failures: str = ""
    through_control: bool = False
    report: str = ""
    jobs: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Seconds of `count` jobs; percentiles by nearest rank."""

    count: int
    mean: float
    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverView:
    """A job of the trace that never started, and why."""

    job: str
    devices: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantView:
    """wait: until the first start. gpu_hours: held while it wanted any. normalised: of its weighted fair share meanwhile; 1 is all
    of it."""

    jobs: int
    wait: Spread
    gpu_hours: float
    weight: float
    normalised: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EtaView:
    """Predicted starts. coverage: of those starts inside their first 80 % interval. width_s: its median. without: of all starts
    that were waited for, those with an interval too wide to be shown, which count in nothing else here."""

    predicted: int
    coverage: float
    width_s: float
    without: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimReport:
    """One simulation.

    utilisation: productive device time of all device time, from the first submission until the last end. allocation: held of all,
    until the last submission; `allocation_bound` is what no scheduler could exceed there. allocation_over_time: (hours, held of
    all) in equal steps. evicted_for: evictions by cause. fragmentation: of the idle device time, what lay on nodes too full for the
    typical job, and fragmentation_waiting: for the first job in line. jct: submission to end. wait: submission to first start.
    lost_gpu_hours: held while stopping, starting again and doing again. jain: of tenants' normalised shares; max_min: the smallest
    over the largest. ledger: thousandths of devices times milliseconds by category; it sums to `capacity`. blocked_by: of the
    waiting jobs looked at, how many waited for which kind of reason. skipped: rows of the trace that are left
    out. never_fitting: jobs that this cluster cannot hold; never_started: those that it can and that yet never started, such as for
    want of a budget; the first of both are in `never`. notes: what to know before the figures are believed. start_ms: Unix time of
    the first submission.
    """

    trace: str
    source: str
    cluster: str
    nodes: int
    devices: int
    policy: str
    order: str
    limits: str
    seed: int
    through: Literal["schedule", "control"]
    interval_s: float
    days: float
    jobs: int
    finished: int
    skipped: int
    never_fitting: int
    never: tuple[NeverView, ...]
    utilisation: float
    allocation: float
    allocation_bound: float
    allocation_over_time: tuple[tuple[float, float], ...]
    fragmentation: float
    fragmentation_waiting: float
    jct: Spread
    wait: Spread
    wait_by_class: Mapping[str, Spread]
    wait_by_size: Mapping[str, Spread]
    tenants: Mapping[str, TenantView]
    evictions: int
    evicted_for: Mapping[str, int]
    failures: int
    lost_gpu_hours: float
    jain: float | None
    max_min: float | None
    ledger: Mapping[str, int]
    capacity: int
    blocked_by: Mapping[str, int]
    eta: EtaView | None
    decisions: int
    decide_ms: float
    wall_s: float
    notes: tuple[str, ...] = ()
    report: str = ""
    skipped_for: Skipped = "never_ran"
    start_ms: int = 0
    never_started: int = 0
    jobs_written: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideView:
    """What one policy decides of a snapshot. held: devices by queue once its plan is carried out."""

    policy: str
    starts: int
    waits: int
    evictions: int
    started_devices: int
    lost_gpu_hours: float
    held: Mapping[str, int]
    waits_for: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveView:
    """A job that the other policy treats otherwise. before, after: what becomes of it under each, as a sentence. verdict: gains,
    loses, or only waits for another reason. place_before, place_after: in its queue's line, from 1; None for none."""

    job: str
    queue: str
    devices: int
    verdict: Literal["gains", "loses", "changes"]
    before: str
    after: str
    place_before: int | None = None
    place_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfView:
    """A saved snapshot, decided under its own and another policy. at_ms: Unix time of the snapshot. notes: what to know first."""

    snapshot: str
    at_ms: int
    nodes: int
    devices: int
    running: int
    pending: int
    own: SideView
    other: SideView
    moves: tuple[MoveView, ...] = field(default=())
    notes: tuple[str, ...] = ()
