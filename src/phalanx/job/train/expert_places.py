"""Where a run's experts lie: looked at every so many steps, and changed where their loads would be shared more evenly. By the loads
of that one step alone, so that a run that was resumed places them as one that nothing disturbed."""

import logging
from collections.abc import Sequence
from typing import Final

import torch
from torch import nn

from phalanx.fabric.experts import ExpertLayout, balance
from phalanx.job.models.moe.mixture import Mixture, mixtures
from phalanx.job.train.balance import loads_of
from phalanx.job.train.place_experts import place_experts

_log: Final = logging.getLogger(__name__)
WORTH: Final = 0.05
"""What the fullest rank has to lose of its load, as a part of it, for experts of a layer to move: loads waver by about as much."""


class ExpertPlaces:
    """Of a model whose experts lie over ranks, else nothing happens. every: steps between two looks, 0 for none."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, every: int) -> None:
        self._model, self._optimizer, self._every = model, optimizer, every
        self._mixtures = [one for one in mixtures(model) if one.experts.exchange is not None]

    def stepped(self, step: int) -> int:
        """Right after the update of `step`, when nobody reads the state: how many experts moved. A collective of all ranks."""
        if not self._every or not self._mixtures or step % self._every:
            return 0
        loads_le = loads_of(self._model)
        assert loads_le is not None
        moved = place_experts(self._model, self._optimizer, self._wanted(loads_le.tolist()))
        _log.info("step %d  %d experts moved to other ranks", step, moved)
        return moved

    def _wanted(self, loads: Sequence[Sequence[int]]) -> list[list[int]]:
        """For each layer the expert of each slot: where it is now, or better. One place for each, so that no node's traffic depends
        on where; the same on every rank."""
        return [_better(mixture, load) for mixture, load in zip(self._mixtures, loads, strict=True)]


def _better(mixture: Mixture, load: Sequence[int]) -> list[int]:
    now = mixture.slots.argsort().tolist()
    ranks = mixture.experts.exchange.group.size() if mixture.experts.exchange is not None else 1
    layout = ExpertLayout(num_nodes=1, gpus_per_node=ranks, slots_per_gpu=len(now) // ranks)
    found: list[int] = balance([load], layout).experts_LGS.reshape(-1).tolist()
    return found if _fullest(found, load, ranks) < (1 - WORTH) * _fullest(now, load, ranks) else now


def _fullest(experts: Sequence[int], load: Sequence[int], ranks: int) -> int:
    size = len(experts) // ranks
    return max(sum(load[expert] for expert in experts[rank * size : (rank + 1) * size]) for rank in range(ranks))
