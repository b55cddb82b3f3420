"""The trainer with two losses of a whole place, rank and keeper: place 3 once every rank has a replica, and place 1 of the
smaller gang that goes on. In that keepers do not reach each other, for longer than what it does not keep is overwritten."""

import os
import signal
import sys
from dataclasses import replace
from typing import Any

from phalanx.job.checkpoint.keeper.messages import Peer
from phalanx.job.checkpoint.memory import Memory
from phalanx.job.train import recover
from phalanx.job.train.__main__ import main

DYING = {1: ("3", 12), 2: ("1", 26)}
"""Generation to the place that dies in it, and from which step on."""
NOBODY = 1
"""A port where nobody listens."""
_moved = recover.GangWatch.moved
_replicate = Memory.replicate
_generation = recover.Recipe._generation
now = 0


def moved(watch: recover.GangWatch, step: int, mark: int) -> None:
    place, from_step = DYING.get(now, ("", 0))
    if (os.environ.get("RANK"), mark) == (place, 2) and step >= from_step:
        snapshots = watch.snapshots
        if snapshots is not None and (now > 1 or snapshots._exchange.agreed > 0):
            memory = snapshots.copier.memory
            assert memory is not None
            os.kill(memory.keeper_pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
    _moved(watch, step, mark)


def replicate(memory: Memory, step: int, peer: Peer, *more: Any, **other: Any) -> None:
    _replicate(memory, step, replace(peer, port=NOBODY) if now == 2 else peer, *more, **other)


def generation(recipe: recover.Recipe, rank: Any, place: Any) -> Any:
    global now
    now = place.generation
    return _generation(recipe, rank, place)


recover.GangWatch.moved = moved  # type: ignore[method-assign,assignment]
recover.Recipe._generation = generation  # type: ignore[method-assign,assignment]
Memory.replicate = replicate  # type: ignore[method-assign,assignment]

if __name__ == "__main__":
    code = main(["llama"])
    sys.stdout.flush()
    os._exit(code)
