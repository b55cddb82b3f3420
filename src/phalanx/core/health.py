"""What was found wrong with a run while it ran: facts, each with one sentence for events, logs and `describe`."""

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from pydantic import Field, FiniteFloat

from phalanx.core.ids import NodeId

NAMED_MAX: Final = 4
"""Samples named of one bad batch: a poisoned one has a few, and a batch that is bad as a whole needs no list."""

SpikeAction = Literal["skip", "rollback", "stop"]
_Index = Annotated[int, Field(ge=0, le=2**62)]

QUARANTINE: Final = "quarantine: "
"""What the reason begins with for which the platform drains a node by itself; the attempt and what was found in it follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadSample:
    """One sample of a bad batch. sample: its index in the data order. row: which one of the training split that is. loss: its own
    mean over tokens; None when it was no number. source: of a mixture, whose row it is."""

    sample: _Index
    row: _Index
    loss: FiniteFloat | None
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpike:
    """A step whose loss was no number, or far above those before it. Every rank decides alike; the first one says it.

    measured: mean loss over the global batch, norm: of the gradients; None when no finite number. usual: median of the losses
    before it; limit: what it had to stay below; None where there were too few.
    action: what was done. weights_of: step after which the weights are those in place now; for `skip` the step before this one.
    samples: first and last index in the data order of the step's batch. worst: its samples of the highest loss, the highest first.
    """

    rank: int
    step: int
    measured: FiniteFloat | None
    norm: FiniteFloat | None
    usual: FiniteFloat | None
    limit: FiniteFloat | None
    action: SpikeAction
    weights_of: int
    samples: tuple[_Index, _Index]
    worst: Annotated[tuple[BadSample, ...], Field(max_length=NAMED_MAX)]
    at_ms: int
    kind: Literal["spike"] = field(default="spike")

    def sentence(self) -> str:
        """'loss 9.31 at step 70, usually 4.02: update skipped; samples 1104 to 1119, worst 1107 (row 311, loss 31.2)'."""
        first, last = self.samples
        return f"{self.what()}: {self._done()}; samples {first} to {last}, worst {', '.join(map(_named, self.worst)) or '-'}"

    def what(self) -> str:
        """What was seen, without what was done."""
        if self.measured is not None and self.norm is None:
            return f"gradients that are no finite number at step {self.step} (loss {self.measured:.4g})"
        usually = f", usually {self.usual:.4g}" if self.usual is not None else ""
        loss = "no finite number" if self.measured is None else f"{self.measured:.4g}"
        return f"loss {loss} at step {self.step}{usually}"

    def _done(self) -> str:
        match self.action:
            case "skip":
                return "update skipped"
            case "rollback":
                lost = self.step - self.weights_of
                return f"back to the weights of step {self.weights_of}, {lost} steps of data skipped"
            case "stop":
                return "stopped"


def _named(one: BadSample) -> str:
    loss = "no number" if one.loss is None else f"{one.loss:.4g}"
    of = f" of {one.source}" if one.source else ""
    return f"{one.sample} (row {one.row}{of}, loss {loss})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A rank whose own work takes longer than its peers'. Found by the control plane from `StepRecord.local_us`.

    ratio: median, over the last `steps`, of its local time over the median of the other ranks'; it was slow in `slow` of them.
    local_us, peers_us: medians of both, in microseconds a step. quarantined: its node was drained and the job moved.
    """

    rank: int
    node: NodeId
    device: int
    step: int
    ratio: float
    slow: int
    steps: int
    local_us: int
    peers_us: int
    quarantined: bool
    at_ms: int
    kind: Literal["straggler"] = field(default="straggler")

    def sentence(self) -> str:
        """'rank 1 (node-a, device 1) is a straggler: 1.52 times its peers in 24 of 24 steps up to 31 (61.0 ms, peers 40.1 ms)'."""
        evidence = f"{self.ratio:.2f} times its peers in {self.slow} of {self.steps} steps up to {self.step}"
        times = f"{self.local_us / 1000:.1f} ms a step, peers {self.peers_us / 1000:.1f} ms"
        done = "; its node is drained and the job moves" if self.quarantined else ""
        return f"rank {self.rank} ({self.node}, device {self.device}) is a straggler: {evidence} ({times}){done}"


CorruptPlace = Literal["gradients", "weights", "memory", "state"]
REASON_CHARS_MAX: Final = 500
RANKS_MAX: Final = 64
"""Named of one finding: beyond, it is not a card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """Bits that are not what they have to be. Every rank sees it alike; one that is not suspected says it.

    place: `gradients` that a rank computed from the same weights and samples as its peers, `weights` as it gathered them, its
    `memory` between two updates, or `state` of which others hold a replica. name: the first tensor of them, where that is known.
    ranks: those that are wrong when `certain`; else all among which somebody is.
    """

    rank: int
    step: int
    place: CorruptPlace
    name: Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9_.-]*$")]
    ranks: Annotated[tuple[_Index, ...], Field(min_length=1, max_length=RANKS_MAX)]
    certain: bool
    at_ms: int
    kind: Literal["corruption"] = field(default="corruption")

    def sentence(self) -> str:
        """'rank 1 is corrupt: other gradients than its peers from the same weights and samples at step 1000 (norm.weight)'."""
        tensor = f" ({self.name})" if self.name else ""
        return f"{self._who()}: {_CORRUPT[self.place]} at step {self.step}{tensor}"

    def _who(self) -> str:
        many = len(self.ranks) > 1
        named = f"rank{'s' if many else ''} {', '.join(map(str, self.ranks))}"
        if self.certain:
            return f"{named} {'are' if many else 'is'} corrupt"
        return f"{named} differ, and which of them is corrupt is not known"


_CORRUPT: Final = {
    "gradients": "other gradients than its peers from the same weights and samples",
    "weights": "other weights than its peers after they were gathered",
    "memory": "weights or moments that changed between two updates",
    "state": "another replica of the state than its peers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveTrouble:
    """A checkpoint that could not be written, since a disk is full or a store away. Training goes on.

    lost: it was given up, and another one may do; else it is tried again. reason: one line.
    """

    rank: int
    step: int
    lost: bool
    reason: Annotated[str, Field(max_length=REASON_CHARS_MAX)]
    at_ms: int
    kind: Literal["save"] = field(default="save")

    def sentence(self) -> str:
        """'rank 0 cannot write the checkpoint of step 100 yet: s3://... ; it is tried again, and training goes on'."""
        if self.lost:
            return f"the checkpoint of step {self.step} was given up: {self.reason}; older ones stay, and training goes on"
        return f"rank {self.rank} cannot write the checkpoint of step {self.step} yet: {self.reason}; training goes on"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTrouble:
    """A start that waits for the job's checkpoints, since a store is away: nothing is trained meanwhile. step: 0, as none is known.

    wait_s: for how long it asks again, seconds. reason: one line.
    """

    rank: int
    wait_s: int
    reason: Annotated[str, Field(max_length=REASON_CHARS_MAX)]
    at_ms: int
    step: int = 0
    kind: Literal["read"] = field(default="read")

    def sentence(self) -> str:
        """'rank 0 cannot read the job's checkpoints yet: s3://... ; it asks again for 600 s, and training waits'."""
        waits = f"it asks again for {self.wait_s} s, and training waits"
        return f"rank {self.rank} cannot read the job's checkpoints yet: {self.reason}; {waits}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LostEvidence:
    """What a rank is given cannot be recorded, as of `step`. Training goes on; no audit can prove these steps. reason: one line."""

    rank: int
    step: int
    reason: Annotated[str, Field(max_length=REASON_CHARS_MAX)]
    at_ms: int
    kind: Literal["evidence"] = field(default="evidence")

    def sentence(self) -> str:
        """'what rank 2 is given cannot be recorded from step 12 on: No space left on device; `phalanx data audit` will miss it'."""
        what = f"what rank {self.rank} is given cannot be recorded from step {self.step} on"
        return f"{what}: {self.reason}; `phalanx data audit` will miss it, and training goes on"


_BLOCKS_NAMED: Final = 8
BLOCKS_MAX: Final = 100
"""Of one finding: no run sets more aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedData:
    """Blocks of a shard that a run set aside, as its policy says. Every rank does so alike; the first one says it.

    step: the first that reads other samples instead. source: name. shard: SHA-256 of its tokens. blocks: numbers of its MiB.
    samples: of the source, which others stand in for from then on.
    """

    rank: int
    step: int
    source: Annotated[str, Field(max_length=63, pattern=r"^[A-Za-z0-9_-]+$")]
    shard: Annotated[str, Field(max_length=64, pattern=r"^[0-9a-f]+$")]
    blocks: Annotated[tuple[_Index, ...], Field(min_length=1, max_length=BLOCKS_MAX)]
    samples: _Index
    at_ms: int
    kind: Literal["data"] = field(default="data")

    def sentence(self) -> str:
        """'block 3 of shard 5d41402abc4b of web is damaged: from step 12 on other samples stand in for the 512 that need it'."""
        named = ", ".join(map(str, self.blocks[:_BLOCKS_NAMED]))
        more = f" and {len(self.blocks) - _BLOCKS_NAMED} more" if len(self.blocks) > _BLOCKS_NAMED else ""
        many = len(self.blocks) > 1
        what = f"{'blocks' if many else 'block'} {named}{more} of shard {self.shard[:12]} of {self.source}"
        instead = f"from step {self.step} on other samples stand in for the {self.samples} that need {'them' if many else 'it'}"
        return f"{what} {'cannot be read' if many else 'is damaged'}: {instead}"


Finding = Annotated[
    LossSpike | Straggler | Corruption | SaveTrouble | ReadTrouble | DamagedData | LostEvidence, Field(discriminator="kind")
]
