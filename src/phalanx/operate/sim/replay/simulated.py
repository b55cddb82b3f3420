"""What `phalanx sim run` does: reads, sizes, replays, reports."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from phalanx.core.errors import SpecError
from phalanx.core.policy import Policy
from phalanx.core.policy_parse import load_policy
from phalanx.core.sim_report import SimAsked, SimReport
from phalanx.core.units import duration_ms, utc_ms
from phalanx.decide.scheduler import NodeFacts, Plan, Snapshot, schedule
from phalanx.decide.scheduler.memory import Memory
from phalanx.fabric.catalogue import lookup
from phalanx.operate.sim.replay.caveats import caveats, unkept
from phalanx.operate.sim.replay.cluster import cluster_of, with_rules, written_cluster
from phalanx.operate.sim.replay.costs import Costs
from phalanx.operate.sim.replay.engine import Progress, Replay, Setup
from phalanx.operate.sim.replay.gangs import parse_limits
from phalanx.operate.sim.replay.job_table import job_table
from phalanx.operate.sim.replay.outcome import Outcome
from phalanx.operate.sim.replay.page import page
from phalanx.operate.sim.replay.report import report
from phalanx.operate.sim.replay.survival import refuse_endless
from phalanx.operate.sim.timeline import UNIX_START_MS
from phalanx.operate.sim.traces.named import read_trace
from phalanx.operate.sim.traces.trace import Trace

INTERVAL_MS_MAX: Final = 24 * 3_600_000
START_MS_MAX: Final = 2**32 * 1000


def simulate(asked: SimAsked, progress: Progress) -> SimReport:
    """Raises SpecError, NotFound and TraceError for what cannot be simulated; writes the HTML report where one is asked for."""
    setup = _setup(asked)
    out = _writable("--report", asked.report, "report.html")
    table = _writable("--jobs", asked.jobs, "jobs.csv")
    written = written_cluster(asked.cluster) if asked.cluster else None  # before the trace, which may take a while
    folder = Path(asked.trace_dir) if asked.trace_dir else None
    trace = read_trace(asked.trace, folder).first(asked.limit)
    if not asked.start and trace.start_ms is not None:
        setup = replace(setup, start_ms=trace.start_ms)
    nodes = with_rules(cluster_of("", trace) if written is None else written, setup.policy)
    if asked.failures and asked.through_control:
        raise SpecError("--failures", asked.failures, "leave it out with --through-control, where no node fails")
    refuse_endless(trace, nodes, setup.costs, asked.failures)
    began_s = time.perf_counter()
    outcome = _run(trace, nodes, setup, asked.through_control, progress)
    found = report(
        outcome,
        trace,
        setup.policy,
        policy_name=asked.policy or "default",
        limits=asked.limits,
        seed=asked.seed,
        wall_s=time.perf_counter() - began_s,
        through="control" if asked.through_control else "schedule",
        notes=(*notes(nodes, setup.policy), *caveats(trace, outcome, setup, is_sized=written is None)),
        written=str(out) if out else "",
        jobs_written=str(table) if table else "",
    )
    if out is not None:
        out.write_text(page(found, outcome, setup.policy), encoding="utf-8")
    if table is not None:
        table.write_text(job_table(outcome.lives), encoding="utf-8")
    return found


def notes(nodes: Sequence[NodeFacts], policy: Policy) -> tuple[str, ...]:
    """What of the cluster and the policy makes the figures say less than they seem to."""
    unknown = sorted({kind for node in nodes for _, kind in node.devices if lookup(kind) is None and not node.device_memory_bytes})
    told = [f"The catalogue does not have {', '.join(unknown)}: no device memory or price is known of it."] if unknown else []
    return (*told, *unkept(nodes, policy))


def deciding() -> Callable[[Snapshot], Plan]:
    """`schedule` with a memory of its own, as a control plane calls it."""
    memory = Memory()
    return lambda snapshot: schedule(snapshot, memory)


def _run(trace: Trace, nodes: tuple[NodeFacts, ...], setup: Setup, control: bool, progress: Progress) -> Outcome:
    if control:
        from phalanx.operate.sim.replay.controlled import through_control  # the control plane and its database: most of the start

        return through_control(trace, nodes, setup, progress)
    return Replay(trace, nodes, setup, deciding(), progress).run()


def _setup(asked: SimAsked) -> Setup:
    policy = load_policy(Path(asked.policy)) if asked.policy else Policy()
    if asked.limit is not None and asked.limit < 1:
        raise SpecError("--limit", asked.limit, "write 1 or more jobs")
    limits = parse_limits(asked.limits)
    costs = Costs(
        start_ms=_time("--startup", asked.startup),
        restart_ms=_time("--restart", asked.restart),
        checkpoint_ms=_time("--checkpoint", asked.checkpoint, least_ms=1000),
        mtbf_ms=_time("--failures", asked.failures, least_ms=60_000) if asked.failures else 0,
    )
    interval_ms = _time("--interval", asked.interval)
    if interval_ms > INTERVAL_MS_MAX:
        raise SpecError("--interval", asked.interval, "write a day or less")
    return Setup(
        policy=policy,
        costs=costs,
        limits=limits,
        interval_ms=max(1, interval_ms),
        heartbeat_ms=max(5 * 60_000, interval_ms),
        seed=asked.seed,
        start_ms=_start_ms(asked.start) if asked.start else UNIX_START_MS,
        known=limits.kind == "exact",
    )


def _start_ms(text: str) -> int:
    try:
        ms = utc_ms(text)
    except ValueError as error:
        raise SpecError("--start", text, str(error)) from None
    if not 0 <= ms <= START_MS_MAX:
        raise SpecError("--start", text, "write a time from 1970 to 2106")
    return ms


def _time(option: str, text: str, least_ms: int = 0) -> int:
    try:
        ms = duration_ms(text)
    except ValueError as error:
        raise SpecError(option, text, str(error)) from None
    if ms < least_ms:
        raise SpecError(option, text, f"write {least_ms // 1000}s or more")
    return ms


def _writable(option: str, named: str, example: str) -> Path | None:
    """Looked at before the simulation, which may take minutes."""
    if not named:
        return None
    out = Path(named)
    if out.is_dir() or not out.parent.is_dir():
        raise SpecError(option, named, f"name a file in a folder that exists, such as {example}")
    return out
