"""The trainer with two deaths: rank 0 in its first step, rank 1 in generation 2 at step 9."""

import os
import signal
import sys

from phalanx.job.train import recover
from phalanx.job.train.__main__ import main

_moved = recover.GangWatch.moved


def moved(watch: recover.GangWatch, step: int, mark: int) -> None:
    generation = watch._gang._generation
    if (os.environ.get("RANK"), generation, step, mark) in (("0", 1, 1, 2), ("1", 2, 9, 2)):
        os.kill(os.getpid(), signal.SIGKILL)
    _moved(watch, step, mark)


recover.GangWatch.moved = moved  # type: ignore[method-assign,assignment]

if __name__ == "__main__":
    code = main(["llama"])
    sys.stdout.flush()
    os._exit(code)
