"""How soon jobs are done when 64 GPUs are shared in time: by known durations, and by none.

Usage: python benchmarks/jct.py --trace-dir DIR [--trace muri/trace1 ...] [--only ID] [--quick]. Without --trace all four of Muri's
are run, with --quick muri/trace1 and muri/trace3. The last line is one JSON object; the exit code is 1 when a claim does not hold.

8 nodes of 8 GPUs, a gang on as few nodes as hold it, GPUs never shared. Ours are the orders of `phalanx.decide.scheduler`; the
peers are SRSF (shortest remaining time times GPUs) and Tiresias (two thresholds of GPU time, first come first served between them,
as in the published runs). All go through one event loop, one rotation and one price: a gang that starts, starts again or moves
gains nothing for START_MS, and runs SLOWER times its trace's duration, as in the published runs. Those take the price from every
running gang at every event, whether it moves or not; that is why the peers here are a little better than published. Decisions are
made when a job comes or ends, and when a job passes a threshold of its order: for Tiresias at once, for blind at most every
REVIEW_MS.

`avg_jct_ks`: shortest, with durations known, in 1,000 s; it must be as good as the peer SRSF and the published one.
`blind_vs_tiresias`: the average of the blind order over that of the peer Tiresias, which is the stricter of the two. Blind sees no
duration: its column of expected times is empty; it is told gang sizes, service so far, the order of submission, and the service of
jobs that ended. Its constants were chosen while looking at these traces. With several traces the ids end in `@muri/...`. "tuned"
is Tiresias with other thresholds; the best of them for a trace is known only afterwards, and no claim is about it.
"""

import argparse
import json
import math
import os
import platform as machine
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from phalanx.core.errors import PhalanxError
from phalanx.core.ids import JobId, NodeId
from phalanx.decide.scheduler.line.attained import MARGIN, ServiceHistory, blind, learned, next_edge
from phalanx.decide.scheduler.line.rotation import Gang, rotate
from phalanx.decide.scheduler.line.service_order import Bools, Floats, ServiceJobs, favoured, in_service_order, shortest
from phalanx.operate.sim.traces.muri import NODE_DEVICES, read_jobs
from phalanx.operate.sim.traces.named import file_of

NUM_NODES: Final = 8
START_MS: Final = 10_000
SLOWER: Final = 1.015
REVIEW_MS: Final = 360_000
"""The published simulator: 4 to 46 s by model, 10 s without a profile; 1.015; Muri's own interval is 6 minutes."""

TRACES: Final = ("muri/trace1", "muri/trace1_pr", "muri/trace3", "muri/trace3_pr")
QUICK: Final = ("muri/trace1", "muri/trace3")
PUBLISHED: Final[Mapping[str, Mapping[str, tuple[float, float]]]] = {
    "muri/trace1": {"SRSF": (980.141, 15529.9), "Tiresias": (3330.371, 14739.9)},
    "muri/trace1_pr": {"SRSF": (1801.860, 18267.3), "Tiresias": (6921.683, 21765.4)},
    "muri/trace3": {"SRSF": (185.022, 4189.7), "Tiresias": (347.213, 4983.4)},
    "muri/trace3_pr": {"SRSF": (798.058, 6228.2), "Tiresias": (2213.110, 6739.6)},
}
"""Average and p99 in 1,000 s; Muri, SIGCOMM 2022, artifact."""

BLIND_MAX: Final[Mapping[str, float]] = {"muri/trace1": 0.5, "muri/trace1_pr": 0.5, "muri/trace3": 0.9, "muri/trace3_pr": 0.9}
"""Issue 4, Figures; trace3_pr as trace3. Other traces: no worse than Tiresias."""

TIRESIAS: Final = (3_250_000, 7_200_000)
"""GPU-milliseconds, as in the published runs."""

GPU_HOUR: Final = 3_600_000
TUNED: Final = tuple((GPU_HOUR * first, GPU_HOUR * first * 10) for first in (1, 10, 100))


# The orders


class Order(Protocol):
    """One policy. margin: by how much a waiting job must be better than one that runs. pause_ms: between two looks at what jobs
    have passed, at least."""

    name: str
    margin: float
    pause_ms: int

    def keys(self, jobs: ServiceJobs, running: Bools) -> Floats: ...

    def next_review(self, attained: int) -> int | None:
        """The service, in GPU-milliseconds, at which a running job's key changes."""

    def ended(self, num_devices: int, sequence: int, attained: int) -> None: ...


class Known:
    """An order that is told how long jobs run, and needs no look at what they do."""

    def __init__(self, name: str, keys: Callable[[ServiceJobs], Floats]) -> None:
        self.name, self.margin, self.pause_ms = name, 0.0, 0
        self._keys = keys

    def keys(self, jobs: ServiceJobs, running: Bools) -> Floats:
        return self._keys(jobs)

    def next_review(self, _: int) -> int | None:
        return None

    def ended(self, num_devices: int, sequence: int, attained: int) -> None:
        """Nothing to learn."""


class Blind:
    """Ours without durations."""

    name, margin, pause_ms = "blind", MARGIN, REVIEW_MS

    def __init__(self) -> None:
        self._history = ServiceHistory()

    def keys(self, jobs: ServiceJobs, running: Bools) -> Floats:
        return blind(replace(jobs, expected_ms=np.full(len(jobs), np.nan)), self._history)

    def next_review(self, attained: int) -> int | None:
        return next_edge(attained)

    def ended(self, num_devices: int, sequence: int, attained: int) -> None:
        self._history = learned(self._history, num_devices, sequence, attained)


class Tiresias:
    """Discretised least attained service in two dimensions: queues by GPU time, first come first served in each, those that run
    first, those that fell out of their GPUs or into a queue last (Tiresias-L, NSDI 2019, as in the published runs)."""

    margin, pause_ms = 0.0, 0

    def __init__(self, name: str, thresholds: Sequence[int]) -> None:
        self.name, self._thresholds = name, thresholds
        self._queues: list[list[int]] = [[] for _ in range(len(thresholds) + 1)]

    def keys(self, jobs: ServiceJobs, running: Bools) -> Floats:
        """Their places in the queues, one queue after the other."""
        now = dict(
            zip(jobs.sequence.tolist(), np.searchsorted(self._thresholds, jobs.attained, side="right").tolist(), strict=True)
        )
        runs = set(jobs.sequence[running].tolist())
        for number, queue in enumerate(self._queues):
            queue[:] = sorted((job for job in queue if now.get(job) == number), key=lambda job: job not in runs)
        known = {job for queue in self._queues for job in queue}
        for job, number in now.items():
            if job not in known:
                self._queues[number].append(job)
        place = {job: at for at, job in enumerate(job for queue in self._queues for job in queue)}
        return np.array([place[job] for job in jobs.sequence.tolist()], dtype=np.float64)

    def next_review(self, attained: int) -> int | None:
        queue = bisect_right(self._thresholds, attained)
        return self._thresholds[queue] if queue < len(self._thresholds) else None

    def ended(self, num_devices: int, sequence: int, attained: int) -> None:
        """Nothing to learn."""


def srsf(jobs: ServiceJobs) -> Floats:
    return np.asarray(jobs.expected_ms * jobs.num_devices, dtype=np.float64)


# The cluster


class Cluster:
    """Jobs of a trace through one order, by events. Times in milliseconds from the first submission."""

    def __init__(self, jobs: Sequence["Job"], order: Order) -> None:
        self._order = order
        self._jobs = sorted(jobs, key=lambda job: job.submit_ms)
        self._gangs = [job.gang(number) for number, job in enumerate(self._jobs)]
        self._devices = np.array([job.devices for job in self._jobs], dtype=np.int64)
        self._submitted = np.array([job.submit_ms for job in self._jobs], dtype=np.int64)
        self._left = np.array([round(job.duration_ms * SLOWER) for job in self._jobs], dtype=np.int64)
        self._attained = np.zeros(len(jobs), dtype=np.int64)
        self._starting = [0] * len(jobs)
        self._is_running: Bools = np.zeros(len(jobs), dtype=bool)
        self._running: set[int] = set()
        self._open: list[int] = []
        self._free = {NodeId(f"node-{number}"): NODE_DEVICES for number in range(NUM_NODES)}
        self.now_ms, self._reviewed_ms, self._arrived = 0, 0, 0
        self.jct_ms = [0] * len(jobs)
        self.starts = self.decisions = 0

    def run(self) -> None:
        while self._arrived < len(self._jobs) or self._open:
            self._pass(self._next_ms() - self.now_ms)
            self._end()
            self._arrive()
            self._decide()

    def _next_ms(self) -> int:
        """When a job comes, ends or is to be looked at."""
        times = [self.now_ms + self._starting[job] + int(self._left[job]) for job in self._running]
        if self._arrived < len(self._jobs):
            times.append(int(self._submitted[self._arrived]))
        if len(self._running) < len(self._open):
            reviews = [review for job in self._running if (review := self._review_ms(job)) is not None]
            times += [max(min(reviews), self._reviewed_ms + self._order.pause_ms)] if reviews else []
        return min(times)

    def _review_ms(self, job: int) -> int | None:
        attained, devices = int(self._attained[job]), int(self._devices[job])
        edge = self._order.next_review(attained)
        return None if edge is None else self.now_ms + self._starting[job] + -(-(edge - attained) // devices)

    def _pass(self, span_ms: int) -> None:
        self.now_ms += span_ms
        for job in self._running:
            ran_ms = max(0, span_ms - self._starting[job])
            self._starting[job] = max(0, self._starting[job] - span_ms)
            self._left[job] -= ran_ms
            self._attained[job] += ran_ms * self._devices[job]

    def _end(self) -> None:
        for job in sorted(job for job in self._running if not self._left[job]):
            self._stop(job)
            self._open.remove(job)
            self.jct_ms[job] = self.now_ms - int(self._submitted[job])
            self._order.ended(int(self._devices[job]), job, int(self._attained[job]))

    def _arrive(self) -> None:
        while self._arrived < len(self._jobs) and self._submitted[self._arrived] <= self.now_ms:
            self._open.append(self._arrived)
            self._arrived += 1

    def _decide(self) -> None:
        self._reviewed_ms = self.now_ms
        if len(self._running) == len(self._open):
            return
        self.decisions += 1
        rows = np.array(self._open, dtype=np.int64)
        jobs = ServiceJobs(
            self._devices[rows], self._attained[rows], self._left[rows].astype(np.float64), self._submitted[rows], rows
        )
        running = self._is_running[rows]
        line = rows[in_service_order(jobs, favoured(self._order.keys(jobs, running), running, self._order.margin), running)]
        rotation = rotate([self._gangs[job] for job in line.tolist()], self._free)
        for name in rotation.evicts:
            self._stop(int(name))
        for name, nodes in rotation.starts:
            self._start(int(name), nodes)

    def _start(self, job: int, nodes: tuple[NodeId, ...]) -> None:
        gang = self._gangs[job] = replace(self._gangs[job], held=nodes)
        self._starting[job] = START_MS
        self._running.add(job)
        self._is_running[job] = True
        self.starts += 1
        self._take(gang, 1)

    def _stop(self, job: int) -> None:
        self._take(self._gangs[job], -1)
        self._gangs[job] = replace(self._gangs[job], held=())
        self._running.remove(job)
        self._is_running[job] = False

    def _take(self, gang: Gang, sign: int) -> None:
        for node in gang.held:
            self._free[node] -= sign * gang.per_node
            if not 0 <= self._free[node] <= NODE_DEVICES:
                raise SystemExit(f"{node} has {self._free[node]} free GPUs: a device was given twice")


@dataclass(frozen=True)
class Job:
    """What a trace says of one."""

    submit_ms: int
    duration_ms: int
    devices: int

    def gang(self, number: int) -> Gang:
        per_node = min(self.devices, NODE_DEVICES)
        return Gang(JobId(str(number)), self.devices // per_node, per_node)


@dataclass(frozen=True)
class Figures:
    """Of one order on one trace; times in 1,000 s."""

    order: str
    avg_ks: float
    p50_ks: float
    p99_ks: float
    makespan_ks: float
    starts: int
    decisions: int
    took_s: float


def measured(jobs: Sequence[Job], order: Order) -> Figures:
    begin_s = time.perf_counter()
    cluster = Cluster(jobs, order)
    cluster.run()
    times = sorted(cluster.jct_ms)
    at_99 = times[math.ceil(0.99 * len(times)) - 1]
    parts = sum(times) / len(times), times[len(times) // 2], at_99, cluster.now_ms
    avg_ks, p50_ks, p99_ks, makespan_ks = (part / 1e6 for part in parts)
    took_s = time.perf_counter() - begin_s
    return Figures(order.name, avg_ks, p50_ks, p99_ks, makespan_ks, cluster.starts, cluster.decisions, took_s)


# The claims


class Trial:
    """One trace. Each order runs once, when it is first asked for."""

    def __init__(self, trace: str, folder: Path | None) -> None:
        self.trace = trace
        self.jobs = [Job(job.submit_ms, job.duration_ms, job.devices) for job in read_jobs(file_of(trace, folder))]
        self._found: dict[str, Figures] = {}

    def of(self, order: Order) -> Figures:
        if order.name not in self._found:
            figures = self._found[order.name] = measured(self.jobs, order)
            print(
                f"{self.trace:<16}{order.name:<18}{figures.avg_ks:>10.1f}{figures.p50_ks:>9.1f}{figures.p99_ks:>10.1f}"
                f"{figures.makespan_ks:>11.1f}{figures.starts:>9,}{figures.decisions:>11,}{figures.took_s:>8.1f}", flush=True,
            )  # fmt: skip
        return self._found[order.name]

    def published(self, peer: str) -> float | None:
        """The average, where one is published."""
        found = PUBLISHED.get(self.trace, {}).get(peer)
        return found[0] if found else None


def avg_jct(trial: Trial) -> dict[str, Any]:
    ours, theirs = trial.of(Known("shortest", lambda jobs: shortest(jobs, NUM_NODES * NODE_DEVICES))), trial.of(Known("SRSF", srsf))
    published = trial.published("SRSF")
    most = min(theirs.avg_ks, published) if published else theirs.avg_ks
    return claim("avg_jct_ks", ours.avg_ks, theirs.avg_ks, published, "1,000 s", most)


def blind_vs_tiresias(trial: Trial) -> dict[str, Any]:
    ours, theirs = trial.of(Blind()), trial.of(Tiresias("Tiresias", TIRESIAS))
    hours = {thresholds: "/".join(f"{one // GPU_HOUR}" for one in thresholds) for thresholds in TUNED}
    tuned = [trial.of(Tiresias(f"tuned {shown} h", thresholds)).avg_ks for thresholds, shown in hours.items()]
    published = trial.published("Tiresias")
    found = claim("blind_vs_tiresias", ours.avg_ks / theirs.avg_ks, None, published, "ratio", BLIND_MAX.get(trial.trace, 1.0))
    return {
        **found, "ours_ks": round(ours.avg_ks, 1), "peer_ks": round(theirs.avg_ks, 1),
        "ours_p99_ks": round(ours.p99_ks, 1), "peer_p99_ks": round(theirs.p99_ks, 1),
        "vs_published": published and round(ours.avg_ks / published, 3), "vs_tuned": round(ours.avg_ks / min(tuned), 3),
    }  # fmt: skip


CLAIMS: Final[Mapping[str, Callable[[Trial], dict[str, Any]]]] = {
    "avg_jct_ks": avg_jct,
    "blind_vs_tiresias": blind_vs_tiresias,
}


def claim(name: str, ours: float, theirs: float | None, published: float | None, unit: str, most: float) -> dict[str, Any]:
    return {
        "id": name, "ours": round(ours, 3), "peer": theirs and round(theirs, 3), "ratio": theirs and round(ours / theirs, 3),
        "published": published, "unit": unit, "target": f"ours <= {most:.6g}", "holds": ours <= most,
    }  # fmt: skip


def claims_of(traces: Sequence[str], folder: Path | None, only: str | None) -> Iterator[dict[str, Any]]:
    for name in traces:
        trial = Trial(name, folder)
        for peer, (avg_ks, p99_ks) in PUBLISHED.get(name, {}).items():
            print(f"{name:<16}{peer + ', published':<22}{avg_ks:>6.1f}{'':>9}{p99_ks:>10.1f}")
        for identity, measure in CLAIMS.items():
            if only in (None, identity):
                found = measure(trial)
                yield {**found, "id": identity if len(traces) == 1 else f"{identity}@{name}"}


def conditions() -> dict[str, Any]:
    """What the numbers depend on, besides the arguments: nothing but the code. `load`: runnable processes before the start."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else machine.machine(), "cores": len(os.sched_getaffinity(0)), "card": "none",
        "load": round(os.getloadavg()[0], 2), "versions": {"python": machine.python_version(), "numpy": np.__version__},
        "seeds": [], "start_ms": START_MS, "slower": SLOWER, "review_ms": REVIEW_MS,
    }  # fmt: skip


def main() -> int:
    """Run the claims that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", action="append", help="muri/trace1 and its kin below --trace-dir, or a file; may be repeated")
    parser.add_argument("--trace-dir", type=Path, default=os.environ.get("PHALANX_TRACES"), help="where the traces are")
    parser.add_argument("--only", choices=list(CLAIMS), help="run one claim")
    parser.add_argument("--quick", action="store_true", help=f"{' and '.join(QUICK)} alone, where no --trace is given")
    options = parser.parse_args()
    around = conditions()
    head = f"{'avg, ks':>10}{'p50':>9}{'p99':>10}{'makespan':>11}{'starts':>9}{'decisions':>11}{'s':>8}"
    print(f"{'trace':<16}{'order':<18}{head}")
    try:
        claims = list(claims_of(options.trace or (QUICK if options.quick else TRACES), options.trace_dir, options.only))
    except PhalanxError as error:
        print(error.sentence(), file=sys.stderr)
        return int(error.exit_code)
    print(json.dumps({"benchmark": "jct", "conditions": around, "claims": claims}))
    return 0 if all(one["holds"] for one in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
