"""Traces that somebody asks a running job for: what may be asked, what its ranks are told, and what became of it.

The newest request of an attempt lies in a folder of it on each of its nodes. Ranks look there at every step, and hear of it while
the agent is away too.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from pydantic import Field

from phalanx.core.errors import SpecError
from phalanx.core.health import REASON_CHARS_MAX
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.profile import RANKS_READ_MAX, TRACED_STEPS_MAX
from phalanx.core.wire import CLOSED

REQUESTS_VARIABLE: Final = "PHALANX_REQUESTS"
"""Of a rank's environment: the attempt's folder of requests."""
TRACES: Final = "traces.json"
UNASKABLE: Final = -1
"""In an attempt's report, as the number of its newest request: an agent that knew of none started its ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesAsked:
    """As somebody asks for them: of so many of the steps that come next. ranks: none named is all."""

    __pydantic_config__ = CLOSED

    steps: int
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """Of one attempt: `count` steps from `first` on. number: from 1, in the order in which they were asked for."""

    number: int
    first: int
    count: int
    ranks: tuple[int, ...] = ()

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def is_of(self, rank: int) -> bool:
        return not self.ranks or rank in self.ranks

    def steps_text(self) -> str:
        """'steps 40 to 44'."""
        return f"step {self.first}" if self.count == 1 else f"steps {self.first} to {self.last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceMissed:
    """A rank that was asked leaves no trace, and trains on. step: the last that it had made. why: one line."""

    rank: int
    step: int
    number: int
    why: Annotated[str, Field(max_length=REASON_CHARS_MAX)]
    at_ms: int
    kind: Literal["trace_missed"] = field(default="trace_missed")

    def sentence(self) -> str:
        return f"rank {self.rank} leaves no trace of request {self.number}: {self.why}; training goes on"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedView:
    """A rank without a trace, and why."""

    rank: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequestView:
    """A request and how far it is. ranks: that were asked, none is all. at_step: the newest that the attempt is known to have made.
    traced: how many ranks' summaries are there. missed: ranks that leave none. left: ranks of which nothing is known yet. ended:
    the attempt is over."""

    job: JobId
    attempt: AttemptId
    number: int
    first: int
    last: int
    ranks: tuple[int, ...]
    by: str
    at_ms: int
    at_step: int
    traced: int
    missed: tuple[MissedView, ...]
    left: tuple[int, ...]
    ended: bool


def check_asked(asked: TracesAsked) -> None:
    """What can be told without the job. Raises SpecError naming the field, its value and what to change."""
    if not 1 <= asked.steps <= TRACED_STEPS_MAX:
        raise SpecError("steps", asked.steps, f"write 1 to {TRACED_STEPS_MAX} steps: a trace of more is opened by no page")
    if len(asked.ranks) > RANKS_READ_MAX:
        raise SpecError("ranks", f"{len(asked.ranks)} ranks", f"name at most {RANKS_READ_MAX}, or none for all")
    if asked.ranks and min(asked.ranks) < 0:
        raise SpecError("ranks", min(asked.ranks), "write ranks' numbers, from 0")
    if len(set(asked.ranks)) < len(asked.ranks):
        raise SpecError("ranks", max(asked.ranks, key=asked.ranks.count), "name each rank once")
