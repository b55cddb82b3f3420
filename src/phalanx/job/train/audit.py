"""Looks for silent corruption every so many steps: in what ranks compute, in what lies in their memory, and between replicas.

What is found is said by a rank that is not suspected, and the run goes on: what becomes of the node is the control plane's to say.
"""

import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import torch

from phalanx.core.health import RANKS_MAX, Corruption, CorruptPlace
from phalanx.job.checkpoint.digest import bit_sum, gathered
from phalanx.job.checkpoint.odd import Odd, after_second_look, odd_ones
from phalanx.job.checkpoint.together import told_by_all
from phalanx.job.train.device import Rank
from phalanx.job.train.parallel.experts import is_expert_parallel
from phalanx.job.train.pipeline.stage import RankPart
from phalanx.job.train.recompute import recomputed

if TYPE_CHECKING:
    from phalanx.job.train.setup import Training

_log: Final = logging.getLogger(__name__)


class Audit:
    """`every`: steps between two looks, 0 for none. Ranks are held against those of the same kind of device only: other devices may
    round otherwise; and of the same part of the model, since other parts have other numbers."""

    def __init__(self, every: int, rank: Rank) -> None:
        """A collective of all ranks."""
        self._every = every
        kinds = told_by_all((_kind(rank), rank.model_rank))
        alike = [[at for at, kind in enumerate(kinds) if kind == one] for one in dict.fromkeys(kinds)]
        self._peers = [ranks for ranks in alike if len(ranks) > 1]
        self._resting: torch.Tensor | None = None

    def is_due(self, step: int) -> bool:
        return self._every > 0 and step % self._every == 0

    def compute(self, training: "Training", step: int, microbatch: Callable[[int], torch.Tensor]) -> None:
        """Before step `step`: all ranks compute rank 0's first microbatch of it. A collective of all ranks. Not where experts lie
        over ranks: each computes with other weights than its peers. Nor over a pipeline, whose ranks compute no sample alone."""
        if not self.is_due(step) or not self._peers or is_expert_parallel(training.model) or isinstance(training.model, RankPart):
            return
        samples = microbatch(step)
        names, mine = recomputed(training.model, training.optimizer, samples)
        table = gathered(mine)
        found = self._first_odd(names, table)
        if found is None:
            return
        column, odd = found
        again = gathered(recomputed(training.model, training.optimizer, samples)[1])
        odd = after_second_look(odd, _column(table, column), _column(again, column))
        place, _, name = names[column].partition(".")
        tell(training, step, "weights" if place == "weights" else "gradients", name, odd)

    def rest(self, training: "Training", step: int) -> None:
        """After step `step`: notes what this rank's weights and moments are, if the next step looks at them."""
        self._resting = _sums(training) if self.is_due(step + 1) else None

    def wake(self, training: "Training", step: int) -> None:
        """Before the update of `step`: they have to be what they were. A collective of all ranks."""
        if not self.is_due(step):
            return
        mine = torch.zeros(
            1, dtype=torch.int64, device=training.rank.device
        )  # of a rank that has just come there is nothing to say
        if self._resting is not None:
            mine += (_sums(training) != self._resting).any()
        ranks = tuple(rank for rank, row in enumerate(gathered(mine)) if row[0])
        if ranks:
            tell(training, step, "memory", "", Odd(ranks, True))

    def _first_odd(self, names: Sequence[str], table: Sequence[Sequence[int]]) -> tuple[int, Odd] | None:
        for column in range(len(names)):
            for peers in self._peers:
                odd = odd_ones({rank: table[rank][column] for rank in peers})
                if odd is not None:
                    return column, odd
        return None


def tell(training: "Training", step: int, place: CorruptPlace, name: str, odd: Odd) -> None:
    """On every rank; one of them says it."""
    unsuspected = [rank for rank in range(training.rank.world_size) if rank not in odd.ranks]
    if training.rank.rank != (unsuspected or [0])[0]:
        return
    found = Corruption(
        rank=training.rank.slot,
        step=step,
        place=place,
        name=name,
        ranks=tuple(training.rank.slot_of(rank) for rank in odd.ranks[:RANKS_MAX]),
        certain=odd.certain,
        at_ms=training.unix_ms(),
    )
    training.session.corruption(found)
    _log.warning("%s", found.sentence())


def _sums(training: "Training") -> torch.Tensor:
    """Of this rank's weights and moments, int64."""
    state = training.optimizer.state
    parts = [
        tensor
        for parameter in training.model.parameters()
        for tensor in (parameter, *(value for _, value in sorted(state.get(parameter, {}).items())))
        if isinstance(tensor, torch.Tensor)
    ]
    return torch.stack([bit_sum(part, training.rank.device) for part in parts])


def _column(table: Sequence[Sequence[int]], column: int) -> Mapping[int, int]:
    return {rank: row[column] for rank, row in enumerate(table)}


def _kind(rank: Rank) -> str:
    """Of devices that compute the same bits: by their name on GPUs, by what the vector units can on CPUs."""
    on_cpu = f" {platform.machine()} {torch.backends.cpu.get_cpu_capability()}" if rank.device.type == "cpu" else ""
    return f"{rank.device_name}{on_cpu} torch {torch.__version__}"
