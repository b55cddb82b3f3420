"""One microbatch computed by every rank from the same weights: who gets other gradients than its peers computes wrongly.

Arithmetic here is deterministic, so ranks of one kind of device get the same bits. The gradients are looked at before they are
reduced over the mesh, where they are still each rank's own, and dropped afterwards: the run is the same with and without.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.hooks import RemovableHandle

from phalanx.job.checkpoint.digest import bit_sum
from phalanx.job.train.objective import batch_loss
from phalanx.job.train.parallel import sync_gradients

Sums = dict[str, Tensor]


def recomputed(model: nn.Module, optimizer: torch.optim.Optimizer, samples: Tensor) -> tuple[list[str], Tensor]:
    """Names such as `weights.NAME` and `gradients.NAME`, and the bit sum of each, int64 [names]: of the gathered weights that this
    rank computes with, and of its own gradients. A collective of all ranks; no gradient may be there, and none is afterwards."""
    sums: Sums = {}
    with _watched(model, sums):
        sync_gradients(model, True)
        batch_loss(model, samples).backward()  # type: ignore[no-untyped-call]
    optimizer.zero_grad()
    names = sorted(sums, reverse=True)  # weights before gradients: of other weights the gradients are others too
    return names, torch.stack([sums[name] for name in names])


@contextmanager
def _watched(model: nn.Module, sums: Sums) -> Iterator[None]:
    """Takes sums of what FSDP gathers for a module right after it has, in a hook behind its own."""
    handles: list[RemovableHandle] = []
    prefixes = {name: module for name, module in model.named_modules() if _is_sharded(module)}
    for prefix, module in prefixes.items():
        inner = tuple(f"{name}." for name in prefixes if name != prefix and name.startswith(prefix))
        handles.append(module.register_forward_pre_hook(_taker(prefix, inner, sums, handles)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_sharded(module: nn.Module) -> bool:
    return isinstance(module, FSDPModule)


def _taker(prefix: str, inner: tuple[str, ...], sums: Sums, handles: list[RemovableHandle]) -> Callable[[nn.Module, Any], None]:
    def take(module: nn.Module, _: Any) -> None:
        for name, parameter in module.named_parameters(prefix=prefix):
            if not name.startswith(inner):
                sums[f"weights.{name}"] = bit_sum(parameter)
                if parameter.requires_grad:
                    handles.append(parameter.register_hook(_noter(f"gradients.{name}", sums)))  # type: ignore[no-untyped-call]

    return take


def _noter(name: str, sums: Sums) -> Callable[[Tensor], None]:
    def note(gradient: Tensor) -> None:
        sums[name] = bit_sum(gradient)

    return note
