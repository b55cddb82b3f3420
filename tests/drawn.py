"""How many examples a property is held against: drawn anew in each run, so every `make test` looks at others."""

import os
from typing import Final

_IN_LONG: Final = bool(os.environ.get("PHALANX_SOAK"))
_PART: Final = 3
_FEWEST: Final = 20


def examples(number: int) -> int:
    """`number` of them in `make soak`, a third in `make test`, which has minutes for all."""
    return number if _IN_LONG else min(number, max(_FEWEST, number // _PART))
