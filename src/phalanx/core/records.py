"""What a rank tells the platform: one JSON line each in its record file, announced on the agent's socket.

The file is written first and the socket only rings, so a rank never waits and nothing is lost when the agent is away.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from phalanx.core.chaos import FaultMet
from phalanx.core.health import Corruption, DamagedData, LossSpike, LostEvidence, ReadTrouble, SaveTrouble
from phalanx.core.trace_request import TraceMissed

NAN_AS_TEXT: Final = ConfigDict(ser_json_inf_nan="strings")
"""JSON has no NaN, and a diverged run has little else: it travels as 'NaN', which reads back as one."""


CAUSE_CHARS_MAX: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One optimiser step of one rank, written before the next step starts.

    step: 1 for the first update. loss: mean over the global batch, the same on every rank; `loss_hex` is `float.hex` of it.
    tokens: of the global batch. images: in it; 0 of other samples. tokens_per_s, images_per_s: global. mfu: model FLOPs over the
    devices' peak, 0 where no peak is known.
    local_us: microseconds that this rank computed in it without waiting for another, in its forward passes; 0 is not measured, as
    where ranks share rows, matrices or experts and so wait for each other inside a block.
    *_ms: wall time of this rank; the phases lie inside [started_ms, ended_ms] (Unix time) and need not fill it.
    data_wait_cause: what most of `data_wait_ms` was for, such as `read`; '' where nothing was waited for. See docs/data.md.
    """

    __pydantic_config__ = NAN_AS_TEXT

    rank: int
    step: int
    total_steps: int
    loss: float
    loss_hex: str
    grad_norm: float
    lr: float
    tokens: int
    tokens_per_s: float
    mfu: float
    started_ms: int
    ended_ms: int
    data_wait_ms: int = 0
    compute_ms: int = 0
    comm_ms: int = 0
    optimizer_ms: int = 0
    checkpoint_ms: int = 0
    local_us: int = 0
    data_wait_cause: Annotated[str, Field(max_length=CAUSE_CHARS_MAX, pattern=r"^[a-z_]*$")] = ""
    images: int = 0
    kind: Literal["step"] = "step"

    @property
    def images_per_s(self) -> float:
        return self.tokens_per_s * self.images / self.tokens if self.tokens > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A named value at a step that is not part of every step, such as a held-out loss."""

    __pydantic_config__ = NAN_AS_TEXT

    rank: int
    step: int
    name: str
    value: float
    at_ms: int
    kind: Literal["metric"] = "metric"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """This attempt continues after `step` of the named checkpoint; `skipped` names damaged newer ones."""

    rank: int
    step: int
    checkpoint: str
    skipped: tuple[str, ...]
    at_ms: int
    kind: Literal["resumed"] = "resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The gang goes on inside this attempt, in a new generation, after a fault or because it grew. Said by its first rank with its
    first step.

    step: of the state it went on from. why: the fault, in words. replaced: ranks that have another process now, and pids: which (as
    `ps` shows them). steps_lost: completed before and made again. recovery_ms: from the noticing of the fault to the next completed
    step. absent: ranks that have no part in this generation; the others do their work. planned: there was no fault, it grew.
    """

    rank: int
    step: int
    generation: int
    why: str
    replaced: tuple[int, ...]
    pids: tuple[int, ...]
    steps_lost: int
    recovery_ms: int
    at_ms: int
    absent: tuple[int, ...] = ()
    planned: bool = False
    kind: Literal["recovered"] = "recovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCommitted:
    """A checkpoint whose manifest is durable. `path` is a folder, or a URL in an object store; `digest` the manifest's SHA-256."""

    rank: int
    step: int
    path: str
    digest: str
    size_bytes: int
    at_ms: int
    kind: Literal["checkpoint"] = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSaved:
    """A finished model: a folder of safetensors, tokenizer and config.

    weights_digest: SHA-256 over names, shapes, dtypes and bytes in name order. lineage: what only the rank knows
    (data_manifest, environment, checkpoint, recipe config, torch version), added to what the control plane knows.
    """

    __pydantic_config__ = NAN_AS_TEXT

    rank: int
    step: int
    path: str
    weights_digest: str
    metrics: Mapping[str, float]
    lineage: Mapping[str, str]
    at_ms: int
    kind: Literal["model"] = "model"


RANKS_NAMED_MAX: Final = 8


def ranks_text(ranks: Sequence[int]) -> str:
    """For people; '' for none."""
    named = ", ".join(map(str, ranks[:RANKS_NAMED_MAX]))
    more = f" and {len(ranks) - RANKS_NAMED_MAX} more" if len(ranks) > RANKS_NAMED_MAX else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named}{more}" if ranks else ""


RankFact = (
    Resumed
    | Recovered
    | CheckpointCommitted
    | ModelSaved
    | LossSpike
    | Corruption
    | SaveTrouble
    | ReadTrouble
    | DamagedData
    | LostEvidence
    | FaultMet
    | TraceMissed
)
"""Records that become events of the job; the others are measurements."""

RankRecord = Annotated[StepRecord | Metric | RankFact, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """The one message from rank to agent: `rank` is process `pid` and its record file now ends at `offset`."""

    rank: int
    pid: int
    offset: int
    kind: Literal["ring"] = field(default="ring")
