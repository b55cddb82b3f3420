"""What a gang of two loses when the agent of its node is killed: part of recovery.py, which runs it as `--only agent`.

Usage: python benchmarks/recovery_agent.py [--quick]. A whole platform in a home of its own trains the demo's model; `phalanx chaos
kill-agent` has the agent end by SIGKILL, and another follows at once. The peer is torchrun: its agent is killed, and torchrun is
started again as soon as its workers are gone, which resume from their checkpoint of every tenth step.
"""

import argparse
import contextlib
import itertools
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import recovery  # type: ignore[import-not-found]  # beside this file, where a script's imports are looked for first
from parts.gang import free_port  # type: ignore[import-not-found]

from phalanx.client import Client, connect

KILLS, KILLS_QUICK = 5, 1
STEPS_LOST_MAX = 0
GAP_S_MAX, BACK_S_MAX = 5.0, 5.0
"""An agent starts in a second or two on a busy machine of two cores; records that ranks write meanwhile come in one go after it."""
POLL_S = 0.02
PEER_ALIVE_S = 5.0
"""So long orphaned workers are watched."""

Answer = dict[str, Any]


def agent(options: argparse.Namespace) -> list[Answer]:
    """SIGKILL of the agent, again and again, while the ranks go on."""
    gaps, backs = [], []
    with training(options) as (client, job):
        before = pids(client, job)
        for _ in range(KILLS_QUICK if options.quick else KILLS):
            gap_s, back_s = killed(client, job)
            gaps.append(gap_s)
            backs.append(back_s)
        unnoticed = pids(client, job) == before and len(client.job(job).attempts) == 1
        lost = repeated(client, job)
    peer, peer_s = torchrun(options)
    print(f"kill of the agent: {len(gaps)} times, {lost} steps lost, ranks kept their processes: {unnoticed}")
    print(f"longest gap at the control plane: {recovery.show(gaps)} s; back after {recovery.show(backs)} s")
    print(f"torchrun: {peer}; {peer_s:.2f} s to the next step by a restart")
    worst, back = max(gaps), statistics.median(backs)
    return [
        recovery.claim("agent_steps_lost", lost, None, STEPS_LOST_MAX, unit="steps", peer_workers=peer),
        recovery.claim("agent_gap_s", worst, peer_s, GAP_S_MAX, seconds=recovery.rounded(gaps)),
        recovery.claim("agent_back_s", back, None, BACK_S_MAX, seconds=recovery.rounded(backs)),
        recovery.yes("agent_unnoticed", unnoticed),
    ]


# Ours


@contextmanager
def training(options: argparse.Namespace) -> Iterator[tuple[Client, str]]:
    """A platform with the job under way."""
    home = Path(options.folder) / "home"
    phalanx(home, "up", "--port", "0", "--cpu-slots", str(recovery.RANKS))
    try:
        with connect(home) as client:
            spec = {
                "name": "agent", "kind": "train", "recipe": "llama", "resources": {"gpus": str(recovery.RANKS)}, "chaos": True,
                "data": {"path": str(Path(options.folder) / "data")}, "checkpoint": {"every": 0},
                "hyperparameters": recovery.MODEL | {"steps": 1_000_000},
            }  # fmt: skip
            job = client.submit(spec, None, key="once").id
            wait(lambda: step(client, job) >= recovery.BETWEEN)
            yield client, job
    finally:
        phalanx(home, "down", "--force")


def killed(client: Client, job: str) -> tuple[float, float]:
    """Seconds: the longest between two steps' arrivals at the control plane, and from the kill to the next agent's Hello."""
    begin, old = step(client, job), client.status().processes["agent"]
    wait(lambda: step(client, job) >= begin + recovery.BETWEEN)
    arrivals, over = [time.time()], threading.Event()
    watching = threading.Thread(target=watch, args=(client, job, arrivals, over))
    watching.start()
    try:
        number = client.chaos(job, "kill-agent").attempts[-1].faults[-1].number
        wait(lambda: client.status().processes.get("agent", old) != old and client.job(job).attempts[-1].faults[number - 1].met)
        back = time.time()
        seen = len(arrivals)
        wait(lambda: len(arrivals) >= seen + recovery.BETWEEN)
    finally:
        over.set()
        watching.join()
    at_s = next(e.body["fact"]["at_ms"] for e in client.events(job) if e.body.get("fact", {}).get("number") == number) / 1000
    return max(later - sooner for sooner, later in itertools.pairwise(arrivals)), back - at_s


def watch(client: Client, job: str, arrivals: list[float], over: threading.Event) -> None:
    newest = 0
    while not over.wait(POLL_S):
        with contextlib.suppress(OSError):
            now = step(client, job)
            if now > newest:
                arrivals.append(time.time())
                newest = now


def step(client: Client, job: str) -> int:
    view = client.job(job)
    if view.state == "finished":
        raise SystemExit(f"{job} is over: {view.detail}\n{client.logs(job).text[-2000:]}")
    return view.progress.step if view.progress else 0


def pids(client: Client, job: str) -> list[int | None]:
    return [rank.pid for rank in client.job(job).attempts[-1].ranks]


def repeated(client: Client, job: str) -> int:
    """Steps that some rank made more than once."""
    page, made = client.steps(job), Counter[tuple[int, int]]()
    while page.steps or page.metrics:
        made.update((record.rank, record.step) for record in page.steps)
        page = client.steps(job, page.next)
    return sum(count - 1 for count in made.values())


def wait(there: Any) -> None:
    end = time.monotonic() + recovery.DEADLINE_S
    while not there():
        if time.monotonic() > end:
            raise SystemExit(f"did not come in {recovery.DEADLINE_S:g} s")
        time.sleep(POLL_S)


def phalanx(home: Path, *words: str) -> None:
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PHALANX_")}
    command = [sys.executable, "-m", "phalanx.app", *words]
    done = subprocess.run(command, env=outer | {"PHALANX_HOME": str(home)}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"phalanx {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


# The peer


def torchrun(options: argparse.Namespace) -> tuple[str, float]:
    """What becomes of the workers, and seconds from the kill to the end of the first step of the next run."""
    folder = Path(options.folder) / "torchrun-agent"
    (folder / "artifacts").mkdir(parents=True)
    found, first = recovery.Ranks(folder), start(options, folder)
    second: subprocess.Popen[bytes] | None = None
    try:
        found.wait(lambda: found.step() >= recovery.BETWEEN)
        workers = [int((folder / f"pid-{rank}").read_text()) for rank in range(recovery.RANKS)]
        first.kill()
        first.wait()
        said, watched_s = orphans(found, workers)
        at_ms = time.time() * 1000
        second = start(options, folder)
        found.wait(lambda: found.first_end_after(at_ms) is not None)
        return said, ((found.first_end_after(at_ms) or 0) - at_ms) / 1000 + watched_s
    finally:
        recovery.end([process for process in (first, second) if process is not None], 30)
        recovery.sweep(folder)


def orphans(found: Any, workers: list[int]) -> tuple[str, float]:
    """What they do; they are gone afterwards. Seconds until they were, as far as they ended by themselves."""
    started, step_then = time.monotonic(), found.step()
    while any(map(alive, workers)) and time.monotonic() < started + PEER_ALIVE_S:
        time.sleep(POLL_S)
    left = [pid for pid in workers if alive(pid)]
    if not left:
        return "its workers died with it", time.monotonic() - started
    for pid in left:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    wait(lambda: not any(map(alive, workers)))
    return f"its workers went on, {found.step() - step_then} steps in {PEER_ALIVE_S:g} s, with nobody to restart them", 0.0


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def start(options: argparse.Namespace, folder: Path) -> "subprocess.Popen[bytes]":
    words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={recovery.RANKS}", str(recovery.__file__)]
    env = recovery.peer_environment(options, folder) | {"PEER_PORT": str(free_port())}
    with (folder / "torchrun.log").open("ab") as log:
        return subprocess.Popen([sys.executable, *words, "--peer", str(folder)], env=env, stdout=log, stderr=log)


if __name__ == "__main__":
    sys.argv[1:] = ["--only", "agent", *sys.argv[1:]]
    sys.exit(recovery.main())
