"""A planned death, for tests and the demo: PHALANX_FAULT='sigkill rank=1 step=137 attempt=1'."""

import re
from dataclasses import dataclass
from typing import Final

from phalanx.core.errors import UserError

_GRAMMAR: Final = re.compile(r"sigkill rank=([0-9]{1,9}) step=([0-9]{1,12}) attempt=([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Fault:
    """Rank `rank` ends itself by SIGKILL right after its record of `step`, in the job's attempt number `attempt` only."""

    rank: int
    step: int
    attempt: int


def parse_fault(text: str) -> Fault | None:
    """None for ''. Raises UserError for anything that is not exactly one fault."""
    if not text:
        return None
    matched = _GRAMMAR.fullmatch(text)
    if matched is None:
        raise UserError("PHALANX_FAULT", text, "write it as 'sigkill rank=R step=S attempt=A', with whole numbers")
    return Fault(int(matched[1]), int(matched[2]), int(matched[3]))
