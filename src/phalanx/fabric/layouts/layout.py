"""A layout: the sizes of its axes, and the rank at each place of them.

Ranks are numbered node after node and, on a node, GPU after GPU. So the innermost axis is the one whose ranks are nearest to each
other: tensor parallelism, which talks in every layer and fills an NVLink domain first. Then context parallelism, which talks in
every attention; then data parallelism, once a block or once a step; and outermost the pipeline, whose stages only hand on
activations. (Megatron-LM, arXiv:2104.04473, section 3.)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from phalanx.core.spec import ContextKind, LayoutSpec, ScheduleName, Zero

Axis = Literal["pp", "dp_replicate", "dp_shard", "cp", "tp"]
AXES: Final[tuple[Axis, ...]] = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Outermost first."""
OF_MODEL: Final[tuple[Axis, ...]] = ("pp", "cp", "tp")
"""Whose ranks get the same samples, and each compute a part of the model or of the sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Every rank of the gang has one place on these axes: their product is the world size.

    pp: ranks of the pipeline. dp_replicate: groups that hold the whole state each, between their ranks. dp_shard: ranks that share
    the state, as far as `zero` says. cp: parts of the sequence. tp: parts of each matrix. ep: ranks that share the experts of a
    layer; no axis of its own, but so many neighbours of those that share the state: of tp first, then cp, then dp_shard. zero:
    of the state, what data-parallel ranks share: 0 nothing, 1 the optimiser's, 2 and gradients, 3 and weights. context: how ranks
    of cp share a sequence. schedule, stages_per_rank: of the pipeline.
    """

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    zero: Zero = 3
    context: ContextKind = "ring"
    schedule: ScheduleName = "1f1b"
    stages_per_rank: int = 0

    @property
    def sizes(self) -> Mapping[Axis, int]:
        """Outermost first."""
        return {
            "pp": self.pp, "dp_replicate": self.dp_replicate, "dp_shard": self.dp_shard, "cp": self.cp, "tp": self.tp,
        }  # fmt: skip

    @property
    def world_size(self) -> int:
        return math.prod(self.sizes.values())

    @property
    def data_size(self) -> int:
        """Into how many parts the samples of a step are cut."""
        return self.dp_replicate * self.dp_shard

    @property
    def model_size(self) -> int:
        """Ranks that get the same samples."""
        return self.pp * self.cp * self.tp

    @property
    def computes_alike(self) -> bool:
        """Whether each rank computes as much as any other, and waits for none inside a block: for parts of a row, of a matrix, or
        of the experts. Ranks of a pipeline have other layers."""
        return max(self.pp, self.cp, self.tp, self.ep) == 1

    def coordinates(self, rank: int) -> Mapping[Axis, int]:
        """Where `rank` is on each axis. Raises IndexError outside the world."""
        if not 0 <= rank < self.world_size:
            raise IndexError(f"rank {rank} is outside a world of {self.world_size}")
        found: dict[Axis, int] = {}
        for axis in reversed(AXES):
            rank, found[axis] = divmod(rank, self.sizes[axis])
        return {axis: found[axis] for axis in AXES}

    def rank_at(self, coordinates: Mapping[Axis, int]) -> int:
        """The reverse of `coordinates`; 0 on an axis that is not named. Raises IndexError outside of an axis."""
        rank = 0
        for axis in AXES:
            at = coordinates.get(axis, 0)
            if not 0 <= at < self.sizes[axis]:
                raise IndexError(f"{at} is outside axis {axis}, which has {self.sizes[axis]}")
            rank = rank * self.sizes[axis] + at
        return rank

    def groups(self, axis: Axis) -> tuple[tuple[int, ...], ...]:
        """The ranks that differ on `axis` alone, each group in the order of the axis: who talks with whom for it."""
        size = self.sizes[axis]
        step = math.prod(self.sizes[inner] for inner in AXES[AXES.index(axis) + 1 :])
        firsts = (outer + inner for outer in range(0, self.world_size, size * step) for inner in range(step))
        return tuple(tuple(range(first, first + size * step, step)) for first in firsts)

    def data_rank(self, rank: int) -> int:
        """Which part of each step's samples is this rank's, from 0 to data_size - 1: the same for all that share a sample."""
        at = self.coordinates(rank)
        return at["dp_replicate"] * self.dp_shard + at["dp_shard"]

    def model_rank(self, rank: int) -> int:
        """Which of the ranks that get the same samples this is, from 0 to model_size - 1."""
        at, found = self.coordinates(rank), 0
        for axis in OF_MODEL:
            found = found * self.sizes[axis] + at[axis]
        return found

    def readers(self) -> tuple[int, ...]:
        """The first rank of each part of the samples, in the order of the parts."""
        return tuple(
            self.rank_at({"dp_replicate": replica, "dp_shard": shard})
            for replica in range(self.dp_replicate)
            for shard in range(self.dp_shard)
        )


def laid_out(asked: LayoutSpec, world_size: int) -> Layout:
    """What a job asks for, over its ranks: data parallelism has those that the other axes leave. Raises ValueError where these do
    not divide them; `problems` says what to change."""
    data_size, rest = divmod(world_size, asked.pp * asked.cp * asked.tp)
    replicate = data_size if asked.zero == 0 else asked.replicate
    if rest or not data_size or data_size % replicate:
        raise ValueError(f"{asked} does not fit {world_size} ranks")
    return Layout(
        pp=asked.pp, dp_replicate=replicate, dp_shard=data_size // replicate, cp=asked.cp, tp=asked.tp,
        ep=asked.ep, zero=asked.zero, context=asked.context, schedule=asked.schedule, stages_per_rank=asked.stages_per_rank,
    )  # fmt: skip
