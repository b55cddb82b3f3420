"""What a control plane for many teams bears: jobs a second, reads over many jobs, many nodes and readers at once, floods of logs.

Usage: python benchmarks/control_plane.py [--only ID] [--quick] [--tiny]. The last line is one JSON object; the exit code is 1
when a claim does not hold. Real processes on this machine, which clients and simulated nodes share with the platform.

`jobs_per_s`: 1,000 jobs of `/bin/true`, one array, on one node of CPU slots: from right before the submit until all are finished,
each with its exit record on disk before that is told. The peer is HyperQueue, whose wheel brings server and worker: 1,000 tasks
of one job, kept in memory. Published, of other machines: Slurm 28 jobs/s; Ray through resident agents 340 to 398 tasks/s.

`read_p95_ms`: with 100,000 finished and 10,000 waiting jobs, the slowest p95 of `ls`, `describe`, `why` and `status`, one reader
after another, while jobs are submitted and cancelled, so that decisions go on; how long ticks take is told. The jobs are copies
of two that ran.

`api_p99_ms`: of the same reads by 200 clients, each with a pause of two seconds, beside 1,000 nodes on WebSockets that renew
their leases every 5 s. `missed_heartbeats`: renewals not answered before the next was due, and nodes that the control plane took
for silent.

`log_bytes_lost`: a rank prints 50 MB/s for 18 s, below the documented limit of 1 GiB; bytes that the journal has not, once the
job is finished. (That a log says where it was cut is for the tests.) `flood_p99_ms`: reads meanwhile.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import launch  # type: ignore[import-not-found]  # beside this file, where a script's imports are looked for first
from parts.many_jobs import multiply  # type: ignore[import-not-found]

from phalanx.core.ids import AttemptId
from phalanx.record.telemetry.journal import attempt_folder

PARTS: Final = Path(__file__).parent / "parts"
JOBS_PER_S_MIN: Final = 150
READ_MS_MAX: Final = 100.0
API_MS_MAX: Final = 250.0
"""Issue 8, Figures."""
SLOTS: Final = 64
"""Of a node of two cores: `/bin/true` waits more than it computes."""
PUBLISHED: Final = {"slurm_jobs_per_s": 28, "ray_tasks_per_s": [340, 398]}
LIMIT_S: Final = 600.0
TOKENS: Final = 10
"""Of the readers: one token may ask a hundred times a second."""

FLOOD: Final = """
import os, time
block, each_s, start_s = (b"x" * 99 + b"\\n") * 10_000, 1e6 / RATE, time.monotonic()
for number in range(BLOCKS):
    os.write(1, block)
    time.sleep(max(0, start_s + (number + 1) * each_s - time.monotonic()))
"""
"""What prints so many megabytes at so many bytes a second."""
MEGABYTE: Final = 1_000_000

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is measured."""

    jobs: int
    finished: int
    waiting: int
    reads: int
    nodes: int
    clients: int
    busy_s: float
    log_mb: int


FULL: Final = Extent(jobs=1000, finished=100_000, waiting=10_000, reads=100, nodes=1000, clients=200, busy_s=60, log_mb=900)
TINY: Final = Extent(jobs=5, finished=20, waiting=5, reads=3, nodes=5, clients=3, busy_s=2, log_mb=3)
QUICK: Final = Extent(jobs=200, finished=10_000, waiting=1_000, reads=40, nodes=300, clients=60, busy_s=20, log_mb=250)


def p_of(share: float, figures: Sequence[float]) -> float:
    """By nearest rank."""
    ordered = sorted(figures)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


# Jobs


def jobs(extent: Extent) -> list[Answer]:
    with launch.running(SLOTS) as platform:
        first = platform.client.submit(launch.job_of("true", ("/bin/true",)))
        platform.finished(first.id)
        start_s = time.monotonic()
        platform.client.submit({**launch.job_of("true", ("/bin/true",)), "array": {"count": extent.jobs}})
        while platform.client.status().jobs.get("succeeded", 0) <= extent.jobs:
            if time.monotonic() - start_s > LIMIT_S:
                raise SystemExit(f"{extent.jobs} jobs were not finished in {LIMIT_S:.0f} s: {platform.client.status().jobs}")
            time.sleep(0.1)
        ours = extent.jobs / (time.monotonic() - start_s)
    peer = hyperqueue(extent.jobs)
    print(f"{extent.jobs} jobs of /bin/true: {ours:.1f}/s; HyperQueue, in memory: {peer and round(peer, 1)}/s")
    return [claim("jobs_per_s", ours, peer, "jobs/s", ours >= JOBS_PER_S_MIN, f"ours >= {JOBS_PER_S_MIN}", published=PUBLISHED)]


def hyperqueue(count: int) -> float | None:
    """Tasks a second; None where it is not installed."""
    with tempfile.TemporaryDirectory(prefix="phalanx-hq-") as folder:
        try:
            import hyperqueue as api  # type: ignore[import-not-found, unused-ignore]
            from hyperqueue.cluster import LocalCluster, WorkerConfig  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            return None
        with launch.stdout_is_stderr():
            cluster = LocalCluster(f"{folder}/server", WorkerConfig(cores=SLOTS))
            client = cluster.client()
        try:
            job = api.Job(default_workdir=folder)
            for number in range(count):
                job.program(["/bin/true"], stdout=f"{folder}/{number}.out", stderr=f"{folder}/{number}.err")
            start_s = time.monotonic()
            client.wait_for_jobs([client.submit(job)])
            return count / (time.monotonic() - start_s)
        finally:
            cluster.stop()


# Reads over many jobs


@contextlib.contextmanager
def crowded(extent: Extent) -> Iterator[tuple[Any, str, str]]:
    """A platform with many jobs; ids of a finished one and of one that waits."""
    with tempfile.TemporaryDirectory(prefix="phalanx-crowded-") as folder:
        platform = launch.Platform(Path(folder) / "home", 4)
        try:
            platform.up()
            done = platform.client.submit(launch.job_of("old", ("/bin/true",)))
            platform.finished(done.id)
            platform.client.submit(launch.job_of("holds", ("sleep", "100000"), gpus="4"))
            waits = platform.client.submit(launch.job_of("new", ("/bin/true",)))
            platform.client.close()
            platform.down()
            multiply(platform.home, {done.id: extent.finished, waits.id: extent.waiting})
            platform = launch.Platform(platform.home, 4)
            start_s = time.monotonic()
            platform.up()
            print(f"up in {time.monotonic() - start_s:.1f} s with {extent.finished} finished and {extent.waiting} waiting jobs")
            yield platform, done.id, waits.id
        finally:
            platform.down()


def reads(extent: Extent) -> list[Answer]:
    with crowded(extent) as (platform, done, waits):
        client = platform.client
        asked: dict[str, Callable[[], object]] = {
            "ls": client.jobs, "describe": lambda: client.job(done), "describe_waiting": lambda: client.job(waits),
            "why": lambda: client.why(waits), "status": client.status,
        }  # fmt: skip
        with changing(platform) as ticks:
            took = {name: [_ms(ask) for _ in range(extent.reads)] for name, ask in asked.items()}
        memory = {name: round(one.memory_info().rss / 1e6) for one, name in platform.processes().items()}
    p95 = {name: round(p_of(0.95, figures), 1) for name, figures in took.items()}
    medians = {name: round(p_of(0.5, figures), 1) for name, figures in took.items()}
    print(f"reads, ms: p95 {p95}, median {medians}; ticks of {p_of(0.5, ticks):.0f} ms; memory, MB {memory}")
    worst = max(p95.values())
    more = {"p95_ms": p95, "median_ms": medians, "tick_ms": round(p_of(0.5, ticks)), "rss_mb": memory}
    return [claim("read_p95_ms", worst, None, "ms", worst <= READ_MS_MAX, f"ours <= {READ_MS_MAX:g}", **more)]


def _ms(ask: Callable[[], object]) -> float:
    start_s = time.monotonic()
    ask()
    return 1000 * (time.monotonic() - start_s)


@contextlib.contextmanager
def changing(platform: Any) -> Iterator[list[float]]:
    """Jobs come and go meanwhile, each of which begins a decision. How long ticks took, in ms."""
    ticks: list[float] = []
    over = threading.Event()

    def change() -> None:
        with launch.connect(platform.home) as client:
            while not over.wait(0.2):
                job = client.submit(launch.job_of("comes", ("/bin/true",)))
                ticks.append(client.status().tick_ms)
                client.cancel(job.id)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield ticks
    finally:
        over.set()
        thread.join()


# Many nodes and readers


def fleet(extent: Extent) -> list[Answer]:
    with launch.running(4) as platform:
        nodes = _nodes(platform, extent)
        assert nodes.stdout is not None
        if "all are up" not in (first := nodes.stdout.readline()):
            raise SystemExit(f"the nodes did not come up: {first}{nodes.communicate()[0]}")
        took = read_by_many(platform, extent, ["/api/v1/jobs", "/api/v1/nodes", "/api/v1/status", "/api/v1/queues"])
        answer = json.loads(nodes.communicate(timeout=LIMIT_S)[0].splitlines()[-1])
        away = len(platform.client.events(kind="node_away"))
    p99 = {path: round(p_of(0.99, figures), 1) for path, figures in took.items()}
    every = [one for figures in took.values() for one in figures]
    worst = p_of(0.99, every)
    print(f"{extent.nodes} nodes, {extent.clients} clients: {len(every)} reads, p99 {worst:.0f} ms {p99}; {answer}, {away} away")
    return [
        claim("api_p99_ms", worst, None, "ms", worst <= API_MS_MAX, f"ours <= {API_MS_MAX:g}", p99_ms=p99, reads=len(every)),
        claim("missed_heartbeats", answer["missed"] + away, None, "renewals", not answer["missed"] + away, "ours == 0", **answer),
    ]


def _nodes(platform: Any, extent: Extent) -> "subprocess.Popen[str]":
    words = [sys.executable, str(PARTS / "many_nodes.py"), platform.client.url, str(extent.nodes), str(extent.busy_s * 4 / 3)]
    return _given((platform.home / "node-token").read_text(), words)


def read_by_many(platform: Any, extent: Extent, paths: Sequence[str]) -> Mapping[str, list[float]]:
    """By path, in ms."""
    words = [sys.executable, str(PARTS / "readers.py"), platform.client.url, str(extent.clients), str(extent.busy_s), "2", *paths]
    people = platform.client.people
    people.add_user("reader", platform=True)
    tokens = [people.make_token(f"reader-{number}", user="reader", scope="read").token for number in range(TOKENS)]
    out, _ = _given(" ".join(tokens), words).communicate(timeout=LIMIT_S)
    found: Mapping[str, list[float]] = json.loads(out.splitlines()[-1])
    return found


def _given(token: str, words: Sequence[str]) -> "subprocess.Popen[str]":
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write(token.strip() + "\n")
    process.stdin.flush()
    return process


# Floods of logs


def flood(extent: Extent) -> list[Answer]:
    with launch.running(4) as platform:
        script = FLOOD.replace("RATE", str(50 * MEGABYTE)).replace("BLOCKS", str(extent.log_mb))
        job = platform.client.submit(launch.job_of("flood", (sys.executable, "-c", script)))
        took = read_by_many(platform, extent, ["/api/v1/jobs", "/api/v1/nodes", f"/api/v1/jobs/{job.id}"])
        platform.client.wait(job.id, timeout_s=LIMIT_S, poll_s=0.5)
        lost = extent.log_mb * MEGABYTE - _journaled(platform.home, f"{job.id}.1")
    every = [one for figures in took.values() for one in figures]
    worst = p_of(0.99, every)
    print(f"{extent.log_mb} MB of a log at 50 MB/s: {lost} bytes lost; {len(every)} reads, p99 {worst:.0f} ms")
    return [
        claim("log_bytes_lost", lost, None, "bytes", lost == 0, "ours == 0"),
        claim("flood_p99_ms", worst, None, "ms", worst <= API_MS_MAX, f"ours <= {API_MS_MAX:g}", reads=len(every)),
    ]


def _journaled(home: Path, attempt: str) -> int:
    return sum(file.stat().st_size for file in attempt_folder(home / "journal", AttemptId(attempt)).glob("*log*"))


CLAIMS: Final[Mapping[str, Callable[[Extent], list[Answer]]]] = {
    "jobs_per_s": jobs,
    "read_p95_ms": reads,
    "api_p99_ms": fleet,
    "missed_heartbeats": fleet,
    "log_bytes_lost": flood,
    "flood_p99_ms": flood,
}


def claim(name: str, ours: float, peer: float | None, unit: str, holds: bool, target: str, **more: Any) -> Answer:
    return {
        "id": name, "ours": round(ours, 2), "peer": peer and round(peer, 2), "ratio": peer and round(ours / peer, 3), "unit": unit,
        "target": target, "holds": holds, **more,
    }  # fmt: skip


def main() -> int:
    """Run the claims that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(CLAIMS), help="run one claim")
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs and less time")
    parser.add_argument("--tiny", action="store_true", help="a few of everything, which shows that it runs and no more")
    options = parser.parse_args()
    wanted = [options.only] if options.only else list(CLAIMS)
    around = launch.conditions()
    claims: list[Answer] = []
    for measure in dict.fromkeys(CLAIMS[name] for name in wanted):
        claims += measure(TINY if options.tiny else QUICK if options.quick else FULL)
    claims = [one for one in claims if one["id"] in wanted]
    print(json.dumps({"benchmark": "control_plane", "conditions": around, "claims": claims}))
    return 0 if all(one["holds"] for one in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
