"""Signs of work in a job that people work in: what its node can tell, and how long ago each last showed any."""

from dataclasses import dataclass
from typing import Literal

SignalName = Literal["kernel", "gpu", "cpu", "terminal", "connections", "files"]


@dataclass(frozen=True, slots=True)
class Signal:
    """age_ms: since it last showed work, 0 for now; None where that cannot be known, which counts as work. said: in words, what it
    is taken from. A signal that a job does not have, such as the GPU of one without, is not there at all."""

    name: SignalName
    age_ms: int | None
    said: str = ""
