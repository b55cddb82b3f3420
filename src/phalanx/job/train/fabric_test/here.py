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

from phalanx.core import wire
from phalanx.core.errors import SetupError, SpecError
from phalanx.core.fabric_test import RANKS_HERE_MAX, REPORT, FabricAsked, FabricReport, checked, read_progress, read_report
from phalanx.storage.atomic import make_folders, write_atomic

POLL_S: Final = 0.1
LEAVE_S: Final = 10.0
"""From SIGTERM to SIGKILL."""
SAID_CHARS_MAX: Final = 500

Told = Callable[[int, int], None]
"""Called as (done, total)."""
Ranks = Sequence["subprocess.Popen[bytes]"]


def tested_here(asked: FabricAsked, num_ranks: int, out: Path, told: Told) -> FabricReport:
    """The report, which is in the file `out` too. Raises SpecError, and SetupError for what a rank ended with."""
    checked(asked)
    if not 2 <= num_ranks <= RANKS_HERE_MAX:
        fix = f"a fabric is tested by two ranks or more; write a number from 2 to {RANKS_HERE_MAX}"
        raise SpecError("--gpus", num_ranks, fix)
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
        "PHALANX_HYPERPARAMETERS": json.dumps({"asked": wire.dumps(FabricAsked, asked)}),
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
