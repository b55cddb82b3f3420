"""The test on this machine alone: its ranks are started here, without a platform. Torch-free: torch is in the ranks."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from phalanx.core.errors import SetupError, SpecError
from phalanx.core.fabric_test import (
    RANKS_HERE_MAX,
    REPORT,
    FabricAsked,
    FabricReport,
    checked,
    hyperparameters,
    read_progress,
    read_report,
)
from phalanx.storage.atomic import make_folders, write_atomic

POLL_S: Final = 0.1
LEAVE_S: Final = 10.0
"""From SIGTERM to SIGKILL."""
SAID_CHARS_MAX: Final = 500
CPU_RANKS_MIN: Final = 2
CPU_RANKS_MAX: Final = 4
"""Processes that show that the test runs; more would share cores."""
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_TWO: Final = "a fabric is tested by two ranks or more"

Told = Callable[[int, int], None]
"""Called as (done, total)."""
Ranks = Sequence["subprocess.Popen[bytes]"]


def ranks_here(num_ranks: int | None, uuids: Sequence[str], num_cpus: int, environ: Mapping[str, str]) -> int:
    """So many as are asked for, else one for each GPU that CUDA would show; without GPUs two to four processes, by the cores.

    uuids: of the GPUs by the driver. Raises SpecError for more ranks than GPUs, and SetupError where there is one GPU.
    """
    chosen = environ.get(VISIBLE)
    gpus = visible(chosen, uuids)
    if gpus == 1:
        field, value = ("this machine's number of GPUs", 1) if chosen is None else (VISIBLE, chosen)
        raise SetupError(field, value, f"{_TWO}, each on its GPU, and this is one GPU; test it with other nodes, without --here")
    if num_ranks is None:
        return gpus or max(CPU_RANKS_MIN, min(CPU_RANKS_MAX, num_cpus))
    if 0 < gpus < num_ranks:
        by = "" if chosen is None else f" by {VISIBLE}"
        raise SpecError("num_ranks", num_ranks, f"there are {gpus} GPUs{by}; write a number from 2 to {gpus}, or leave it out")
    return num_ranks


def visible(chosen: str | None, uuids: Sequence[str]) -> int:
    """GPUs that CUDA shows for a value of CUDA_VISIBLE_DEVICES: numbers or beginnings of UUIDs, up to the first that none has, and
    none where one comes twice (CUDA C++ Programming Guide, "CUDA Environment Variables")."""
    if chosen is None:
        return len(uuids)
    found = list[str]()
    for word in map(str.strip, chosen.split(",")):
        if word.isascii() and word.isdecimal():
            meant = [*uuids[int(word) : int(word) + 1]]
        elif word.startswith("MIG-"):  # the driver does not list slices among its GPUs
            meant = [word]
        else:
            meant = [uuid for uuid in uuids if word and uuid.startswith(word)]
        if len(meant) != 1:
            break
        found += meant
    return len(found) if len(set(found)) == len(found) else 0


def tested_here(asked: FabricAsked, num_ranks: int, out: Path, told: Told) -> FabricReport:
    """The report, which is in the file `out` too. Raises SpecError, and SetupError for what a rank ended with."""
    checked(asked)
    if not 2 <= num_ranks <= RANKS_HERE_MAX:
        raise SpecError("num_ranks", num_ranks, f"{_TWO}; write a number from 2 to {RANKS_HERE_MAX}")
    with tempfile.TemporaryDirectory(prefix="phalanx-fabric-") as name:
        folder = Path(name)
        with _started(environments(asked, num_ranks, folder, _free_port(), os.environ), folder) as ranks:
            _await(ranks, folder, told)
        data = (folder / REPORT).read_bytes()
    make_folders(out.parent, 0o700)
    write_atomic(out, data)
    return read_report(data, str(out))


def environments(asked: FabricAsked, num_ranks: int, folder: Path, port: int, outer: Mapping[str, str]) -> list[dict[str, str]]:
    """Of each rank, as torchrun and the platform set it."""
    kept = {name: value for name, value in outer.items() if not name.startswith(("PHALANX_", "TORCHELASTIC_"))}
    kept |= {
        "WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks), "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "PHALANX_ARTIFACTS": str(folder), "PYTHONUNBUFFERED": "1",
        "PHALANX_HYPERPARAMETERS": json.dumps(hyperparameters(asked)),
    }  # fmt: skip
    return [{**kept, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]


@contextlib.contextmanager
def _started(envs: Sequence[Mapping[str, str]], folder: Path) -> Iterator[Ranks]:
    """They are gone afterwards."""
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank, env in enumerate(envs):
            words = [sys.executable, "-P", "-m", "phalanx.job.train.fabric_test"]
            with _log(folder, rank).open("wb") as log:
                ranks.append(subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        yield ranks
    finally:
        _end(ranks)


def _await(ranks: Ranks, folder: Path, told: Told) -> None:
    """Raises SetupError once one has failed: the others would wait for it until a timeout."""
    while any(rank.poll() is None for rank in ranks):
        _tell(_log(folder, 0), told)
        _refuse_failed(ranks, folder)
        time.sleep(POLL_S)
    _refuse_failed(ranks, folder)


def _refuse_failed(ranks: Ranks, folder: Path) -> None:
    for number, rank in enumerate(ranks):
        if code := rank.poll():
            said = _log(folder, number).read_text(errors="replace").strip().splitlines()
            last = said[-1].removeprefix("Error: ")[:SAID_CHARS_MAX] if said else "it wrote nothing"
            raise SetupError(f"rank {number}", code, f"is what it ended with: {last}")


def _tell(log: Path, told: Told) -> None:
    lines = log.read_text(errors="replace").splitlines()
    for line in reversed(lines):
        if (found := read_progress(line)) is not None:
            told(found[1], found[2])
            return


def _end(ranks: Ranks) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()
    until_s = time.monotonic() + LEAVE_S
    for rank in ranks:
        try:
            rank.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


def _log(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
