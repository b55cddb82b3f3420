"""How properties are held against examples: drawn anew in each run, so every `make test` looks at others."""

import os
from typing import Final

from hypothesis import HealthCheck

ANYHOW: Final = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
"""Checks that a busy machine, or the chance of a draw, fails."""

_IN_LONG: Final = bool(os.environ.get("PHALANX_SOAK"))
_PART: Final = 3
_FEWEST: Final = 20


def examples(number: int) -> int:
    """`number` of them in `make soak`, a third in `make test`, which has minutes for all."""
    return number if _IN_LONG else min(number, max(_FEWEST, number // _PART))
