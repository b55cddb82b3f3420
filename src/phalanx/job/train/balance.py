"""Equal work for experts without a loss that pulls at the weights (arXiv:2408.15664): after each update the bias of an expert that
got more tokens than its part falls by a fixed rate, and that of one that got fewer rises.

Loads are whole numbers, so their sum over ranks and what follows from it do not depend on how a batch is cut.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from phalanx.job.models.moe.router import Router


def begin_step(model: nn.Module, loss_weight: float) -> None:
    """Before the first microbatch of a step. loss_weight: of the loss over each sequence of one microbatch."""
    for router in routers(model):
        router.loss_weight = loss_weight
        router.load.zero_()


@torch.no_grad()
def balance(model: nn.Module, rate: float, group: dist.ProcessGroup | None = None) -> None:
    """After an update: each router's load becomes that of all ranks, and its bias follows. A collective of all ranks of the group
    (of all where None), which have the same layers."""
    found = routers(model)
    if not found:
        return
    loads_le = torch.stack([router.load for router in found])
    dist.all_reduce(loads_le, group=group)
    for router, load_e in zip(found, loads_le, strict=True):
        router.load.copy_(load_e)
        router.bias += bias_change(load_e, rate)


def bias_change(load_e: Tensor, rate: float) -> Tensor:
    """float32 (e). load_e: whole numbers."""
    return rate * torch.sign(load_e.sum() - len(load_e) * load_e).to(torch.float32)


def loads_of(model: nn.Module) -> Tensor | None:
    """int64 (layers, experts), of layers that are mixtures; None of a dense model. After `balance` of all ranks."""
    found = routers(model)
    return torch.stack([router.load for router in found]) if found else None


def routers(model: nn.Module) -> list[Router]:
    """In the order of layers."""
    return [part for part in model.modules() if isinstance(part, Router)]
