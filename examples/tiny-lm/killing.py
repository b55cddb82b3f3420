"""When the demo may kill a rank: late enough after a committed checkpoint that several steps are done again."""

import random
from dataclasses import dataclass
from typing import Final

REPLAYED_MIN: Final = 5


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL `rank` right after its record of `step`."""

    rank: int
    step: int


def valid_steps(every: int, steps: int) -> list[int]:
    """Steps at least REPLAYED_MIN after a committed manifest and before the next save, in a run that saves each `every`."""
    return [step for step in range(every, steps) if step % every >= REPLAYED_MIN]


def choose(every: int, steps: int, world_size: int, kill_step: int | None, source: random.Random) -> Kill:
    """A random kill, or one at `kill_step`. Raises ValueError naming the nearest steps that could replay enough."""
    valid = valid_steps(every, steps)
    if not valid:
        raise ValueError(f"no step of {steps} lies {REPLAYED_MIN} after a save when saving every {every}")
    rank = source.randrange(world_size)
    if kill_step is None:
        return Kill(rank, source.choice(valid))
    if kill_step not in valid:
        below = max((step for step in valid if step < kill_step), default=None)
        above = min((step for step in valid if step > kill_step), default=None)
        near = " or ".join(str(step) for step in (below, above) if step is not None)
        raise ValueError(
            f"--kill-step {kill_step}: must lie at least {REPLAYED_MIN} steps after a save and before the next (saves are every "
            f"{every} steps, the run has {steps}); the nearest valid is {near}"
        )
    return Kill(rank, kill_step)
