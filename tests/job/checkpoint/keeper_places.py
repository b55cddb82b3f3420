"""Places of keepers for tests, and their end."""

import time
from collections.abc import Callable
from pathlib import Path

from phalanx.job.checkpoint.keeper.link import _connected
from phalanx.job.checkpoint.keeper.place import Place
from phalanx.job.checkpoint.memory import Memory
from phalanx.operate.agent.processes import start_ticks
from tests.job.checkpoint.snapshot_parts import PARTS, filled

ATTEMPT = "lm-1.1"


def place_at(folder: Path, slot: int = 0) -> Place:
    return Place(folder=folder, slot=slot, attempt=ATTEMPT)


def end_keepers(folder: Path, slots: int = 2) -> None:
    for slot in range(slots):
        channel = _connected(place_at(folder, slot))
        if channel is not None:
            channel.close()
            Memory.attach(place_at(folder, slot), PARTS).close()


def snapshot(memory: Memory, step: int, generation: int = 0) -> None:
    draft = memory.begin(step, generation)
    assert draft is not None
    for part, place in draft.places:
        place[:] = filled(part, step)
    draft.seal()


def ends(pid: int) -> None:
    """Waits until all of its threads have: its connections are closed then."""
    eventually(lambda: start_ticks(pid) is None)


def eventually(holds: Callable[[], object], limit_s: float = 60) -> None:
    until = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)
