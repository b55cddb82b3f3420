"""Gangs of the training benchmark: ranks of its own file, watched case by case, so that one which hangs or fails costs its case
and not the others. No torch."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from parts.gang import free_port  # type: ignore[import-not-found]  # beside this folder
from parts.train_case import Answer, Asked, Case, heard, told  # type: ignore[import-not-found]  # beside this folder

SAID = "said.jsonl"
ASKED = "asked.json"
INDEX: Final = "index"
BEGUN: Final = "begun"
"""In what a rank says: of which entry, and that it begins with it."""
ENV: Final = {
    # Of both sides: torchtitan's own starter sets it, and without it memory that is nearly full falls into pieces.
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    # Multicast over NVLink is of little use to two GPUs, and not everywhere may it be used.
    "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1",
}  # fmt: skip
STARTED_BY: Final = "PHALANX_BENCH_STARTED_BY"
"""Process that started a rank."""
_HUNG_TIMES: Final = 3.0
_EMPTY_GANGS_MAX: Final = 2
"""That end before any answer: then it is not the case."""
_LOOKS_S: Final = 0.1
_PR_SET_PDEATHSIG: Final = 1
"""Of linux/prctl.h."""

Heard = Callable[[int, Answer], None]


def run_gang(side: str, asked: Asked, ranks: int, folder: Path, cache: Path, each: Heard) -> dict[int, Answer]:
    """What rank 0 says of each entry that ranks came to, and of those at which a gang ended, that they failed. each: is told of
    each answer at once. A gang that ends early is followed by another one, for what is left."""
    answers: dict[int, Answer] = {}
    empty = 0
    while asked.next(time.time()) is not None and empty < _EMPTY_GANGS_MAX:
        one = _Gang(side, asked, ranks, folder, cache)
        why = one.watched(answers, each)
        asked = replace(asked, tried={index: "failed" not in answer for index, answer in answers.items()})
        if not why:
            break
        empty = empty + 1 if one.at is None else 0
        if why and one.at is not None:
            answers[one.at] = {"failed": why}
            asked = asked.after(one.at, good=False)
            each(one.at, answers[one.at])
    return answers


class _Gang:
    """One, until it ends. at: the entry that it is at; None before the first and after each."""

    def __init__(self, side: str, asked: Asked, ranks: int, folder: Path, cache: Path) -> None:
        self._side, self._asked, self._folder = side, asked, folder
        self.at: int | None = None
        (folder / ASKED).write_text(json.dumps(told(asked)))
        (folder / SAID).write_text("")
        port = str(free_port())
        words = [sys.executable, sys.argv[0], "--as-rank", str(folder), "--side", side]
        self._started = []
        for rank in range(ranks):
            torchrun = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
            own = {**torchrun, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHINDUCTOR_CACHE_DIR": str(cache)} | {
                STARTED_BY: str(os.getpid())
            }
            with self._log(rank).open("wb") as log:
                started = subprocess.Popen(words, env={**ENV, **os.environ, **own}, stdout=log, stderr=log, start_new_session=True)
            self._started.append(started)

    def watched(self, answers: dict[int, Answer], each: Heard) -> str:
        """Adds its answers; why it ended early, '' when it did not."""
        heard_s, read = time.monotonic(), 0
        while True:
            codes = [one.poll() for one in self._started]  # before what they said is read: nothing comes after it
            lines = (self._folder / SAID).read_text().splitlines(keepends=True)
            for line in (line for line in lines[read:] if line.endswith("\n")):
                read, heard_s = read + 1, time.monotonic()
                found = json.loads(line)
                index = found.pop(INDEX)
                self.at = index if BEGUN in found else None
                if BEGUN not in found:
                    answers[index] = found
                    each(index, found)
            if None not in codes or any(codes):
                return self._ended("")
            if why := self._too_long(time.monotonic() - heard_s):
                return self._ended(why)
            time.sleep(_LOOKS_S)

    def _too_long(self, quiet_s: float) -> str:
        if time.time() > self._asked.hard_s:
            return "no time was left"
        expected_s = 0.0 if self.at is None else self._asked.entries[self.at].expected_s
        most_s = max(self._asked.quiet_s, _HUNG_TIMES * expected_s)
        return f"silent for {quiet_s:.0f} s" if quiet_s > most_s else ""

    def _ended(self, why: str) -> str:
        """Once one rank has failed the others would wait for it. Why it ended early, with the last line of the rank that says
        it."""
        codes = [one.poll() for one in self._started]
        for one in self._started:
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
        if not why and not any(codes):
            return ""
        first = next((rank for rank, code in enumerate(codes) if code), 0)
        why = why or f"ranks ended with {[one.returncode for one in self._started]}"
        sys.stderr.write(f"{self._side}: {why}; rank {first} said last:\n{end_of(self._log(first))}\n")
        return f"{why}: {end_of(self._log(first), 1)}"

    def _log(self, rank: int) -> Path:
        return self._folder / f"{self._side}-{rank}.log"


def end_of(log: Path, lines: int = 12) -> str:
    found = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return "\n".join(found[-lines:])[-2000:]


# In a rank


def end_with_parent() -> None:
    """A call that is cut leaves no rank behind that holds its GPU: ranks have sessions of their own, so that they can be ended with
    all that they started."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.environ.get(STARTED_BY, str(os.getppid())) != str(os.getppid()):  # it was over before this was asked for
        sys.exit(1)


def asked_in(folder: Path) -> Asked:
    return heard(json.loads((folder / ASKED).read_text()))


def say(folder: Path, index: int, answer: Answer) -> None:
    """Of rank 0 alone."""
    with (folder / SAID).open("a") as file:
        file.write(json.dumps({INDEX: index, **answer}) + "\n")


def in_turn(folder: Path, agreed: Callable[[int], int], measured: Callable[[Case], Answer]) -> None:
    """Every entry that there is time for, each said as soon as it is measured. agreed: of a number that ranks may see differently,
    rank 0's."""
    asked, is_first, slower = asked_in(folder), os.environ["RANK"] == "0", 1.0
    while True:
        chosen = asked.next(time.time(), slower)
        if is_first and chosen is not None:
            say(folder, chosen, {BEGUN: True})  # before any other rank can begin with it
        if (index := agreed(-1 if chosen is None else chosen)) < 0:
            return
        began_s = time.monotonic()
        answer = measured(asked.entries[index].case)
        took_s = time.monotonic() - began_s
        slower = max(slower, took_s / asked.entries[index].expected_s)
        if is_first:
            say(folder, index, {**answer, "took_s": round(took_s, 1)})
        asked = asked.after(index, bool(agreed(int("failed" not in answer))))


def words_of(error: Exception, out_of_memory: type[Exception]) -> str:
    """One line of what went wrong."""
    return "out of memory" if isinstance(error, out_of_memory) else f"{type(error).__name__}: {error}".partition("\n")[0][:300]
