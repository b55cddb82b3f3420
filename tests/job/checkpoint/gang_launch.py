"""Starts the ranks of a gang by hand, with torchrun's environment and warnings as errors, for tests of the job's rooms."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_gang(
    arguments: Sequence[str],
    folder: Path,
    world_size: int,
    env: Mapping[str, str],
    env_of_rank: Mapping[int, Mapping[str, str]] | None = None,
) -> list[subprocess.Popen[bytes]]:
    """One process a rank, running `python ARGUMENTS`; each writes to `folder/rank-N.log` and `folder/rank-N.records`."""
    folder.mkdir(parents=True, exist_ok=True)
    port = str(free_port())
    ranks = []
    for rank in range(world_size):
        own = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PHALANX_RECORDS": str(folder / f"rank-{rank}.records"),
        }  # fmt: skip
        with (folder / f"rank-{rank}.log").open("wb") as log:
            ranks.append(
                subprocess.Popen(
                    [sys.executable, "-W", "error", *arguments],
                    env={**os.environ, **own, **env, **(env_of_rank or {}).get(rank, {})},
                    stdout=log,
                    stderr=log,
                    cwd=folder,
                )
            )
    return ranks


def end_gang(ranks: Sequence[subprocess.Popen[bytes]], limit_s: float = 300) -> list[int]:
    """Exit codes in rank order; a rank that outlives the limit is killed."""
    codes = []
    for rank in ranks:
        try:
            codes.append(rank.wait(limit_s))
        except subprocess.TimeoutExpired:
            rank.kill()
            codes.append(rank.wait())
    return codes


def logs(folder: Path) -> str:
    return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-6000:]}" for path in sorted(folder.glob("*.log")))
