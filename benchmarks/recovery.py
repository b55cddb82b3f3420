"""How long a gang of two stands still when one of its ranks is killed or hangs, and what that costs it.

Usage: python benchmarks/recovery.py [--only kill|hang|spare|agent|shrink] [--rank R] [--step N] [--quick]. The last line is one
JSON object; the exit code is 1 when a claim does not hold. Seconds are from the signal to the end of the first optimiser step that
began after it. The gang runs under the shim as an agent starts it; the peer is torchrun, which restarts the same trainer from its
own checkpoints. NVIDIA's in-process restart is measured beside them where `nvidia_resiliency_ext` can be imported.
"""

import argparse
import importlib
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from parts.gang import free_port  # type: ignore[import-not-found]  # beside this file
from parts.processes import child_of, end, marked, sweep  # type: ignore[import-not-found]  # beside this file

from phalanx.core.timeouts import HANG_MS_MIN, timeouts
from phalanx.operate.agent.sockets import socket_folder

RANKS = 2
KILLS, KILLS_QUICK = 20, 3
HANGS, HANGS_QUICK = 3, 1
PEER_KILLS, PEER_KILLS_QUICK = 3, 1
KILL_P50_S_MAX, KILL_P95_S_MAX = 1.5, 3.0
STEPS_LOST_MAX = 1
SHRINKS, SHRINKS_QUICK = 3, 1
COLD_S_MAX = 15.0
"""Without a warm spare a process starts first, which is mostly importing torch."""
BETWEEN = 20
"""Steps from one fault to the next, at least."""
SHRUNK_STEPS = 250
"""After the fault in the runs that are compared: the gang is whole again before the last."""
PEER_EVERY = 10
"""Steps between the peer's checkpoints."""
DEADLINE_S = 180.0
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}
"""What is measured here is the platform, on the CPU of any machine; recovery_gpu.py has the GPUs."""
MODEL = {"eval_batches": 1, "warmup_steps": 10, "seed": 7}
"""Else the demo's model: 1.85 million parameters, 8 sequences of 64 tokens a rank."""

Answer = dict[str, Any]


# The claims


def kill(options: argparse.Namespace) -> list[Answer]:
    """SIGKILL of one rank again and again, a warm spare beside it; then one pair of runs whose losses are compared bit by bit."""
    count = KILLS_QUICK if options.quick else KILLS
    with gang(options, "long") as ours:
        seconds = [ours.fault(signal.SIGKILL, options.rank) for _ in range(count)]
        lost = max(ours.steps_lost())
        same = ours.repeats_are_equal()
    bitwise = same and pair_is_equal(options)
    peer = torchrun(options)
    p50, p95 = statistics.median(seconds), quantile(seconds, 0.95)
    print(f"kill of rank {options.rank}: {count} times, p50 {p50:.2f} s, p95 {p95:.2f} s, at most {lost} steps lost, {bitwise=}")
    print(f"torchrun: {len(peer)} restarts, {show(peer)} s")
    nvrx = in_process(options)
    print(f"in-process restart of nvidia_resiliency_ext: {nvrx}")
    restart = statistics.median(peer) if peer else None
    return [
        claim("kill_p50_s", p50, restart, KILL_P50_S_MAX, seconds=rounded(seconds), peer_seconds=rounded(peer), peer_nvrx=nvrx),
        claim("kill_p95_s", p95, quantile(peer, 0.95) if peer else None, KILL_P95_S_MAX),
        claim("steps_lost", lost, None, STEPS_LOST_MAX, unit="steps"),
        yes("bitwise", bitwise),
    ]


def hang(options: argparse.Namespace) -> list[Answer]:
    """SIGSTOP of one rank: found by its missing heartbeats, killed and replaced."""
    count = HANGS_QUICK if options.quick else HANGS
    with gang(options, "hang") as ours:
        seconds = [ours.fault(signal.SIGSTOP, options.rank) for _ in range(count)]
        lost, same = ours.steps_lost(), ours.repeats_are_equal()
    print(f"hang of rank {options.rank}: {count} times, {show(seconds)} s with hang_timeout {HANG_MS_MIN / 1000:g} s, {lost=}")
    return [
        claim("hang_s", max(seconds), None, HANG_MS_MIN / 1000 + KILL_P95_S_MAX, seconds=rounded(seconds)),
        claim("hang_steps_lost", max(lost), None, STEPS_LOST_MAX, unit="steps"),
        yes("hang_bitwise", same),
    ]


def spare(options: argparse.Namespace) -> list[Answer]:
    """SIGKILL of the spare, which nobody notices, and at once of a rank, which has to wait for another process to start."""
    with gang(options, "spare") as ours:
        ours.wait_for_spare()
        generation = ours.generation()
        os.kill(ours.spare_pid(), signal.SIGKILL)
        ours.wait(lambda: ours.num_spares_started() > 1)
        unnoticed = ours.generation() == generation
        seconds = ours.fault(signal.SIGKILL, options.rank, warm=False)
        lost, same = ours.steps_lost(), ours.repeats_are_equal()
    print(f"kill of rank {options.rank} without a warm spare: {seconds:.2f} s; the spare's own death went {unnoticed=}")
    return [
        claim("spare_cold_s", seconds, None, COLD_S_MAX),
        claim("spare_steps_lost", max(lost), None, STEPS_LOST_MAX, unit="steps"),
        yes("spare_unnoticed", unnoticed),
        yes("spare_bitwise", same),
    ]


def shrink(options: argparse.Namespace) -> list[Answer]:
    """SIGKILL of one rank for which there is no spare: the other goes on alone with all the samples of each step, and takes it in
    again once its process has started. Then a pair of runs whose losses are compared bit by bit."""
    count = SHRINKS_QUICK if options.quick else SHRINKS
    with gang(options, "shrink", spares=0, sizes=(1,)) as ours:
        seconds = [ours.fault_alone(options.rank) for _ in range(count)]
        told = sorted(ours.recovered(), key=lambda one: one["generation"])
        same = ours.repeats_are_equal()
    fell, grew = ([one for one in told if one["planned"] == planned] for planned in (False, True))
    lost, lost_growing = (max(one["steps_lost"] for one in some) for some in (fell, grew))
    still = [one["recovery_ms"] / 1000 for one in grew]
    bitwise = same and pair_is_equal(options, spares=0, sizes=(1,), steps=SHRUNK_STEPS)
    peer = elastic(options)
    print(f"kill of rank {options.rank} without a spare: {show(seconds)} s to the other's next step, at most {lost} steps lost")
    print(f"whole again, standing still for {show(still)} s, {lost_growing} steps lost, {bitwise=}")
    print(f"torchrun with one of two nodes gone, 1 to 2 allowed: {peer}")
    measured = peer if isinstance(peer, float) else None
    return [
        claim("shrink_p50_s", statistics.median(seconds), measured, KILL_P50_S_MAX, seconds=rounded(seconds), peer_said=peer),
        claim("shrink_steps_lost", lost, None, STEPS_LOST_MAX, unit="steps"),
        claim("grow_s", max(still), None, KILL_P95_S_MAX, seconds=rounded(still)),
        claim("grow_steps_lost", lost_growing, None, 0, unit="steps"),
        yes("shrink_bitwise", bitwise),
    ]


def claim(name: str, ours: float, peer: float | None, most: float, unit: str = "s", **more: Any) -> Answer:
    """Holds where ours is at most `most`."""
    ratio = None if not peer else round(ours / peer, 3)
    peer = None if peer is None else round(peer, 3)
    found = {"id": name, "ours": round(ours, 3), "peer": peer, "ratio": ratio, "unit": unit, "target": f"ours <= {most:g}"}
    return {**found, **more, "holds": ours <= most}


def yes(name: str, holds: bool) -> Answer:
    return {"id": name, "ours": holds, "peer": None, "ratio": None, "unit": "", "target": "true", "holds": holds}


def agent(options: argparse.Namespace) -> list[Answer]:
    """SIGKILL of the node's agent, which ranks do not notice: in a file of its own, since it needs a whole platform."""
    found: list[Answer] = importlib.import_module("recovery_agent").agent(options)
    return found


CLAIMS: dict[str, Callable[[argparse.Namespace], list[Answer]]] = {
    "kill": kill,
    "hang": hang,
    "spare": spare,
    "agent": agent,
    "shrink": shrink,
}


# What ranks have written


class Ranks:
    """Two ranks' record files, from wherever they were started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def records(self, rank: int, kind: str = "step") -> list[Answer]:
        path = self.folder / f"rank-{rank}.records"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [record for record in map(json.loads, filter(None, lines)) if record["kind"] == kind]

    def step(self) -> int:
        """The newest of the rank that is furthest."""
        return max((record["step"] for rank in range(RANKS) for record in self.records(rank)[-1:]), default=0)

    def first_end_after(self, at_ms: float) -> float | None:
        """When the first step ended that began after that moment; Unix milliseconds."""
        ends = [r["ended_ms"] for rank in range(RANKS) for r in self.records(rank)[-200:] if r["started_ms"] >= at_ms]
        return min(ends, default=None)

    def losses(self) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for rank in range(RANKS):
            for record in self.records(rank):
                found.setdefault(record["step"], set()).add(record["loss_hex"])
        return found

    def repeats_are_equal(self) -> bool:
        return all(len(seen) == 1 for seen in self.losses().values())

    def wait(self, there: Callable[[], object]) -> None:
        end = time.monotonic() + DEADLINE_S
        while not there():
            if time.monotonic() > end:
                raise SystemExit(f"did not come in {DEADLINE_S:g} s; see {self.folder}\n{self.logs()}")
            time.sleep(0.02)

    def struck(self, pid: int, number: signal.Signals) -> float:
        """Seconds from the signal to the end of the first step that began after it."""
        at_ms = time.time() * 1000
        os.kill(pid, number)
        self.wait(lambda: self.first_end_after(at_ms) is not None)
        ended_ms = self.first_end_after(at_ms)
        assert ended_ms is not None
        return (ended_ms - at_ms) / 1000

    def logs(self) -> str:
        paths = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in paths)


# Ours: the shim with a coordinator


class Gang(Ranks):
    """Under its shim."""

    def fault(self, number: signal.Signals, rank: int, warm: bool = True) -> float:
        """With a warm spare and some steps after the last fault, or at once."""
        begin = self.step()
        if warm:
            self.wait_for_spare()
            self.wait(lambda: self.step() >= begin + BETWEEN)
        seconds = self.struck(self.pids()[rank], number)
        generation = self.generation()
        self.wait(lambda: any(one["generation"] == generation for one in self.records(0, "recovered")))
        return seconds

    def fault_alone(self, rank: int) -> float:
        """With nobody to take the place; returns once the gang is whole again and has made some steps."""
        begin = self.step()
        self.wait(lambda: self.step() >= begin + BETWEEN)
        before = len(self.grown())
        seconds = self.struck(self.pids()[rank], signal.SIGKILL)
        self.wait(lambda: len(self.grown()) > before)
        return seconds

    def recovered(self) -> list[Answer]:
        return [record for rank in range(RANKS) for record in self.records(rank, "recovered")]

    def grown(self) -> list[Answer]:
        return [record for record in self.recovered() if record["planned"]]

    def pids(self) -> dict[int, int]:
        return {entry["rank"]: entry["pid"] for entry in json.loads((self.folder / "ranks.json").read_bytes())}

    def said(self) -> str:
        return (self.folder / "shim.log").read_text()

    def generation(self) -> int:
        return self.said().count(" starts with processes ")

    def wait_for_spare(self) -> None:
        """That has been of no use yet."""

        def ready() -> bool:
            waiting = re.findall(r"process (\d+) of the gang is ready", self.said())
            placed = " ".join(re.findall(r"starts with processes ([\d, ]+)", self.said())).replace(",", "").split()
            return bool(set(waiting) - set(placed))

        self.wait(ready)

    def num_spares_started(self) -> int:
        return len(list(self.folder.glob("spare-*.log")))

    def spare_pid(self) -> int:
        ranks = set(self.pids().values())
        processes: dict[int, list[bytes]] = marked(self.folder)
        for pid, words in processes.items():
            if pid not in ranks and not any(word.startswith(b"RANK=") for word in words):
                return pid
        raise SystemExit(f"no spare of {self.folder} was found")

    def steps_lost(self) -> list[int]:
        return [record["steps_lost"] for record in self.records(0, "recovered")]


@contextmanager
def gang(
    options: argparse.Namespace,
    name: str,
    steps: int = 1_000_000,
    fault: str = "",
    spares: int = 1,
    sizes: tuple[int, ...] = (),
) -> Iterator[Gang]:
    """Ended when the block is, unless it has ended by itself."""
    folder = Path(options.folder) / name
    process = start_shim(folder, environment(options, folder, steps, fault), spares, sizes)
    found = Gang(folder)
    try:
        found.wait(lambda: found.step() >= 1 or process.poll() is not None)
        if process.poll() is not None and not found.step():
            raise SystemExit(f"the gang ended before its first step\n{found.logs()}")
        yield found
        if steps < 1_000_000:
            found.wait(lambda: process.poll() is not None)
    finally:
        end([process], 15)
        shutil.rmtree(socket_folder(folder), ignore_errors=True)
        shutil.rmtree(folder / "job" / "checkpoints", ignore_errors=True)


def start_shim(folder: Path, env: Mapping[str, str], spares: int, sizes: tuple[int, ...] = ()) -> "subprocess.Popen[bytes]":
    from phalanx.operate.agent import shim
    from phalanx.operate.agent.launch_env import GangPlace

    for inner in ("exits", "artifacts"):
        (folder / inner).mkdir(parents=True)
    place = GangPlace(socket_folder(folder) / "gang", os.urandom(32).hex(), spares, timeouts(HANG_MS_MIN), sizes=sizes)
    ranks = []
    for rank in range(RANKS):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "PHALANX_RECORDS": str(folder / f"rank-{rank}.records")}
        argv = [sys.executable, "-m", "phalanx.job.train", "llama"]
        ranks.append(
            {"rank": rank, "argv": argv, "log": str(folder / f"rank-{rank}.log"), "env": {**env, **own, **place.env(rank)}}
        )
    paths = {"cwd": str(folder), "socket": str(socket_folder(folder) / "s")}
    order = {"ranks": ranks, "marks": [f"PHALANX_MARK={folder}"], "grace_ms": 2_000, **paths}
    (folder / "shim.json").write_text(json.dumps(order | {"gang": place.order()}))
    with (folder / "shim.log").open("wb") as log:
        return subprocess.Popen(shim.command(folder), stdin=subprocess.DEVNULL, stderr=log)


def environment(options: argparse.Namespace, folder: Path, steps: int, fault: str = "") -> dict[str, str]:
    return {
        **os.environ, **HIDDEN, "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1", "PHALANX_MARK": str(folder),
        "PHALANX_JOB": "bench-1", "PHALANX_ATTEMPT": "bench-1.1", "PHALANX_JOB_DIR": str(folder / "job"),
        "PHALANX_DATA": str(Path(options.folder) / "data"), "PHALANX_HYPERPARAMETERS": json.dumps(MODEL | {"steps": steps}),
        "PHALANX_CHECKPOINT_EVERY": "0", "PHALANX_KEEPERS": str(folder / "keepers"), "PHALANX_FAULT": fault,
        "PHALANX_ARTIFACTS": str(folder / "artifacts"),
    }  # fmt: skip


def pair_is_equal(options: argparse.Namespace, spares: int = 1, sizes: tuple[int, ...] = (), steps: int = BETWEEN) -> bool:
    """Every loss of a run whose rank was killed at the step, and so many steps more, and of one that nobody touched."""
    steps, fault = options.step + steps, f"sigkill rank={options.rank} step={options.step} attempt=1"
    name = "shrunk-pair" if sizes else "pair"
    with gang(options, f"{name}-touched", steps, fault, spares, sizes) as touched:
        pass
    with gang(options, f"{name}-untouched", steps) as untouched:
        pass
    wanted = untouched.losses()
    return touched.losses() == wanted and sorted(wanted) == list(range(1, steps + 1)) and bool(touched.recovered())


# The peers


def torchrun(options: argparse.Namespace) -> list[float]:
    """The same kills of the same trainer under torchrun; it restarts all ranks, which resume from their newest checkpoint. Empty
    when it does not come back."""
    folder = Path(options.folder) / "torchrun"
    (folder / "artifacts").mkdir(parents=True)
    count = PEER_KILLS_QUICK if options.quick else PEER_KILLS
    words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", f"--max-restarts={count + 1}", __file__]
    env = peer_environment(options, folder) | {"PEER_PORT": str(free_port())}
    with (folder / "torchrun.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, *words, "--peer", str(folder)], env=env, stdout=log, stderr=log)
    found, seconds = Ranks(folder), []
    try:
        found.wait(lambda: found.step() >= BETWEEN)
        for _ in range(count):
            begin = found.step()
            found.wait(lambda begin=begin: found.step() >= begin + BETWEEN)  # type: ignore[misc]  # bound by default
            seconds.append(found.struck(int((folder / f"pid-{options.rank}").read_text()), signal.SIGKILL))
    except SystemExit as error:
        print(f"torchrun did not come back: {error}")
    finally:
        end([process], 30)
        sweep(folder)
    return seconds


def elastic(options: argparse.Namespace) -> float | str:
    """Seconds of torchrun's elastic mode, or why not: of two nodes one is killed whole, the other goes on alone from its newest
    checkpoint. The one that is killed is the one without the rendezvous, which nobody survives."""
    folder = Path(options.folder) / "elastic"
    (folder / "artifacts").mkdir(parents=True)
    env = peer_environment(options, folder) | {"PEER_PORT": str(free_port())}
    endpoint = f"127.0.0.1:{free_port()}"
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3"]
    words += ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=bench", __file__, "--peer", str(folder)]
    agents, found = [], Ranks(folder)
    try:
        for index, is_host in enumerate((True, False)):
            conf = f"--rdzv-conf=is_host={int(is_host)}"
            with (folder / f"torchrun-{index}.log").open("wb") as log:
                agents.append(subprocess.Popen([*words[:3], conf, *words[3:]], env=env, stdout=log, stderr=log))
        found.wait(lambda: found.step() >= BETWEEN)
        begin = found.step()
        found.wait(lambda: found.step() >= begin + PEER_EVERY)
        worker = child_of(agents[1].pid)
        agents[1].kill()
        return round(found.struck(worker, signal.SIGKILL), 3)
    except SystemExit as error:
        print(f"torchrun's elastic mode did not come back: {error}")
        return f"did not come back in {DEADLINE_S:g} s"
    finally:
        end(agents, 30)
        sweep(folder)


def peer_environment(options: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Of a peer's ranks: the same trainer with checkpoints, of no attempt of ours."""
    return environment(options, folder, 1_000_000) | {"PHALANX_CHECKPOINT_EVERY": str(PEER_EVERY), "PHALANX_ATTEMPT": ""}


def peer_main(folder: Path) -> None:
    """One rank of torchrun's."""
    from phalanx.job.train.__main__ import main as train

    rank = os.environ["RANK"]
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    os.environ["PHALANX_RECORDS"] = str(folder / f"rank-{rank}.records")
    # With torchrun's own store a gang that was restarted meets the addresses of the one before, and never comes up.
    port = int(os.environ["PEER_PORT"]) + int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    os.environ.update({"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    os._exit(train(["llama"]))


def in_process(options: argparse.Namespace) -> str | float:
    """Seconds of NVIDIA's in-process restart, or why not. It has no spare: the survivor trains on alone from its newest checkpoint.
    Rank 1 is killed, whatever was asked for, since its store dies with rank 0."""
    if importlib.util.find_spec("nvidia_resiliency_ext") is None:
        return "not measured: nvidia_resiliency_ext is not installed"
    folder = Path(options.folder) / "nvrx"
    (folder / "artifacts").mkdir(parents=True)
    env = peer_environment(options, folder) | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = []
    for rank in range(RANKS):
        with (folder / f"rank-{rank}.log").open("wb") as log:
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            words = [sys.executable, __file__, "--peer", str(folder), "--in-process"]
            ranks.append(subprocess.Popen(words, env=env | own, stdout=log, stderr=log))
    found = Ranks(folder)
    try:
        found.wait(lambda: found.step() >= BETWEEN)
        return round(found.struck(ranks[1].pid, signal.SIGKILL), 3)
    except SystemExit as error:
        print(f"nvidia_resiliency_ext did not come back: {error}")
        return "did not come back"
    finally:
        end(ranks, 0)
        sweep(folder)


def in_process_main(folder: Path) -> None:
    """One rank of it."""
    import torch.distributed as dist
    from nvidia_resiliency_ext import inprocess  # type: ignore[import-not-found]  # no dependency of ours

    from phalanx.core.training_data import DataSource
    from phalanx.job.data.sources import open_sources
    from phalanx.job.sdk import attach
    from phalanx.job.train.device import prepare_device, this_rank
    from phalanx.job.train.loop import run
    from phalanx.job.train.recipe import llama_recipe
    from phalanx.job.train.saves import saving
    from phalanx.job.train.setup import set_up

    os.environ["PHALANX_RECORDS"] = str(folder / f"rank-{os.environ['RANK']}.records")
    records = os.environ["PHALANX_RECORDS"]
    data = open_sources(DataSource(path=os.environ["PHALANX_DATA"]))

    def body(call_wrapper: inprocess.CallWrapper | None = None) -> None:
        assert call_wrapper is not None
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = dist.FileStore(str(folder / f"store-{call_wrapper.iteration}"), world_size)  # type: ignore[attr-defined]
        device = prepare_device()
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        session = attach({**os.environ, "PHALANX_RECORDS": records})
        training, start = set_up(
            session, llama_recipe(session.hyperparameters), data, this_rank(device), time.monotonic, lambda: time.time_ns() // 10**6
        )
        with saving(training) as saves:
            run(training, start, saves)

    inprocess.Wrapper()(body)()


# Numbers


def quantile(values: list[float], share: float) -> float:
    """The smallest value that is not exceeded by that share of them."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 100 * len(ordered)) // 100) - 1))]


def rounded(values: list[float]) -> list[float]:
    return [round(value, 3) for value in values]


def show(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values) or "none"


def conditions(card: str = "none") -> dict[str, Any]:
    """What the numbers depend on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.machine(), "cores": len(os.sched_getaffinity(0)), "card": card,
        "load": os.getloadavg()[0], "versions": {"python": platform.python_version(), "torch": version("torch")},
        "ranks": RANKS, "seed": MODEL["seed"],
    }  # fmt: skip


def prepare_data(folder: Path) -> None:
    from phalanx.job.data.prepare import prepare

    stdlib = Path(sysconfig.get_path("stdlib"))
    prepare([stdlib / name for name in ("json", "email", "asyncio")], folder / "data", vocab_size=512, held_out=0.1)


def main() -> int:
    """Run the claims that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(CLAIMS), help="run one claim")
    parser.add_argument("--rank", type=int, choices=range(RANKS), default=0, help="which rank it happens to")
    parser.add_argument("--step", type=int, default=30, help="at which step it happens in the runs whose losses are compared")
    parser.add_argument(
        "--quick", action="store_true", help=f"{KILLS_QUICK} kills, {HANGS_QUICK} hang, {PEER_KILLS_QUICK} of the peer"
    )
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process:
        in_process_main(Path(options.peer))
    if options.peer:
        peer_main(Path(options.peer))
    if options.step < 1:
        parser.error("--step counts from 1")
    found = conditions()
    with tempfile.TemporaryDirectory(prefix="phalanx-recovery-") as folder:
        options.folder = folder
        prepare_data(Path(folder))
        claims = [one for name in ([options.only] if options.only else CLAIMS) for one in CLAIMS[name](options)]
    print(json.dumps({"benchmark": "recovery", "conditions": found, "claims": claims}))
    return 0 if all(one["holds"] for one in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
