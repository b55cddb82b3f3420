"""Replicas of hot experts on other ranks, by the loads of their experts, as `fabric.experts.replicas` says: no state moves."""

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from phalanx.core.errors import DataError
from phalanx.fabric.experts import gpu_loads, replicas
from phalanx.job.models.moe.mixture import Mixture, mixtures
from phalanx.job.models.moe.replicas import replicas_of
from phalanx.job.train.parallel.experts import is_expert_parallel


def replicate_experts(model: nn.Module, loads_le: Sequence[Sequence[int]], spare: int) -> int:
    """From the next pass on each rank computes at most `spare` experts of each mixture beside its own: how many there are on all
    ranks of a group and in all mixtures. loads_le: tokens of each expert, of each mixture, the same on every rank. Without any, as
    with 0 of all, there are none.

    Raises DataError where experts do not lie over the ranks of an `ep` axis, or these are the loads of other ones.
    """
    found = list(mixtures(model))
    if len(loads_le) != len(found):
        raise DataError("loads", len(loads_le), f"the model has {len(found)} mixtures; give the loads of each")
    for layer, (mixture, load_e) in enumerate(zip(found, loads_le, strict=True)):
        if mixture.experts.exchange is None:
            raise DataError("replicas", f"layer {layer}", "its experts lie on one rank; use a layout with ep")
        if len(load_e) != mixture.shape.experts:
            raise DataError(f"loads of layer {layer}", len(load_e), f"give those of {mixture.shape.experts} experts")
    return sum(_replicated(mixture, load_e, spare) for mixture, load_e in zip(found, loads_le, strict=True))


def rank_loads(mixture: Mixture, load_e: Sequence[int]) -> list[float]:
    """Tokens of each of the ranks that share the experts, with the replicas that there are."""
    exchange = mixture.experts.exchange
    assert exchange is not None
    there = exchange.replicas.found if exchange.replicas is not None else ()
    return gpu_loads(by_slot(mixture, load_e), exchange.group.size(), there)


def uneven_ranks(model: nn.Module, loads_le: Sequence[Sequence[int]]) -> list[float]:
    """The largest load of a rank over the mean one, of each mixture; nothing where experts do not lie over ranks."""
    if not is_expert_parallel(model):
        return []
    ranks = [rank_loads(mixture, load_e) for mixture, load_e in zip(mixtures(model), loads_le, strict=True)]
    return [max(loads) * len(loads) / sum(loads) if sum(loads) else 1.0 for loads in ranks]


def by_slot(mixture: Mixture, load_e: Sequence[int]) -> list[int]:
    return [load_e[expert] for expert in mixture.slots.argsort().tolist()]


def _replicated(mixture: Mixture, load_e: Sequence[int], spare: int) -> int:
    exchange = mixture.experts.exchange
    assert exchange is not None
    ranks, me = exchange.group.size(), exchange.group.rank()
    found = replicas(by_slot(mixture, load_e), ranks, spare)
    made = replicas_of(found, mixture.shape.experts, ranks, me, spare, mixture.slots.device) if found else None
    mixture.experts.exchange = replace(exchange, replicas=made)
    return len(found)
