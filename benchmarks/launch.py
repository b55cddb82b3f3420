"""How soon a submitted job runs, and what the platform costs while nothing happens.

Usage: python benchmarks/launch.py [--only ID] [--quick]. The last line is one JSON object; the exit code is 1 when a claim
does not hold.

It starts a platform of its own in a temporary home, with CPU slots, and ends it. Each job's rank is `date +%s%N`, so a launch ends
when that program reads the clock: its exec, its loading and its own start are inside. The platform is idle at each submit: no job
is open, and the tracker has taken over what the job before left.

The peer is HyperQueue, whose wheel brings server and worker as threads of this process. Both are warm, both run the same program
with its output in a file, and they take turns. HyperQueue keeps its jobs in memory here, its default; ours are durable before a
submit is answered and before a rank is started.
"""

import argparse
import contextlib
import importlib
import json
import math
import os
import platform as machine
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import psutil

from phalanx.client import Client, connect
from phalanx.storage.workdir import pack

P50_MS_MAX: Final = 150.0
P99_MS_MAX: Final = 500.0
TICK_MS_MAX: Final = 10.0
IDLE_PERCENT_MAX: Final = 3.0
RSS_MB_MAX: Final = 450.0
"""Issue 3, Figures."""

SLURM_MS: Final = 988
RAY_ACTOR_MS: Final = (770, 1136)
"""Published, of other machines, so no peers of ours: Slurm 22.05 from sbatch to running, p50; a fresh Ray actor."""

SLOTS: Final = 2
SETTLE_S: Final = 0.3
"""After a launch, before anybody asks how it went, since a question would be served beside it; and after all is over, before the
next one."""

OPEN: Final = ("pending", "starting", "running", "stopping")
PROBE: Final = ("date", "+%s%N")
TIMEOUT_S: Final = 120.0
DEMO_STEPS: Final = 400
DEMO: Final = f"""
import pathlib, time
from phalanx.core.records import StepRecord
from phalanx.job.sdk import attach
rank = attach()
for step in range(1, {DEMO_STEPS} + 1):
    now = time.time_ns() // 1_000_000
    loss = 8.0 / step
    rank.step(StepRecord(rank=rank.rank, step=step, total_steps={DEMO_STEPS}, loss=loss, loss_hex=loss.hex(), grad_norm=1.0,
        lr=1e-3, tokens=1024, tokens_per_s=1e4, mfu=0.0, started_ms=now - 5, ended_ms=now))
    if step % 50 == 0:
        rank.metric(name="val_loss", value=loss, step=step)
    time.sleep(0.005)
if rank.rank == 0:
    folder = pathlib.Path(rank.job_dir) / "model" / rank.attempt
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{{}}")
    rank.model(step={DEMO_STEPS}, path=str(folder), weights_digest="00" * 32, metrics={{"val_loss": loss}}, lineage={{}})
"""
"""What the demo's two ranks say to the platform, without its training: steps, held-out losses, a model version."""


@dataclass(frozen=True)
class Extent:
    """How much is measured."""

    pairs: int
    commands: int
    idle_s: float
    tick_readings: int


FULL: Final = Extent(pairs=100, commands=20, idle_s=60, tick_readings=5)
QUICK: Final = Extent(pairs=30, commands=5, idle_s=30, tick_readings=1)


class Platform:
    """One `phalanx up` in a home of its own."""

    def __init__(self, home: Path, slots: int = SLOTS) -> None:
        self.home = home
        self._slots = slots
        outer = {name: value for name, value in os.environ.items() if not name.startswith("PHALANX_")}
        self._environ = outer | {"PHALANX_HOME": str(home)}
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """Opened before anything is measured."""
        if self._client is None:
            self._client = connect(self.home)
        return self._client

    def phalanx(self, *words: str) -> str:
        """The command's stdout."""
        command = [str(Path(sys.executable).with_name("phalanx")), *words]
        done = subprocess.run(command, env=self._environ, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
        if done.returncode:
            raise SystemExit(f"phalanx {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def up(self) -> None:
        self.phalanx("up", "--port", "0", "--cpu-slots", str(self._slots))

    def down(self) -> None:
        """Also of what came up by half."""
        if self._client is not None:
            self._client.close()
        self.phalanx("down", "--force")

    def finished(self, job: str) -> str:
        """Rank 0's log once the job has succeeded."""
        view = self.client.wait(job, timeout_s=TIMEOUT_S, poll_s=0.1)
        text = self.client.logs(job).text
        if view.outcome != "succeeded":
            raise SystemExit(f"{job} {view.outcome}: {view.detail}\n{text}")
        return text

    def quiet(self) -> None:
        """Returns a moment after the last job has ended and the tracker has everything."""
        until_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until_s:
            status = self.client.status()
            time.sleep(SETTLE_S)
            if not status.outbox and not any(status.jobs.get(state, 0) for state in OPEN):
                return
        raise SystemExit(f"the platform did not come to rest in {TIMEOUT_S:.0f} s")

    def run_demo(self) -> None:
        """A job like the demo's, and what follows from it: MLflow is loaded from here on."""
        self.finished(self.client.submit(job_of("demo", ("python", "-c", DEMO), gpus=str(SLOTS))).id)
        self.quiet()
        if "tracking" not in self.client.status().processes:
            raise SystemExit("the tracking process does not run after a tracked job")

    def processes(self) -> dict[psutil.Process, str]:
        """Every process of the platform and what it is: those that it names, and their children."""
        names = {pid: name for name, pid in self.client.status().processes.items()}
        parents = [psutil.Process(pid) for pid in names]
        all_of_them = {one for parent in parents for one in (parent, *parent.children(recursive=True))}
        return {one: names.get(one.pid) or _called(one) for one in sorted(all_of_them, key=lambda one: one.pid)}


@contextlib.contextmanager
def running(slots: int = SLOTS) -> Iterator[Platform]:
    with tempfile.TemporaryDirectory(prefix="phalanx-launch-") as folder:
        platform = Platform(Path(folder) / "home", slots)
        try:
            platform.up()
            yield platform
        finally:
            platform.down()


# Launches


def launch_ms(platform: Platform, code: bytes | None = None) -> float:
    """From right before `Client.submit` to the rank's clock."""
    platform.quiet()
    asked_ns = time.time_ns()
    job = platform.client.submit(job_of("launch", PROBE), code)
    time.sleep(SETTLE_S)
    return (int(platform.finished(job.id)) - asked_ns) / 1e6


def command_ms(platform: Platform, file: Path) -> float:
    """From before `phalanx submit` is started to the rank's clock."""
    platform.quiet()
    asked_ns = time.time_ns()
    answer = json.loads(platform.phalanx("submit", str(file), "-o", "json"))
    time.sleep(SETTLE_S)
    return (int(platform.finished(answer["id"])) - asked_ns) / 1e6


class HyperQueue:
    """The peer: a server and one worker with as many cores as ours has slots."""

    def __init__(self, folder: Path) -> None:
        """Raises ImportError when it is not installed."""
        self._job: Any = importlib.import_module("hyperqueue").Job
        cluster: Any = importlib.import_module("hyperqueue.cluster")
        self._folder = folder
        folder.mkdir(parents=True)
        with stdout_is_stderr():  # the server prints a table when it starts
            self._cluster = cluster.LocalCluster(str(folder / "server"), cluster.WorkerConfig(cores=SLOTS))
            self._client = self._cluster.client()
        self._count = 0

    def launch_ms(self) -> float:
        """From right before `Client.submit` to the task's clock."""
        self._count += 1
        out = self._folder / f"{self._count}.out"
        job = self._job(default_workdir=str(self._folder))
        asked_ns = time.time_ns()
        job.program(list(PROBE), stdout=str(out), stderr=str(out.with_suffix(".err")))
        self._client.submit(job)
        time.sleep(SETTLE_S)
        until_s = time.monotonic() + TIMEOUT_S
        while not (out.exists() and out.read_text().endswith("\n")):
            if time.monotonic() > until_s:
                raise SystemExit(f"HyperQueue did not run task {self._count} in {TIMEOUT_S:.0f} s")
            time.sleep(0.05)
        return (int(out.read_text()) - asked_ns) / 1e6

    def close(self) -> None:
        self._cluster.stop()


def peer(folder: Path) -> HyperQueue | None:
    """HyperQueue where it is installed."""
    try:
        return HyperQueue(folder)
    except ImportError:
        print("HyperQueue is not installed, so there is no peer: pip install 'phalanx[bench]', or pip install hyperqueue")
        return None


def launches(platform: Platform, extent: Extent) -> tuple[list[float], list[float]]:
    """Ours and the peer's, in turns, the first of each pair changing; the peer's are empty without it. One pair warms both."""
    queue = peer(platform.home.parent / "hyperqueue")
    ours, theirs = list[float](), list[float]()
    turns: list[tuple[list[float], Callable[[], float]]] = [(ours, lambda: launch_ms(platform))]
    if queue is not None:
        turns.append((theirs, queue.launch_ms))
    try:
        for number in range(extent.pairs + 1):
            for figures, measure in turns if number % 2 else reversed(turns):
                figures.append(measure())
    finally:
        if queue is not None:
            queue.close()
    return ours[1:], theirs[1:]


def submit_to_execve(platform: Platform, extent: Extent) -> list[dict[str, Any]]:
    ours, theirs = launches(platform, extent)
    file = platform.home.parent / "job.yaml"
    file.write_text(json.dumps(job_of("launch", PROBE)))  # JSON is YAML
    code = pack(Path(__file__).parent)
    rows = {
        "Phalanx, from Client.submit": ours,
        "HyperQueue, from Client.submit": theirs,
        "Phalanx, with a packed workdir": [launch_ms(platform, code) for _ in range(extent.commands + 1)][1:],
        "Phalanx, from the start of `phalanx submit`": [command_ms(platform, file) for _ in range(extent.commands + 1)][1:],
    }
    print(f"{'submit to execve, ms':<46}{'jobs':>6}{'min':>9}{'p50':>9}{'p99':>9}{'max':>9}")
    for name, figures in rows.items():
        if figures:
            shown = (min(figures), statistics.median(figures), p99(figures), max(figures))
            print(f"{name:<46}{len(figures):>6}" + "".join(f"{figure:>9.1f}" for figure in shown))
    print(f"published, other machines: Slurm 22.05, sbatch to running, p50 {SLURM_MS} ms; a fresh Ray actor, ", end="")
    print(f"{RAY_ACTOR_MS[0]} to {RAY_ACTOR_MS[1]} ms")
    theirs_p50, theirs_p99 = (statistics.median(theirs), p99(theirs)) if theirs else (None, None)
    return [
        claim("submit_to_execve_p50_ms", statistics.median(ours), theirs_p50, "ms", P50_MS_MAX),
        claim("submit_to_execve_p99_ms", p99(ours), theirs_p99, "ms", P99_MS_MAX),
    ]


# Idleness


def idle_tick(platform: Platform, extent: Extent) -> list[dict[str, Any]]:
    """The server's own word for its newest ticks, asked for once all of them fell into silence."""
    platform.quiet()
    medians, longest = list[float](), list[float]()
    for _ in range(extent.tick_readings):
        time.sleep(TICKS_KEPT_S)
        status = platform.client.status()
        medians.append(status.tick_ms)
        longest.append(status.tick_ms_max)
    jobs, nodes = sum(status.jobs.values()), len(status.nodes)
    print(
        f"idle tick: median {statistics.median(medians):.2f} ms, longest {max(longest):.2f} ms; {nodes} node, {jobs} finished jobs"
    )
    return [claim("idle_tick_ms", statistics.median(medians), None, "ms", TICK_MS_MAX)]


TICKS_KEPT_S: Final = 9.0
"""The server keeps its 8 newest ticks, and an idle one ticks each second."""


def idle_cpu(platform: Platform, extent: Extent) -> list[dict[str, Any]]:
    platform.quiet()
    time.sleep(2.0)
    watched = platform.processes()
    before, start_s = {one: cpu_s(one) for one in watched}, time.monotonic()
    time.sleep(extent.idle_s)
    spent_s, wall_s = {one: cpu_s(one) - before[one] for one in watched}, time.monotonic() - start_s
    shares = ", ".join(f"{watched[one]} {100 * spent / wall_s:.2f}" for one, spent in spent_s.items())
    print(f"idle for {wall_s:.0f} s, percent of one core: {shares}")
    return [claim("idle_cpu_percent", 100 * sum(spent_s.values()) / wall_s, None, "% of one core", IDLE_PERCENT_MAX)]


def _called(process: psutil.Process) -> str:
    return "fork server" if any(word.endswith("/shim.py") for word in process.cmdline()) else "other"


def cpu_s(process: psutil.Process) -> float:
    """User and system time of a process and of the children that it has collected."""
    spent = process.cpu_times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def rss(platform: Platform, _: Extent) -> list[dict[str, Any]]:
    print(f"{'after the demo, MB':<20}{'RSS':>8}{'PSS':>8}")
    total_rss, total_pss = 0.0, 0.0
    for process, name in platform.processes().items():
        memory = process.memory_full_info()
        total_rss, total_pss = total_rss + memory.rss / 1e6, total_pss + memory.pss / 1e6
        print(f"{name:<20}{memory.rss / 1e6:>8.1f}{memory.pss / 1e6:>8.1f}")
    print(f"{'together':<20}{total_rss:>8.1f}{total_pss:>8.1f}")
    return [claim("rss_mb", total_rss, None, "MB", RSS_MB_MAX)]


# The claims


CLAIMS: Final[Mapping[str, Callable[[Platform, Extent], list[dict[str, Any]]]]] = {
    "submit_to_execve_p50_ms": submit_to_execve,
    "submit_to_execve_p99_ms": submit_to_execve,
    "rss_mb": rss,
    "idle_cpu_percent": idle_cpu,
    "idle_tick_ms": idle_tick,
}
"""In the order of measuring; one measurement may give two."""


def claim(name: str, ours: float, theirs: float | None, unit: str, most: float) -> dict[str, Any]:
    return {
        "id": name, "ours": round(ours, 3), "peer": theirs and round(theirs, 3), "ratio": theirs and round(ours / theirs, 2),
        "unit": unit, "target": f"ours <= {most:g}", "holds": ours <= most,
    }  # fmt: skip


def p99(figures: Sequence[float]) -> float:
    """By nearest rank: of fewer than 100 figures the largest."""
    return sorted(figures)[math.ceil(0.99 * len(figures)) - 1]


def conditions() -> dict[str, Any]:
    """What the numbers depend on. `load`: runnable processes before the start; `fsync_ms`: of the disk below the home."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = {name: found for name in ("phalanx", "hyperqueue", "mlflow-skinny") if (found := _version(name))}
    return {
        "cpu": names[0] if names else machine.machine(), "cores": len(os.sched_getaffinity(0)), "card": "none",
        "load": round(os.getloadavg()[0], 2), "fsync_ms": round(fsync_ms(), 3),
        "versions": {"python": machine.python_version(), **versions}, "seeds": [],
    }  # fmt: skip


def fsync_ms(times: int = 21) -> float:
    """Median time that the disk takes to make a small append durable."""
    took_s = []
    with tempfile.NamedTemporaryFile(prefix="phalanx-launch-") as file:
        for _ in range(times):
            os.write(file.fileno(), b"." * 512)
            start_s = time.perf_counter()
            os.fsync(file.fileno())
            took_s.append(time.perf_counter() - start_s)
    return 1000 * statistics.median(took_s)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def job_of(name: str, entrypoint: Sequence[str], gpus: str = "1") -> dict[str, Any]:
    return {"name": name, "entrypoint": list(entrypoint), "resources": {"gpus": gpus}}


@contextlib.contextmanager
def stdout_is_stderr() -> Iterator[None]:
    """Also for what is no Python."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def main() -> int:
    """Run the claims that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(CLAIMS), help="run one claim")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK.pairs} launches instead of {FULL.pairs}, shorter idleness")
    options = parser.parse_args()
    wanted = [options.only] if options.only else list(CLAIMS)
    around = conditions()
    claims: list[dict[str, Any]] = []
    with running() as platform:
        platform.run_demo()
        for measure in dict.fromkeys(CLAIMS[name] for name in wanted):
            claims += measure(platform, QUICK if options.quick else FULL)
    claims = [one for one in claims if one["id"] in wanted]
    print(json.dumps({"benchmark": "launch", "conditions": around, "claims": claims}))
    return 0 if all(one["holds"] for one in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
