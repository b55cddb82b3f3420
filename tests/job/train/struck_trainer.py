"""The trainer with three faults: rank 0 dies in the middle of copying the state after step 9, the keeper of rank 1 after step 15,
and rank 1 in step 20."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from phalanx.job.checkpoint import beside
from phalanx.job.checkpoint.copier import Copier
from phalanx.job.train import recover
from phalanx.job.train.__main__ import main

_copy_and, _take, _moved = beside._copy_and, Copier.take, recover.GangWatch.moved
_copying = (0, 0)


def take(copier: Copier, step: int, generation: int, *more: Any) -> bool:
    global _copying
    copier.wait()  # what is copied before this
    _copying = (step, generation)
    if (os.environ["RANK"], generation, step) == ("1", 2, 15):
        assert copier.memory is not None
        os.kill(copier.memory.keeper_pid, signal.SIGKILL)
    return _take(copier, step, generation, *more)


def copy_and(copies: beside.Copies, then: Callable[[], None]) -> None:
    if os.environ["RANK"] == "0" and _copying == (9, 1):
        _copy_and(copies[: len(copies) // 2], lambda: None)
        os.kill(os.getpid(), signal.SIGKILL)
    _copy_and(copies, then)


def moved(watch: recover.GangWatch, step: int, mark: int) -> None:
    if (os.environ.get("RANK"), watch._gang._generation, step, mark) == ("1", 2, 20, 2):
        os.kill(os.getpid(), signal.SIGKILL)
    _moved(watch, step, mark)


beside._copy_and = copy_and
Copier.take = take  # type: ignore[method-assign,assignment]
recover.GangWatch.moved = moved  # type: ignore[method-assign,assignment]

if __name__ == "__main__":
    code = main(["llama"])
    sys.stdout.flush()
    os._exit(code)
