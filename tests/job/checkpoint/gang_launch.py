"""Starts the ranks of a gang by hand, with torchrun's environment and warnings as errors, for tests of the job's rooms.

Ranks that run a module are forked from one process that has imported torch (`warm_imports`): 5 s less of each. They are processes
of their own in all else. Users' scripts, and the ranks that the shim or a whole platform starts, import for themselves.
"""

import functools
import importlib
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path

import numpy

from tests.ports import free_port

ROOT = Path(__file__).parents[3]


class WarmRank:
    """`python -W error -m MODULE ...` without the imports, with what a `Popen` is asked for here."""

    def __init__(self, module: Sequence[str], env: Mapping[str, str], folder: Path, log: Path) -> None:
        self._process = _warm().Process(target=_become, args=(list(module), dict(env), folder, log), daemon=True)
        self._process.start()

    def wait(self, limit_s: float | None = None) -> int:
        self._process.join(limit_s)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, limit_s or 0)
        return code

    def kill(self) -> None:
        self._process.kill()


Rank = WarmRank | subprocess.Popen[bytes]


@functools.cache
def _warm() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"{__package__}.warm_imports"])
    return context


def _become(module: Sequence[str], env: Mapping[str, str], folder: Path, log: Path) -> None:
    with log.open("wb") as opened:
        os.dup2(opened.fileno(), 1)
        os.dup2(opened.fileno(), 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    importlib.import_module(f"{__package__}.warm_imports")  # here already, unless nobody could import it ahead
    numpy.random.seed()  # else every rank draws the same; Python's own generator begins anew after a fork
    sys.modules["torch"].seed()
    sys.argv = list(module)
    runpy.run_module(module[0], run_name="__main__", alter_sys=True)


def start_gang(
    arguments: Sequence[str],
    folder: Path,
    world_size: int,
    env: Mapping[str, str],
    env_of_rank: Mapping[int, Mapping[str, str]] | None = None,
) -> list[Rank]:
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
        environ = {**os.environ, **own, **env, **(env_of_rank or {}).get(rank, {})}
        ranks.append(_start(arguments, environ, folder, folder / f"rank-{rank}.log"))
    return ranks


def _start(arguments: Sequence[str], env: Mapping[str, str], folder: Path, log: Path) -> Rank:
    if arguments[0] == "-m":
        return WarmRank(arguments[1:], env, folder, log)
    with log.open("wb") as opened:
        return subprocess.Popen([sys.executable, "-W", "error", *arguments], env=env, stdout=opened, stderr=opened, cwd=folder)


def end_gang(ranks: Sequence[Rank], limit_s: float = 600) -> list[int]:
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
