"""A planned fault, for tests and the demo: PHALANX_FAULT='sigkill rank=1 step=137 attempt=1'. Each is of one rank and one attempt.

| written | what happens |
| --- | --- |
| `sigkill rank=R step=S attempt=A` | the rank ends itself by SIGKILL right after its record of step S |
| `sigstop rank=R step=S attempt=A` | there the whole process stands still |
| `hang rank=R step=S attempt=A` | there its main thread does, and the others go on |
| `slow rank=R from=S ms=M attempt=A` | from step S on each forward pass of the rank takes M ms longer |
| `flip-bit rank=R step=S attempt=A` | one bit of the rank's own weights is flipped when it reads the batch of step S |
| `flip-gradient rank=R from=S attempt=A` | from step S on one bit is wrong in each backward pass of the rank, each time another |
"""

import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from phalanx.core.errors import UserError

Kind = Literal["sigkill", "sigstop", "hang", "slow", "flip-bit", "flip-gradient"]
MET: Final[tuple[Kind, ...]] = ("sigkill", "sigstop", "hang")
"""Those that a rank meets right after a record, and does not come back from; a process that takes the rank after it meets none."""

_AT_STEP: Final = {"rank": "rank", "step": "step", "attempt": "attempt"}
_WORDS: Final[Mapping[Kind, Mapping[str, str]]] = {
    "sigkill": _AT_STEP,
    "sigstop": _AT_STEP,
    "hang": _AT_STEP,
    "slow": {"rank": "rank", "from": "step", "ms": "ms", "attempt": "attempt"},
    "flip-bit": _AT_STEP,
    "flip-gradient": {"rank": "rank", "from": "step", "attempt": "attempt"},
}
"""Of each kind its words in the order in which they are written, and the field that each fills."""

_LETTERS: Final = {"rank": "R", "step": "S", "attempt": "A", "ms": "M"}
_DIGITS_MAX: Final = {"rank": 9, "step": 12, "attempt": 9, "ms": 6}


@dataclass(frozen=True, slots=True)
class Fault:
    """Of rank `rank` at or from step `step`, in the job's attempt number `attempt` only. ms: of a slow rank, how much longer."""

    rank: int
    step: int
    attempt: int
    kind: Kind = "sigkill"
    ms: int = 0


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
    kind = text.partition(" ")[0]
    words = {name: words for name, words in _WORDS.items() if name == kind}
    for name, fields in words.items():
        matched = re.fullmatch(_pattern(name, fields), text)
        if matched is not None:
            return Fault(kind=name, **{field: int(matched[field]) for field in fields.values()})
    raise UserError("PHALANX_FAULT", text, f"write it as {_forms(words or _WORDS)}, with whole numbers")


def _pattern(kind: str, fields: Mapping[str, str]) -> str:
    return " ".join([kind, *(f"{word}=(?P<{field}>[0-9]{{1,{_DIGITS_MAX[field]}}})" for word, field in fields.items())])


def _forms(kinds: Mapping[Kind, Mapping[str, str]]) -> str:
    forms = (" ".join([kind, *(f"{word}={_LETTERS[field]}" for word, field in fields.items())]) for kind, fields in kinds.items())
    return " or ".join(f"'{form}'" for form in forms)


assert set(_WORDS) == set(get_args(Kind))
