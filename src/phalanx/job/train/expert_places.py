"""Where a run's experts lie: looked at every so many steps, and changed where their loads would be shared more evenly. By the loads
of that one step alone, so that a run that was resumed places them as one that nothing disturbed."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import nn

from phalanx.fabric.experts import ExpertLayout, balance, gpu_loads, replicas
from phalanx.job.models.moe.mixture import Mixture, mixtures
from phalanx.job.train.balance import loads_of
from phalanx.job.train.place_experts import place_experts
from phalanx.job.train.replicate_experts import replicate_experts, uneven_ranks

_log: Final = logging.getLogger(__name__)
WORTH: Final = 0.05
"""What the fullest rank has to lose of its load, as a part of it, for experts of a layer to move: loads waver by about as much."""
NUMBER: Final = "replicas_by"
"""Its name among the numbers of a checkpoint."""

Loads = Sequence[Sequence[int]]
"""Tokens of each expert, of each layer."""


class ExpertPlaces:
    """Of a model whose experts lie over ranks, else nothing happens. every: steps between two looks, 0 for none. spare: experts of
    a layer that a rank may compute beside its own."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, every: int, spare: int = 0) -> None:
        self._model, self._optimizer, self._every, self._spare = model, optimizer, every, spare
        self._mixtures = [one for one in mixtures(model) if one.experts.exchange is not None]
        self._loads: Loads = []

    def stepped(self, step: int) -> int:
        """Right after the update of `step`, when nobody reads the state: how many experts moved. A collective of all ranks."""
        if not self._every or not self._mixtures or step % self._every:
            return 0
        loads_le = loads_of(self._model)
        assert loads_le is not None
        loads: Loads = loads_le.tolist()
        before = max(uneven_ranks(self._model, loads))
        moved = place_experts(self._model, self._optimizer, self._wanted(loads))
        copies = self._replicate(loads)
        told = (step, moved, copies, max(uneven_ranks(self._model, loads)), before)
        _log.info("step %d  %d experts moved to other ranks, %d replicas; fullest rank %.2f x the mean, was %.2f", *told)
        return moved

    def numbers(self) -> Mapping[str, str]:
        """For a checkpoint: with the places of experts they say which replicas there are, in this layout and in others."""
        return {NUMBER: json.dumps(self._loads)} if self._loads else {}

    def restore(self, numbers: Mapping[str, object]) -> None:
        """From a checkpoint whose weights are in place. Raises ValueError or DataError for numbers that are none of this model."""
        self._loads = []
        self._replicate(json.loads(str(numbers.get(NUMBER, "[]"))))

    def _replicate(self, loads: Loads) -> int:
        if not self._spare:
            return 0
        self._loads = loads
        if not self._mixtures:
            return 0
        return replicate_experts(self._model, loads or [[0] * one.shape.experts for one in self._mixtures], self._spare)

    def _wanted(self, loads: Loads) -> list[list[int]]:
        """For each layer the expert of each slot: where it is now, or better. One place for each, so that no node's traffic depends
        on where; the same on every rank."""
        return [_better(mixture, load, self._spare) for mixture, load in zip(self._mixtures, loads, strict=True)]


def _better(mixture: Mixture, load: Sequence[int], spare: int) -> list[int]:
    now = mixture.slots.argsort().tolist()
    ranks = mixture.experts.exchange.group.size() if mixture.experts.exchange is not None else 1
    layout = ExpertLayout(num_nodes=1, gpus_per_node=ranks, slots_per_gpu=len(now) // ranks)
    found: list[int] = balance([load], layout).experts_LGS.reshape(-1).tolist()
    fullest_now, fullest = (_fullest([load[expert] for expert in experts], ranks, spare) for experts in (now, found))
    return found if fullest < (1 - WORTH) * fullest_now else now


def _fullest(load: Sequence[int], ranks: int, spare: int) -> float:
    """With the replicas that there will be. load: of each slot."""
    return max(gpu_loads(load, ranks, replicas(load, ranks, spare)))
