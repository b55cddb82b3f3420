"""A planned fault, for tests and the demo: PHALANX_FAULT='sigkill rank=1 step=137 attempt=1'."""

import os
import re
import signal
import time
from dataclasses import dataclass
from typing import Final, Literal, cast

from phalanx.core.errors import UserError

Kind = Literal["sigkill", "sigstop", "hang"]
"""sigkill: it is gone at once. sigstop: the whole process stands still. hang: its main thread does, and the others go on."""

_GRAMMAR: Final = re.compile(r"(sigkill|sigstop|hang) rank=([0-9]{1,9}) step=([0-9]{1,12}) attempt=([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Fault:
    """Rank `rank` meets it right after its record of `step`, in the job's attempt number `attempt` only; not a process that takes
    the rank after it."""

    rank: int
    step: int
    attempt: int
    kind: Kind = "sigkill"


def meet(kind: Kind) -> None:
    """Does not come back."""
    while True:
        if kind != "hang":
            os.kill(os.getpid(), signal.SIGKILL if kind == "sigkill" else signal.SIGSTOP)
        time.sleep(3600)


def parse_fault(text: str) -> Fault | None:
    """None for ''. Raises UserError for anything that is not exactly one fault."""
    if not text:
        return None
    matched = _GRAMMAR.fullmatch(text)
    if matched is None:
        raise UserError(
            "PHALANX_FAULT", text, "write it as 'sigkill rank=R step=S attempt=A' (or sigstop, hang), with whole numbers"
        )
    return Fault(int(matched[2]), int(matched[3]), int(matched[4]), cast(Kind, matched[1]))
