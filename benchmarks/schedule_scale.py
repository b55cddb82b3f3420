"""How long a decision takes at full size: 12,500 nodes of 8 GPUs, 2,000 gangs running, 10,000 jobs waiting.

Usage: python benchmarks/schedule_scale.py [--only ID] [--quick] [--seeds N]. The last line is one JSON object; the exit code is 1
when a claim does not hold.

The fleet has three GPU types and labels for domains, racks and blocks; 24 queues in 8 teams, of which some have quotas or limits.
Gangs ask for 1 to 8,192 GPUs; some want one domain or rack, or groups within a domain, or take several types in preference; some
ask for a share of a GPU. Jobs come in sweeps of up to 64 alike. Nearly all devices are held. Plans are carried out until one starts
and ends nothing, 40 at most, so that a snapshot is what a scheduler finds day by day.

`full_p95_ms`: from a fresh Snapshot, of objects that nothing has seen before, to the plan. `small_change_p95_ms`: the plans so far
were carried out; then in turns a job is submitted and a gang ends, and whoever decides keeps a Memory. `smallest_change_p95_ms`:
what would start one waiting job, from a snapshot that was decided before. One thread, bound to one core; Python's garbage collector
runs between decisions, as in the scheduler's process. No other scheduler that decides all of this at once runs in a Python process,
so there is no peer.
"""

import argparse
import functools
import gc
import json
import math
import os
import pickle
import platform as machine
import random
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeVar

from phalanx.core.devices import DeviceRequest, NodeSlice, Placement
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.policy import Booking, Budget, Policy, Queue, Tier
from phalanx.decide.scheduler import (
    JobFacts,
    NodeFacts,
    PendingJob,
    Plan,
    RunningJob,
    Shape,
    Snapshot,
    Start,
    Usage,
    schedule,
)
from phalanx.decide.scheduler.memory import Memory
from phalanx.decide.scheduler.where.fleet import Fleet
from phalanx.decide.scheduler.why import what_if

FULL_MS_MAX: Final = 400.0
SMALL_CHANGE_MS_MAX: Final = 80.0
SMALLEST_CHANGE_MS_MAX: Final = 100.0
RSS_MB_MAX: Final = 1024.0
"""Issue 4, Figures."""

NODES: Final = 12_500
RUNNING: Final = 2_000
PENDING: Final = 10_000
GPUS: Final = 8
MIB: Final = 2**20
GIB: Final = 2**30
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
NOW_MS: Final = 1_800_000_000_000

TYPES: Final = (("H100", 0.6, 80 * GIB), ("A100-80", 0.28, 80 * GIB), ("L40S", 0.12, 48 * GIB))
"""With their share of the nodes, and the memory of each."""

DOMAIN, RACK, BLOCK = 4, 16, 512
"""Nodes in each."""

SIZES: Final = (1, 1, 1, 2, 4, 8, 8, 8, 16, 16, 32, 32, 64, 64, 128, 256, 512, 1024, 2048, 8192)
"""GPUs of a waiting gang."""

SWEEPS: Final = (1, 1, 1, 2, 4, 8, 16, 64)
"""Jobs that are submitted at once."""

SETTLING_MAX: Final = 40
"""Plans that are carried out before anything is measured, at most: until one starts and ends nothing."""

LIMITS_H: Final = (1, 2, 4, 8, 12, 24, 24, 48, 72, 168)
TEAMS: Final = 8
"""With three queues each."""


@dataclass(frozen=True)
class Extent:
    """How much is measured."""

    nodes: int
    running: int
    pending: int
    seeds: int
    repeats: int
    changes: int
    questions: int


FULL: Final = Extent(NODES, RUNNING, PENDING, seeds=5, repeats=5, changes=40, questions=20)
QUICK: Final = Extent(NODES // 10, RUNNING // 10, PENDING // 10, seeds=2, repeats=2, changes=10, questions=5)


Answer = TypeVar("Answer")

# The fleet and the line


class World:
    """All of it, from a seed. Each `snapshot` is of other, equal objects."""

    def __init__(self, seed: int, extent: Extent) -> None:
        draw = random.Random(seed)
        running, nodes = filled(idle_fleet(extent.nodes), extent.running, draw)
        usage = {queue: Usage(decayed=draw.random() * 1e15, spent_ms=draw.randrange(10**12)) for queue in queue_names()}
        snapshot = Snapshot(NOW_MS, nodes, running, waiting_jobs(extent.pending, draw), policy(extent.nodes * GPUS), usage)
        self._bytes = pickle.dumps(settled(snapshot))

    def snapshot(self) -> Snapshot:
        found: Snapshot = pickle.loads(self._bytes)
        return found


def settled(snapshot: Snapshot) -> Snapshot:
    """After what starts, and who is ended for others, at first sight: as a scheduler finds it day by day."""
    now_ms = snapshot.now_ms
    for _ in range(SETTLING_MAX):
        plan = schedule(snapshot)
        if not plan.claims and not any(isinstance(one, Start) for one in plan.decisions):
            return snapshot
        now_ms += MINUTE_MS
        snapshot = carried_out(snapshot, plan, now_ms)
    print(f"after {SETTLING_MAX} plans there are still {len(plan.evictions)} evictions in one")
    return snapshot


def idle_fleet(num_nodes: int) -> list[NodeFacts]:
    bounds = [(sum(share for _, share, _ in TYPES[: place + 1]), kind, memory) for place, (kind, _, memory) in enumerate(TYPES)]
    nodes = []
    for number in range(num_nodes):
        kind, memory = next((kind, memory) for bound, kind, memory in bounds if number < bound * num_nodes)
        labels = {"domain": f"d{number // DOMAIN}", "rack": f"r{number // RACK}", "block": f"b{number // BLOCK}"}
        nodes.append(
            NodeFacts(
                node=NodeId(f"node-{number:05d}"),
                devices=tuple((index, kind) for index in range(GPUS)),
                free=tuple(range(GPUS)),
                cpus=192.0,
                free_cpus=192.0,
                memory_bytes=2048 * GIB,
                free_memory_bytes=2048 * GIB,
                schedulable=number % 250 != 17,
                features=frozenset({"image", "lock", "secrets", "lease"}),
                device_memory_bytes=memory,
                labels=labels,
                price=3.0,
            )
        )
    return nodes


def filled(fleet: list[NodeFacts], num_gangs: int, draw: random.Random) -> tuple[tuple[RunningJob, ...], tuple[NodeFacts, ...]]:
    """Gangs on consecutive nodes of one type; small ones share nodes, and leave holes."""
    running, used = list[RunningJob](), Counter[int]()
    open_rows = [row for row, node in enumerate(fleet) if node.schedulable]
    place = 0
    for number, num_nodes in enumerate(gang_sizes(num_gangs, int(0.96 * len(open_rows)), draw)):
        count = GPUS if num_nodes > 1 else draw.choice((1, 2, 4, 8, 8, 8))
        while (
            used[open_rows[place]] + count > GPUS or len({kind_of(fleet[row]) for row in open_rows[place : place + num_nodes]}) > 1
        ):
            place += 1
        rows = open_rows[place : place + num_nodes]
        running.append(running_gang(number, fleet, rows, count, used, draw))
        place += num_nodes - 1
    nodes = [
        replace(
            node,
            free=tuple(range(used[row], GPUS)),
            free_cpus=192.0 - 16.0 * used[row],
            free_memory_bytes=(2048 - 128 * used[row]) * GIB,
        )
        for row, node in enumerate(fleet)
    ]
    return tuple(running), tuple(nodes)


def gang_sizes(num_gangs: int, num_nodes: int, draw: random.Random) -> list[int]:
    """In nodes: most are small, a few very large, together `num_nodes`."""
    sizes = [min(1024, int(draw.paretovariate(0.75))) for _ in range(num_gangs)]
    while sum(sizes) > num_nodes:
        largest = max(range(num_gangs), key=sizes.__getitem__)
        sizes[largest] = max(1, sizes[largest] // 2, sizes[largest] - (sum(sizes) - num_nodes))
    while sum(sizes) < num_nodes:
        sizes[draw.randrange(num_gangs)] += min(8, num_nodes - sum(sizes))
    return sizes


def kind_of(node: NodeFacts) -> str:
    return node.devices[0][1]


def running_gang(
    number: int, fleet: list[NodeFacts], rows: Sequence[int], count: int, used: Counter[int], draw: random.Random
) -> RunningJob:
    kind = kind_of(fleet[rows[0]])
    slices = tuple(NodeSlice(fleet[row].node, tuple(range(used[row], used[row] + count))) for row in rows)
    for row in rows:
        used[row] = used[row] + count
    facts = job_facts(
        f"run-{number}",
        number,
        Shape(DeviceRequest((kind,), count), len(rows), cpus=16.0 * count, memory_bytes=128 * GIB * count),
        draw,
    )
    placed_ms = NOW_MS - draw.randrange(MINUTE_MS, 20 * HOUR_MS)
    saved_ms = max(placed_ms, NOW_MS - draw.randrange(30 * MINUTE_MS))
    return RunningJob(facts, AttemptId(f"run-{number}.1"), Placement(slices), placed_ms, saved_ms)


def waiting_jobs(num_jobs: int, draw: random.Random) -> tuple[PendingJob, ...]:
    """Submitted in sweeps of jobs alike, as people do."""
    found = list[PendingJob]()
    while len(found) < num_jobs:
        sequence = 10_000 + len(found)
        first = job_facts(f"job-{len(found)}", sequence, waiting_shape(draw), draw)
        for number in range(min(num_jobs - len(found), draw.choice(SWEEPS))):
            facts = replace(first, job=JobId(f"job-{len(found)}"), sequence=sequence + number, shape=replace(first.shape))
            found.append(PendingJob(facts))
    return tuple(found)


def waiting_shape(draw: random.Random) -> Shape:
    kinds = [kind for kind, _, _ in TYPES]
    types = draw.choice([(kinds[0],), (kinds[0],), (kinds[0], kinds[1]), (kinds[1],), (kinds[2],), ()])
    if draw.random() < 0.05:
        return Shape(DeviceRequest(types, 1, draw.choice((100, 250, 500))), cpus=4.0, memory_bytes=32 * GIB)
    gpus = draw.choice(SIZES)
    count, num_nodes = min(gpus, GPUS), max(1, gpus // GPUS)
    within: Tier | None = draw.choice(("domain", "rack", None, None)) if 1 < num_nodes <= DOMAIN else None
    group = DOMAIN if num_nodes >= 16 and draw.random() < 0.2 else 0
    least = num_nodes // 2 if num_nodes > 1 and draw.random() < 0.1 else 0
    return Shape(
        DeviceRequest(types, count), num_nodes, min_nodes=least, cpus=16.0 * count, memory_bytes=128 * GIB * count,
        within=within, group=group if not least else 0,
    )  # fmt: skip


def job_facts(name: str, sequence: int, shape: Shape, draw: random.Random) -> JobFacts:
    return JobFacts(
        JobId(name),
        shape,
        queue=draw.choice(queue_names()),
        priority=draw.choice((0, 50, 50, 50, 50, 50, 75)),
        submitted_ms=NOW_MS - draw.randrange(24 * HOUR_MS),
        sequence=sequence,
        user=f"user-{draw.randrange(300)}",
        limit_ms=draw.choice(LIMITS_H) * HOUR_MS if draw.random() < 0.9 else None,
        preemptible=draw.random() < 0.9,
    )


def queue_names() -> list[str]:
    return [f"team-{team}-{name}" for team in range(TEAMS) for name in ("train", "tune", "dev")]


def policy(num_devices: int) -> Policy:
    """Teams with quotas of two types, a limit for some, a budget for one; a booking and spares."""
    queues: dict[str, Queue] = {}
    for team in range(TEAMS):
        part = num_devices // TEAMS
        quota = {"H100": round(part * 0.5), "A100-80": round(part * 0.2)}
        budget = Budget(gpu_hours=10.0 * num_devices) if team == 0 else None
        queues[f"team-{team}"] = Queue(weight=1.0 + team % 3, quota=quota, budget=budget)
        queues[f"team-{team}-train"] = Queue(parent=f"team-{team}", weight=3.0)
        queues[f"team-{team}-tune"] = Queue(parent=f"team-{team}", limit={"*": part})
        queues[f"team-{team}-dev"] = Queue(parent=f"team-{team}", limit={"*": part // 8}, borrow=False, quota={"H100": part // 16})
    booking = Booking(queue="team-1", devices="H100:64", start="2027-01-15T12:00Z", end="2027-01-16T12:00Z")
    return Policy(queues=queues, spares={"H100": 4}, bookings={"demo": booking})


# Carrying out plans


def carried_out(snapshot: Snapshot, plan: Plan, now_ms: int) -> Snapshot:
    """What the control plane would see a moment later: started gangs run, evicted ones have let go and wait, claims stand."""
    evicted = {one.job: one for one in plan.evictions}
    claims = {one.job: one.placement for one in plan.claims}
    claims |= {one.job: one.keeps for one in plan.evictions if one.keeps is not None}
    started = {one.job: one.placement for one in plan.decisions if isinstance(one, Start)}
    ended = [gang for gang in snapshot.running if gang.facts.job in evicted]
    running = [gang for gang in snapshot.running if gang.facts.job not in evicted]
    pending = [PendingJob(gang.facts, since_ms=now_ms, evictions=gang.evictions + 1) for gang in ended]
    gangs = [
        RunningJob(job.facts, AttemptId(f"{job.facts.job}.1"), started[job.facts.job], now_ms)
        for job in snapshot.pending
        if job.facts.job in started
    ]
    pending += [job for job in snapshot.pending if job.facts.job not in started]
    pending = [replace(job, claim=claims[job.facts.job]) if job.facts.job in claims else job for job in pending]
    nodes = changed(snapshot.nodes, [(gang.facts.shape, gang.placement, 1) for gang in ended])
    nodes = changed(nodes, [(gang.facts.shape, gang.placement, -1) for gang in gangs])
    return replace(snapshot, now_ms=now_ms, nodes=nodes, running=(*running, *gangs), pending=tuple(pending))


def changed(nodes: tuple[NodeFacts, ...], moves: Sequence[tuple[Shape, Placement, int]]) -> tuple[NodeFacts, ...]:
    """Nodes after gangs let go of devices (1) or took them (-1). Those that nothing happened to stay the same objects."""
    fleet, touched = Fleet.of(nodes), set[str]()
    for shape, placement, sign in moves:
        touched.update(part.node for part in placement.slices)
        if sign > 0:
            fleet.give_back(shape, placement)
        elif fleet.hold(shape, placement) != placement:
            raise SystemExit(f"{placement} was given away and is not free")
    return tuple(fleet.node(fleet.ground.row[node.node]) if node.node in touched else node for node in nodes)


# The measurements


def full_ms(extent: Extent) -> list[float]:
    """Of fresh snapshots."""
    figures = []
    for seed in range(extent.seeds):
        world = World(seed, extent)
        for _ in range(extent.repeats):
            snapshot = world.snapshot()
            took_ms, plan = timed(functools.partial(schedule, snapshot))
            figures.append(took_ms)
        print(f"seed {seed}: {told(snapshot, plan)}; last {figures[-1]:.1f} ms")
    return figures


def small_change_ms(extent: Extent) -> list[float]:
    """Of snapshots that differ from the one before by one job that was submitted, or one gang that ended."""
    figures = []
    for seed in range(extent.seeds):
        draw, memory, now_ms = random.Random(seed), Memory(), NOW_MS
        snapshot = World(seed, extent).snapshot()
        schedule(snapshot, memory)
        for number in range(extent.changes):
            snapshot = one_job_more(snapshot, number, draw) if number % 2 else one_gang_less(snapshot, draw)
            took_ms, plan = timed(functools.partial(schedule, snapshot, memory))
            figures.append(took_ms)
            now_ms += 1_000
            snapshot = carried_out(snapshot, plan, now_ms)
        if schedule(snapshot, memory) != schedule(snapshot):
            raise SystemExit("a decision that remembers is another one")
        print(f"seed {seed}, after {extent.changes} changes: {told(snapshot, plan)}; last {figures[-1]:.1f} ms")
    return figures


def smallest_change_ms(extent: Extent) -> list[float]:
    """What would start one waiting job now, from a saved snapshot, for whoever has decided it before."""
    figures, found = list[float](), 0
    for seed in range(extent.seeds):
        draw, memory = random.Random(seed), Memory()
        snapshot = World(seed, extent).snapshot()
        schedule(snapshot, memory)
        for job in draw.sample(snapshot.pending, extent.questions):
            took_ms, changes = timed(functools.partial(what_if.changes, snapshot, job.facts.job, memory))
            figures.append(took_ms)
            found += bool(changes)
    print(f"{found} of {len(figures)} jobs would start with a change")
    return figures


def one_job_more(snapshot: Snapshot, number: int, draw: random.Random) -> Snapshot:
    job = PendingJob(job_facts(f"new-{number}", 10**6 + number, waiting_shape(draw), draw))
    return replace(snapshot, pending=(*snapshot.pending, replace(job, facts=replace(job.facts, submitted_ms=snapshot.now_ms))))


def one_gang_less(snapshot: Snapshot, draw: random.Random) -> Snapshot:
    gang = draw.choice(snapshot.running)
    nodes = changed(snapshot.nodes, [(gang.facts.shape, gang.placement, 1)])
    return replace(snapshot, nodes=nodes, running=tuple(one for one in snapshot.running if one is not gang))


def told(snapshot: Snapshot, plan: Plan) -> str:
    busy = sum(gang.placement.world_size for gang in snapshot.running)
    starts = sum(isinstance(one, Start) for one in plan.decisions)
    return (
        f"{len(snapshot.nodes)} nodes, {len(snapshot.running)} gangs on {busy} GPUs, {len(snapshot.pending)} waiting: "
        f"{starts} start, {len(plan.evictions)} evictions, {len(plan.reservations)} reservations"
    )


def timed(decide: Callable[[], Answer]) -> tuple[float, Answer]:
    gc.collect()
    gc.disable()
    start_s = time.perf_counter()
    answer = decide()
    took_ms = 1000 * (time.perf_counter() - start_s)
    gc.enable()
    return took_ms, answer


# The claims


MEASURED: Final[Mapping[str, tuple[Callable[[Extent], list[float]], float]]] = {
    "full_p95_ms": (full_ms, FULL_MS_MAX),
    "small_change_p95_ms": (small_change_ms, SMALL_CHANGE_MS_MAX),
    "smallest_change_p95_ms": (smallest_change_ms, SMALLEST_CHANGE_MS_MAX),
}


def claims(wanted: Sequence[str], extent: Extent) -> Iterator[dict[str, Any]]:
    for name, (measure, most) in MEASURED.items():
        if name in wanted:
            figures = measure(extent)
            shown = (min(figures), statistics.median(figures), p95(figures), max(figures))
            print(f"{name}: {len(figures)} decisions, " + ", ".join(f"{figure:.1f}" for figure in shown) + " (min, p50, p95, max)")
            yield claim(name, p95(figures), "ms", most)
    if "peak_rss_mb" in wanted:
        if len(wanted) == 1:
            full_ms(replace(extent, seeds=1, repeats=1))
        yield claim("peak_rss_mb", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MB", RSS_MB_MAX)


CLAIMS: Final = (*MEASURED, "peak_rss_mb")


def claim(name: str, ours: float, unit: str, most: float) -> dict[str, Any]:
    return {
        "id": name, "ours": round(ours, 1), "peer": None, "ratio": None, "unit": unit,
        "target": f"ours <= {most:g}", "holds": ours <= most,
    }  # fmt: skip


def p95(figures: Sequence[float]) -> float:
    """By nearest rank."""
    return sorted(figures)[math.ceil(0.95 * len(figures)) - 1]


def conditions(extent: Extent) -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = {"python": machine.python_version(), "phalanx": version("phalanx"), "numpy": version("numpy")}
    return {
        "cpu": names[0] if names else machine.machine(), "cores": 1, "card": "none", "load": round(os.getloadavg()[0], 2),
        "versions": versions, "seeds": list(range(extent.seeds)), "nodes": extent.nodes, "running": extent.running,
        "pending": extent.pending,
    }  # fmt: skip


def main() -> int:
    """Run the claims that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CLAIMS, help="run one claim")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size, so that the figures say little")
    parser.add_argument("--seeds", type=int, help=f"fleets and lines to try; {FULL.seeds} unless told")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    extent = QUICK if options.quick else FULL
    extent = replace(extent, seeds=options.seeds or extent.seeds)
    around = conditions(extent)
    found = list(claims([options.only] if options.only else CLAIMS, extent))
    print(json.dumps({"benchmark": "schedule_scale", "conditions": around, "claims": found}))
    return 0 if all(one["holds"] for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
