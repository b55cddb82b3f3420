"""A gang that recovers, under the real shim: the trainer's ranks with what an agent would give them."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phalanx.core.timeouts import Timeouts
from phalanx.operate.agent import shim
from phalanx.operate.agent.launch_env import GangPlace
from tests.job.checkpoint.gang_launch import ROOT, Rank

TRAINER = ("-m", "phalanx.job.train", "llama")
TIMES = Timeouts(beat_ms=100, silent_ms=4_000, gather_ms=60_000, hang_ms=60_000, kill_ms=60_000)
"""Nobody is late who only gets no CPU for a while."""
HANG_SOON = replace(TIMES, hang_ms=8_000)
"""For ranks that are made to hang. No shorter: a busy machine stalls healthy ones for seconds."""


@dataclass
class ShimGang:
    """One attempt's folder, and its shim."""

    folder: Path
    world_size: int
    process: Rank

    def end(self, limit_s: float = 600) -> list[int]:
        """Exit codes in rank order."""
        try:
            self.process.wait(limit_s)
        finally:
            self.process.kill()
            self.process.wait()
        return [self.exit(rank) for rank in range(self.world_size)]

    def exit(self, rank: int) -> int:
        code: int = json.loads((self.folder / "exits" / f"rank-{rank}.json").read_bytes())["code"]
        return code

    def records(self, rank: int, kind: str) -> list[dict[str, Any]]:
        path = self.folder / f"rank-{rank}.records"
        lines = path.read_text().splitlines() if path.exists() else []
        return [record for record in map(json.loads, filter(None, lines)) if record["kind"] == kind]

    def losses(self, rank: int = 0) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for record in self.records(rank, "step"):
            found.setdefault(record["step"], set()).add(record["loss_hex"])
        return found

    def pids(self) -> dict[int, int]:
        return {entry["rank"]: entry["pid"] for entry in json.loads((self.folder / "ranks.json").read_bytes())}

    def log(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-6000:]}" for path in sorted(self.folder.glob("*.log"))
        )


def start(
    folder: Path,
    env: Mapping[str, str],
    program: Sequence[str] = TRAINER,
    world_size: int = 2,
    spares: int = 1,
    times: Timeouts = TIMES,
    sizes: tuple[int, ...] = (),
) -> ShimGang:
    """`env`: of every rank. The ranks run `python -W error PROGRAM`."""
    for name in ("exits", "artifacts"):
        (folder / name).mkdir(parents=True)
    place = GangPlace(folder / "gang.sock", os.urandom(16).hex(), spares, times, sizes=sizes)
    ranks = []
    for rank in range(world_size):
        own = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PHALANX_RECORDS": str(folder / f"rank-{rank}.records"), "PHALANX_ARTIFACTS": str(folder / "artifacts"),
            "PHALANX_KEEPERS": str(folder / "keepers"),
            "PHALANX_MARK": str(folder), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        }  # fmt: skip
        entry = {"rank": rank, "argv": [sys.executable, "-W", "error", *program], "log": str(folder / f"rank-{rank}.log")}
        ranks.append(entry | {"env": {**os.environ, **own, **env, **place.env(rank)}})
    order = {
        "ranks": ranks,
        "cwd": str(folder),
        "socket": str(folder / "s"),
        "marks": [f"PHALANX_MARK={folder}"],
        "grace_ms": 5_000,
    }
    (folder / "shim.json").write_text(json.dumps(order | {"gang": place.order()}))
    with (folder / "shim.log").open("wb") as log:
        process = subprocess.Popen(shim.command(folder), stdin=subprocess.DEVNULL, stderr=log)
    return ShimGang(folder, world_size, process)
