"""What the platform costs a training step: heartbeats, metrics and the data cursor, with snapshots off. CPU, 2 ranks.

Usage: python benchmarks/overhead.py [--only ID] [--quick]. The last line is one JSON object; the exit code is 1 when a claim does
not hold. --quick: fewer turns.

The demo's model (1.85 million parameters, 8 sequences of 64 tokens a rank) is trained by the recipe's own loop in two gangs of two
gloo ranks, which are the same script. One is a job of a whole platform in a home of its own, started for this: its ranks write a
record of each step and ring their agent, which ships it; the record of what data they were given grows by a frame a step; two
threads give the gang's coordinator signs of life. The other gang has torchrun's environment and nothing of Phalanx around it: its
session says nothing, and nothing is recorded. Saves are off in both.

They train in turns: while one does, the ranks of the other are stopped (SIGSTOP), and who comes first changes. Of each turn the
first steps are left out. `step_overhead_percent`: by how much the median step of a turn under the platform is longer than that of
the turn beside it; the median over all pairs of turns. `mean_percent`: the same of the mean step, which has rare long ones in it.
Server, scheduler and agent run all the time, also beside the other gang: what they need while idle is in launch.py's figures.
"""

import argparse
import contextlib
import json
import os
import platform as machine
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import recovery  # type: ignore[import-not-found]  # beside this file, where a script's imports are looked for first
import recovery_agent  # type: ignore[import-not-found]
from parts.gang import free_port  # type: ignore[import-not-found]
from parts.processes import end  # type: ignore[import-not-found]

from phalanx.client import connect

RANKS: Final = 2
PAIRS, PAIRS_QUICK = 16, 4
STEPS_A_TURN: Final = 40
LEFT_OUT: Final = 3
"""Steps after a rank was stopped: they begin with cold caches, and one of them was interrupted."""
WARM_STEPS: Final = 20
STEPS: Final = 100_000
TARGET_PERCENT: Final = 2.0
SCRIPT: Final = Path(__file__).with_name("parts") / "overhead_rank.py"
MARK: Final = "OVERHEAD_GANG"

Answer = dict[str, Any]


class Turns:
    """A gang that trains in turns. path: its times lie beside it, by rank."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.windows: list[tuple[float, float]] = []

    def warm(self) -> None:
        """Until it has made some steps; then it is stopped."""
        until_s = time.monotonic() + recovery.DEADLINE_S
        while self.path.with_suffix(".0").exists() is False or np.count_nonzero(self.ends_s()) < WARM_STEPS:
            if time.monotonic() > until_s:
                raise SystemExit(f"{self.path.name} made no {WARM_STEPS} steps in {recovery.DEADLINE_S:g} s")
            time.sleep(0.1)
        self.signal(signal.SIGSTOP)

    def turn(self) -> None:
        """STEPS_A_TURN whole steps, however long they take."""
        made = np.count_nonzero(self.ends_s())
        self.signal(signal.SIGCONT)
        begin_s = time.monotonic()
        while np.count_nonzero(self.ends_s()) < made + LEFT_OUT + STEPS_A_TURN + 1:
            if time.monotonic() > begin_s + recovery.DEADLINE_S:
                raise SystemExit(f"{self.path.name} made no {STEPS_A_TURN} steps in {recovery.DEADLINE_S:g} s")
            time.sleep(0.05)
        self.signal(signal.SIGSTOP)
        self.windows.append((begin_s, time.monotonic()))

    def signal(self, number: signal.Signals) -> None:
        """To each of its processes."""
        for pid in marked(self.path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def ends_s(self) -> "np.ndarray[Any, np.dtype[np.float64]]":
        path = self.path.with_suffix(".0")
        return np.memmap(path, np.float64, "r", shape=(path.stat().st_size // 8,)) if path.stat().st_size else np.zeros(1)

    def steps_s(self) -> list["np.ndarray[Any, np.dtype[np.float64]]"]:
        """Of each turn the durations of steps that lie in it."""
        ends = np.asarray(self.ends_s())
        ends = ends[ends > 0]
        return [np.diff(ends[(ends >= begin) & (ends <= over)])[LEFT_OUT:] for begin, over in self.windows]


def marked(path: Path) -> list[int]:
    word, found = f"{MARK}={path}".encode(), list[int]()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


@contextmanager
def under_platform(folder: Path) -> Iterator[Turns]:
    """As a job of a platform that has nothing else to do."""
    home, path = folder / "home", folder / "platform"
    recovery_agent.phalanx(home, "up", "--port", "0", "--cpu-slots", str(RANKS))
    turns = Turns(path)
    try:
        with connect(home) as client:
            spec = {
                "name": "overhead", "kind": "train", "entrypoint": ["python", str(SCRIPT), str(path)],
                "resources": {"gpus": str(RANKS)}, "data": {"path": str(folder / "data")}, "checkpoint": {"every": 0},
                "recovery": {"in_gang": True, "spares": 0}, "hyperparameters": recovery.MODEL | {"steps": STEPS},
                "env": {MARK: str(path), **recovery.HIDDEN},
            }  # fmt: skip
            job = client.submit(spec, None, key="once").id
            turns.warm()
            yield turns
            view = client.job(job)
            if view.state != "running" or len(view.attempts) != 1 or view.progress is None:
                raise SystemExit(f"{job} did not run through: {view.state}, {view.detail}")
    finally:
        turns.signal(signal.SIGCONT)
        recovery_agent.phalanx(home, "down", "--force")


@contextmanager
def alone(folder: Path) -> Iterator[Turns]:
    """With torchrun's environment."""
    path = folder / "alone"
    turns, ranks = Turns(path), list[subprocess.Popen[bytes]]()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PHALANX_")} | recovery.HIDDEN
    kept |= {
        "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1",
        "MASTER_PORT": str(free_port()), MARK: str(path), "PHALANX_DATA": str(folder / "data"),
        "PHALANX_JOB_DIR": str(folder / "alone-job"), "PHALANX_CHECKPOINT_EVERY": "0",
        "PHALANX_HYPERPARAMETERS": json.dumps(recovery.MODEL | {"steps": STEPS}),
    }  # fmt: skip
    (folder / "alone-job").mkdir()
    try:
        with (folder / "alone.log").open("wb") as log:
            for rank in range(RANKS):
                env = kept | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                ranks.append(subprocess.Popen([sys.executable, str(SCRIPT), str(path)], env=env, stdout=log, stderr=log))
        turns.warm()
        yield turns
    finally:
        turns.signal(signal.SIGCONT)
        end(ranks, 5)


def step_overhead(options: argparse.Namespace, folder: Path) -> Answer:
    pairs = PAIRS_QUICK if options.quick else PAIRS
    with under_platform(folder) as ours, alone(folder) as peer:
        for pair in range(pairs):
            for gang in (ours, peer) if pair % 2 else (peer, ours):
                gang.turn()
        with_s, without_s = ours.steps_s(), peer.steps_s()
    percent = [100 * (float(np.median(a) / np.median(b)) - 1) for a, b in zip(with_s, without_s, strict=True)]
    means = [100 * (float(np.mean(a) / np.mean(b)) - 1) for a, b in zip(with_s, without_s, strict=True)]
    found = statistics.median(percent)
    middle = [1e3 * float(np.median(np.concatenate(steps))) for steps in (with_s, without_s)]
    print(f"{pairs} pairs of turns: a step {middle[0]:.1f} ms under the platform, {middle[1]:.1f} alone; {found:+.2f} %")
    return {
        "id": "step_overhead_percent", "ours": round(found, 2), "peer": None, "ratio": None, "unit": "%",
        "target": f"ours <= {TARGET_PERCENT:g}", "each": [round(one, 2) for one in percent],
        "mean_percent": round(statistics.median(means), 2), "step_ms": round(middle[0], 2), "alone_ms": round(middle[1], 2),
        "holds": found <= TARGET_PERCENT,
    }  # fmt: skip


def conditions() -> Answer:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else machine.machine(), "cores": len(os.sched_getaffinity(0)), "card": "none",
        "load": round(os.getloadavg()[0], 2), "versions": {"python": machine.python_version(), "torch": version("torch")},
        "ranks": RANKS, "steps_a_turn": STEPS_A_TURN,
    }  # fmt: skip


CLAIMS: Final[dict[str, Callable[[argparse.Namespace, Path], Answer]]] = {"step_overhead_percent": step_overhead}


def main() -> int:
    """Run the claim."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(CLAIMS), help="run one claim")
    parser.add_argument("--quick", action="store_true", help=f"{PAIRS_QUICK} pairs of turns")
    options = parser.parse_args()
    around = conditions()
    with tempfile.TemporaryDirectory(prefix="phalanx-overhead-") as name:
        folder = Path(name)
        recovery.prepare_data(folder)
        claims = [CLAIMS[one](options, folder) for one in ([options.only] if options.only else CLAIMS)]
    print(json.dumps({"benchmark": "overhead", "conditions": around, "claims": claims}))
    return 0 if all(one["holds"] for one in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
