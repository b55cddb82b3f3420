"""A cluster's whole history through the real scheduler: how long that takes, how full the fleet is, how long big gangs wait, and
whether predicted starts come true.

Usage: python benchmarks/replay.py --trace philly|itp/clusterNN --trace-dir DIR [--cluster TYPE:COUNTxNODES] [--only ID] [--quick].
The last line is one JSON object; the exit code is 1 when a claim does not hold.

The trace's jobs are submitted at their times and run as long as they did. Decisions are made every 60 s of simulated time, as
production schedulers do, when something changed. Nothing but devices is short; start-up is inside the trace's durations. No job has
a time limit; what a backfiller needs is estimated from finished jobs of the same tenant and size (the 90th percentile), for all
alike. The fleet is smaller than the published one, on which these jobs never wait: so many nodes of eight that the mean offered
load is LOAD of them.

The peers decide in the same engine: FIFO without backfill, and EASY (the head gets a reservation, whoever does not delay it may
pass it). They say nothing of when jobs start, share nothing and explain nothing. `--only` runs one claim.
"""

import argparse
import json
import math
import os
import platform as machine
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.policy import Policy
from phalanx.core.reasons import NoRoom
from phalanx.decide.scheduler import NodeFacts, PendingJob, Plan, RunningJob, Snapshot, Start, Wait
from phalanx.operate.sim.replay.cluster import cluster_of, describe
from phalanx.operate.sim.replay.costs import FREE
from phalanx.operate.sim.replay.engine import Decide, Replay, Setup
from phalanx.operate.sim.replay.gangs import Limits
from phalanx.operate.sim.replay.outcome import Life, Outcome
from phalanx.operate.sim.replay.report import bound, eta_of, rank, report
from phalanx.operate.sim.replay.simulated import deciding
from phalanx.operate.sim.traces.named import read_trace
from phalanx.operate.sim.traces.trace import Trace

SECONDS_MAX: Final = 90.0
COVERAGE_MIN: Final = 0.80
"""Issue 4, Figures."""

OF_BOUND_MIN: Final = 0.97
INTERVAL_MS: Final = 60_000
LOAD: Final = 0.52
QUICK_JOBS: Final = 8_000
BIG: Final = 0.01
"""The part of all jobs, by devices, that counts as big."""

NO_RESERVATION: Final = 0


# The peers


class Fifo:
    """The head of the line or nobody, on the fullest nodes that hold it."""

    def decide(self, snapshot: Snapshot) -> Plan:
        nodes, free = snapshot.nodes, np.array([len(node.free) for node in snapshot.nodes])
        taken: dict[int, int] = {}
        starts: list[Start] = []
        line = sorted(snapshot.pending, key=lambda job: job.facts.sequence)
        for at, job in enumerate(line):
            rows = _fullest(free, job, np.ones(len(free), bool))
            if rows is None:
                return self.behind(snapshot, line[at:], free, taken, starts)
            starts.append(_started(job, rows, nodes, free, taken))
        return Plan(tuple(starts))

    def behind(
        self, snapshot: Snapshot, line: Sequence[PendingJob], free: "Free", taken: dict[int, int], starts: list[Start]
    ) -> Plan:
        """The head cannot start; nobody passes it."""
        return Plan((*starts, _wait(line[0])))


class Easy(Fifo):
    """The head's start is reserved for when running gangs will have let go of enough; who ends before, or elsewhere, may pass."""

    def behind(
        self, snapshot: Snapshot, line: Sequence[PendingJob], free: "Free", taken: dict[int, int], starts: list[Start]
    ) -> Plan:
        reserved, shadow_ms = _shadow(snapshot, line[0], free)
        elsewhere = ~reserved
        small: set[tuple[int, int, bool]] = set()
        for job in line[1:]:
            ends = snapshot.now_ms + job.facts.limit_ms <= shadow_ms if job.facts.limit_ms is not None else False
            key = (job.facts.shape.request.count, job.facts.shape.num_nodes, ends)
            if key in small:
                continue
            rows = _fullest(free, job, np.ones(len(free), bool) if ends else elsewhere)
            if rows is None:
                small.add(key)
            else:
                starts.append(_started(job, rows, snapshot.nodes, free, taken))
            if not free.any():
                break
        return Plan((*starts, _wait(line[0])))


Free = NDArray[np.int64]


def _shadow(snapshot: Snapshot, head: PendingJob, free: Free) -> tuple[NDArray[np.bool_], float]:
    """Nodes on which the head will start, and when (Unix time)."""
    row = {node.node: at for at, node in enumerate(snapshot.nodes)}
    then, count, needed = free.copy(), head.facts.shape.request.count, head.facts.shape.num_nodes
    mask = np.zeros(len(free), bool)
    ends_ms = math.inf
    for running in sorted(snapshot.running, key=lambda one: _ends_ms(one, snapshot.now_ms)):
        for part in running.placement.slices:
            then[row[part.node]] += len(part.devices)
        if np.count_nonzero(then >= count) >= needed:
            ends_ms = _ends_ms(running, snapshot.now_ms)
            mask[np.flatnonzero(then >= count)[:needed]] = True
            break
    return mask, ends_ms


def _ends_ms(running: RunningJob, now_ms: int) -> float:
    """Expected; a gang without an estimate, or beyond it, ends at some time."""
    limit = running.facts.limit_ms
    return math.inf if limit is None else max(now_ms, running.placed_ms + limit)


def _fullest(free: Free, job: PendingJob, allowed: NDArray[np.bool_]) -> NDArray[np.intp] | None:
    count, needed = job.facts.shape.request.count, job.facts.shape.num_nodes
    rows = np.flatnonzero((free >= count) & allowed)
    return None if len(rows) < needed else rows[np.argsort(free[rows], kind="stable")][:needed]


def _started(job: PendingJob, rows: NDArray[np.intp], nodes: Sequence[NodeFacts], free: Free, taken: dict[int, int]) -> Start:
    count, slices = job.facts.shape.request.count, []
    for row in rows.tolist():
        used = taken.get(row, 0)
        slices.append(NodeSlice(nodes[row].node, nodes[row].free[used : used + count]))
        taken[row] = used + count
        free[row] -= count
    return Start(job.facts.job, Placement(tuple(slices)))


def _wait(job: PendingJob) -> Wait:
    return Wait(job.facts.job, NoRoom(job.facts.shape.num_devices, 0, 0), 1)


# Runs


@dataclass(frozen=True, slots=True)
class Run:
    """One scheduler over the whole trace."""

    outcome: Outcome
    seconds: float


class Field:
    """The trace on its cluster; each way to decide runs once."""

    def __init__(self, trace: Trace, nodes: tuple[NodeFacts, ...]) -> None:
        self.trace, self.nodes = trace, nodes
        self.devices = sum(len(node.devices) for node in nodes)
        self.until_ms = max(1, trace.jobs[-1].submit_ms)
        self.bound = bound(trace.jobs, self.devices, self.until_ms)
        self._runs: dict[str, Run] = {}

    def ours(self) -> Run:
        return self._run("ours", deciding, Policy(), predicts=True)

    def without_reservations(self) -> Run:
        return self._run("ours, no reservations", deciding, Policy(heads=NO_RESERVATION), predicts=False)

    def fifo(self) -> Run:
        return self._run("FIFO", lambda: Fifo().decide, Policy(), predicts=False)

    def easy(self) -> Run:
        return self._run("EASY", lambda: Easy().decide, Policy(), predicts=False)

    def _run(self, name: str, decide: Callable[[], Decide], policy: Policy, predicts: bool) -> Run:
        if name not in self._runs:
            setup = Setup(policy=policy, costs=FREE, limits=Limits("estimate"), interval_ms=INTERVAL_MS, predicts=predicts)
            began_s = time.process_time()
            outcome = Replay(self.trace, self.nodes, setup, decide()).run()
            self._runs[name] = Run(outcome, time.process_time() - began_s)
            self._tell(name, self._runs[name])
        return self._runs[name]

    def _tell(self, name: str, run: Run) -> None:
        found = report(run.outcome, self.trace, Policy(), policy_name=name, limits="estimate", seed=0, wall_s=run.seconds)
        big = big_waits_s(run.outcome)
        jain = None if found.jain is None else round(found.jain, 3)
        print(
            f"{name:<24}{run.seconds:>7.1f} s CPU, {found.decisions} decisions of {found.decide_ms:.2f} ms; "
            f"held {found.allocation:.4f} (bound {found.allocation_bound:.4f}); JCT mean {found.jct.mean:.0f} s; "
            f"wait mean {found.wait.mean:.0f} s, p50 {found.wait.p50:.0f}, p99 {found.wait.p99:.0f}; "
            f"big gangs' wait mean {np.mean(big):.0f} s, p99 {rank(big, 0.99):.0f}; "
            f"Jain {jain}; evictions {dict(run.outcome.evictions)}",
            flush=True,
        )

    def held(self, run: Run) -> float:
        found = report(run.outcome, self.trace, Policy(), policy_name="", limits="", seed=0, wall_s=0.0)
        return found.allocation


def big_waits_s(outcome: Outcome) -> list[float]:
    """Sorted, of the largest BIG of all jobs; of equal size the earlier ones."""
    count = max(1, math.ceil(BIG * len(outcome.lives)))
    largest = sorted(outcome.lives, key=lambda life: (-life.job.devices, life.job.submit_ms))[:count]
    return sorted(_wait_s(life) for life in largest)


def _wait_s(life: Life) -> float:
    return math.inf if life.wait_ms is None else life.wait_ms / 1000


# The claims


def seconds(field: Field) -> list[dict[str, Any]]:
    return [claim("seconds", field.ours().seconds, field.easy().seconds, "s of CPU", SECONDS_MAX)]


def utilisation(field: Field) -> list[dict[str, Any]]:
    ours, easy, fifo = (field.held(run) for run in (field.ours(), field.easy(), field.fifo()))
    print(
        f"held of all devices until the last submission: ours {ours:.4f}, EASY {easy:.4f}, FIFO {fifo:.4f}, bound {field.bound:.4f}"
    )
    return [
        claim("utilisation_of_bound", ours / field.bound, easy / field.bound, "of the offered load's bound", least=OF_BOUND_MIN)
    ]


def big_gangs(field: Field) -> list[dict[str, Any]]:
    ours, without = (big_waits_s(run.outcome) for run in (field.ours(), field.without_reservations()))
    peers = {name: big_waits_s(run.outcome) for name, run in (("EASY", field.easy()), ("FIFO", field.fifo()))}
    for name, waits in {"ours": ours, "ours without reservations": without, **peers}.items():
        middle, most = rank(waits, 0.5), rank(waits, 0.99)
        print(f"big gangs ({len(waits)}): {name:<28} mean {np.mean(waits):>9.0f} s, p50 {middle:>8.0f}, p99 {most:>9.0f}")
    longest, unreserved = rank(ours, 0.99), rank(without, 0.99)  # a reservation is against starving, which the mean hides
    return [
        claim("big_gangs_wait_p99_s", longest, unreserved, "s; peer: no reservations", unreserved),
        claim("big_gangs_wait_mean_s", float(np.mean(ours)), float(np.mean(without)), "s, told only", math.inf),
    ]


def coverage(field: Field) -> list[dict[str, Any]]:
    told = eta_of(field.ours().outcome.lives)
    if told is None:
        raise SystemExit("nobody waited, so that no start was predicted; name a smaller --cluster")
    print(f"predicted starts: {told.predicted}, inside their 80 % interval {told.coverage:.3f}, median width {told.width_s:.0f} s")
    return [
        claim("eta_coverage_80", told.coverage, None, "of predicted starts", least=COVERAGE_MIN),
        claim("eta_width_p50_s", told.width_s, None, "s, told only", math.inf),
    ]


CLAIMS: Final[Mapping[str, Callable[[Field], list[dict[str, Any]]]]] = {
    "seconds": seconds,
    "utilisation_of_bound": utilisation,
    "big_gangs_wait_p99_s": big_gangs,
    "big_gangs_wait_mean_s": big_gangs,
    "eta_coverage_80": coverage,
    "eta_width_p50_s": coverage,
}


def claim(
    name: str, ours: float, theirs: float | None, unit: str, most: float | None = None, least: float | None = None
) -> dict[str, Any]:
    holds = (most is None or ours <= most) and (least is None or ours >= least)
    target = f"ours <= {most:g}" if most is not None else f"ours >= {least:g}"
    return {
        "id": name, "ours": round(ours, 3), "peer": theirs if theirs is None else round(theirs, 3),
        "ratio": round(ours / theirs, 2) if theirs else None, "unit": unit, "target": target, "holds": holds,
    }  # fmt: skip


def fleet(trace: Trace, text: str) -> tuple[NodeFacts, ...]:
    """What was asked for, else nodes of eight for the offered load, and enough for the largest job."""
    if text:
        return cluster_of(text, trace)
    mean = sum(job.work_ms for job in trace.jobs) / max(1, trace.jobs[-1].submit_ms)
    count = max(math.ceil(mean / LOAD / 8), math.ceil(max(job.devices for job in trace.jobs) / 8))
    return cluster_of(f"GPU:8x{count}", trace)


def conditions(field: Field) -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else machine.machine(), "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "versions": {"python": machine.python_version(), "numpy": np.__version__}, "seeds": [],
        "trace": field.trace.name, "jobs": len(field.trace.jobs), "cluster": describe(field.nodes),
        "interval_s": INTERVAL_MS // 1000,
    }  # fmt: skip


def main() -> int:
    """Run the claims that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", default="philly", help="a name below --trace-dir, or a file")
    parser.add_argument("--trace-dir", type=Path, default=os.environ.get("PHALANX_TRACES"), help="where named traces are")
    parser.add_argument("--cluster", default="", help="such as H100:8x64; default: sized to the trace")
    parser.add_argument("--only", choices=list(CLAIMS), help="run one claim")
    parser.add_argument("--quick", action="store_true", help=f"the first {QUICK_JOBS} jobs")
    options = parser.parse_args()
    trace = read_trace(options.trace, options.trace_dir).first(QUICK_JOBS if options.quick else None)
    field = Field(trace, fleet(trace, options.cluster))
    around = conditions(field)
    print(f"{trace.name}: {len(trace.jobs)} jobs on {describe(field.nodes)}")
    wanted = [options.only] if options.only else list(CLAIMS)
    claims = [one for measure in dict.fromkeys(CLAIMS[name] for name in wanted) for one in measure(field)]
    claims = [one for one in claims if one["id"] in wanted]
    print(json.dumps({"benchmark": "replay", "conditions": around, "claims": claims}))
    return 0 if all(one["holds"] for one in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
