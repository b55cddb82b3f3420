"""When a job's next attempt may start: at once after one that got somewhere, later and later after those that did not. Pure."""

from typing import Final

STEADY_MS: Final = 10_000
"""An attempt that held its devices this long is followed at once, whatever ended it."""

FIRST_MS: Final = 1_000
LONGEST_MS: Final = 60_000

FRUITLESS_MAX: Final = (LONGEST_MS // FIRST_MS).bit_length()
"""Interruptions without progress one after another that use up no restart: as many as there are waits before the longest one."""


def delay_ms(held_ms: int, progressed: bool, quick_before: int) -> int:
    """Wait after an attempt that held its devices for `held_ms`: none when it lasted or committed a checkpoint, else 1 s, twice
    as much for each of the `quick_before` attempts right before it that got nowhere either, up to a minute."""
    if progressed or held_ms >= STEADY_MS:
        return 0
    return min(LONGEST_MS, FIRST_MS << min(quick_before, 16))


def left_ms(not_before_ms: int, now_ms: int) -> int:
    """How much longer an attempt is put off. More than the longest wait can only be a clock that was set back: then it is due."""
    left = not_before_ms - now_ms
    return left if 0 < left <= LONGEST_MS else 0
