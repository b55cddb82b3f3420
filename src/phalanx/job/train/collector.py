"""Python's collector of circles, after steps that all ranks share.

Left to itself it looks through all that belongs to a model whenever enough was made since: for 0.3 s with one of 7 billion
parameters, in any step, on one rank, while all others wait for it.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Final

EVERY_STEPS: Final = 100


@contextlib.contextmanager
def collected_at_steps() -> Iterator[Callable[[int], None]]:
    """Until the end it collects only where what is given is called after a step of EVERY_STEPS, counted from 1."""
    gc.collect()
    gc.disable()
    try:
        yield _after
    finally:
        gc.enable()


def _after(step: int) -> None:
    if step % EVERY_STEPS == 0:
        gc.collect()
