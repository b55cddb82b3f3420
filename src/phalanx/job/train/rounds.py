"""Which state a gang would go back to if it lost a place, and the rounds in which a newer one takes its turn.

The invariant: of one state, `kept`, every rank has its own snapshot and some other place a replica of it, and neither is let go of
before both are true of a newer one. So a round counts for all ranks or for none: all send the same step, the next round begins when
everybody's last has ended, and what some have sent in a round that failed for others is worth nothing. A place that is lost takes
its own snapshot and the replicas that it held; what is left of `kept` is whole.

A new generation begins with `kept` of the one before it (see replicas.safest), and with a round for the state it goes on from.
"""

from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist

from phalanx.job.checkpoint.copier import Copier

Version = tuple[int, int]
"""(generation, step) of a snapshot."""
LEFT: Final = 2
"""Segments without which snapshots could not go on: the newest whole one, and one that is being copied."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks know at one step. settled: the round has ended well. failed: it has ended, and not well for some. moved: a
    keeper is reached elsewhere than it was."""

    settled: bool
    failed: bool
    moved: bool


class Rounds:
    """Of one rank, in one generation."""

    def __init__(self, kept: Version | None = None) -> None:
        """kept: of the generation before this."""
        self.kept = kept
        self.under_way: Version | None = None
        self.next_step = -1  # is sent once it is sealed
        self.agreed = -1  # the newest step of which every rank has a replica made in this generation

    def begin(self, version: Version) -> None:
        """All ranks do."""
        self.under_way = version
        self.next_step = version[1]

    def agree(self, copier: Copier, version: Version, *, can_send: bool, moved: bool) -> Agreed:
        """Before the copy of `version` begins. can_send: whether this rank has somebody to give it to, and its saves do not wait
        for the memory. A collective of all ranks, over gloo."""
        memory = copier.memory
        assert memory is not None
        ended = not memory.is_replicating
        has = self.under_way is not None and copier.replicated == self.under_way
        free = can_send and ended and memory.can_save(LEFT)
        answer = torch.tensor([int(one) for one in (free, ended, has, not moved)], dtype=torch.int64)
        dist.all_reduce(answer, dist.ReduceOp.MIN)
        all_free, all_ended, all_have, none_moved = (bool(one) for one in answer)
        failed = all_ended and not all_have and self.under_way is not None
        if all_have:
            assert self.under_way is not None
            self.kept, self.agreed = self.under_way, self.under_way[1]
        if all_have or failed:
            self.under_way = None
            memory.keep_only(self.kept)
        self.next_step = -1
        if all_free:
            self.begin(version)
        return Agreed(settled=all_have, failed=failed, moved=not none_moved)
