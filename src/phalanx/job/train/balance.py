"""Equal work for experts without a loss that pulls at the weights (arXiv:2408.15664): after each update the bias of an expert that
got more tokens than its part falls by a fixed rate, and that of one that got fewer rises.

Loads are whole numbers, so their sum over ranks and what follows from it do not depend on how a batch is cut.
"""

from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from phalanx.job.models.moe.router import Router

_LOADS: Final = "loads_of_all_stages"
"""Attribute of a model of which other ranks have other layers."""


@dataclass(frozen=True, slots=True)
class Mixtures:
    """own: numbers of this rank's mixtures among the `total` of the whole model, in the order of layers. experts: of each."""

    own: tuple[int, ...]
    total: int
    experts: int


def begin_step(model: nn.Module, loss_weight: float) -> None:
    """Before the first microbatch of a step. loss_weight: of the loss over each sequence of one microbatch."""
    for router in routers(model):
        router.loss_weight = loss_weight
        router.load.zero_()


@torch.no_grad()
def balance(model: nn.Module, rate: float, group: dist.ProcessGroup | None = None) -> None:
    """After an update: each router's load becomes that of all ranks, and its bias follows. A collective of all ranks of the group
    (of all where None), which have the same layers, or `mixtures` say which: then each rank knows the loads of all."""
    found, known = routers(model), getattr(model, "mixtures", None)
    if isinstance(known, Mixtures):
        loads_le = _of_all_layers(found, known, next(model.parameters()).device)
        setattr(model, _LOADS, loads_le)
    elif found:
        loads_le = torch.stack([router.load for router in found])
    else:
        return
    dist.all_reduce(loads_le, group=group)
    mine_le = loads_le[list(known.own)] if isinstance(known, Mixtures) else loads_le
    for router, load_e in zip(found, mine_le, strict=True):
        router.load.copy_(load_e)
        router.bias += bias_change(load_e, rate)


def _of_all_layers(found: list[Router], known: Mixtures, device: torch.device) -> Tensor:
    """What this rank's routers have sent; 0 in layers of other ranks."""
    loads_le = torch.zeros(known.total, known.experts, dtype=torch.int64, device=device)
    for number, router in zip(known.own, found, strict=True):
        loads_le[number] = router.load
    return loads_le


def bias_change(load_e: Tensor, rate: float) -> Tensor:
    """float32 (e). load_e: whole numbers."""
    return rate * torch.sign(load_e.sum() - len(load_e) * load_e).to(torch.float32)


def loads_of(model: nn.Module) -> Tensor | None:
    """int64 (layers, experts), of this rank's layers that are mixtures; None where none is. After `balance` of all ranks."""
    found = routers(model)
    return torch.stack([router.load for router in found]) if found else None


def mixture_numbers(model: nn.Module) -> tuple[int, ...]:
    """Of this rank's mixtures among all of the model."""
    known = getattr(model, "mixtures", None)
    return known.own if isinstance(known, Mixtures) else tuple(range(len(routers(model))))


def loads_of_all(model: nn.Module) -> Tensor | None:
    """As `loads_of`, of all layers, those of other ranks' stages too."""
    known: Tensor | None = getattr(model, _LOADS, None)
    return loads_of(model) if known is None else known


def routers(model: nn.Module) -> list[Router]:
    """In the order of layers."""
    return [part for part in model.modules() if isinstance(part, Router)]
