"""Experts to other ranks between two steps, as `fabric.experts` says: weights and moments move, numbers stay.

Each expert lies in one place here. Replicas of one have no state that could move: see `replicate_experts`.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from phalanx.core.errors import DataError
from phalanx.job.checkpoint.local import local_of
from phalanx.job.models.moe.exchange import all_to_all
from phalanx.job.models.moe.mixture import Mixture, mixtures


@torch.no_grad()
def place_experts(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    experts_LS: Sequence[Sequence[int]],
    before_change: Callable[[], None] = lambda: None,
) -> int:
    """experts_LS: for each mixture the expert that shall lie in each slot: the slots of rank 0 of the `ep` axis, then of rank 1,
    and so on. How many moved, of all. before_change: returns when nobody reads the state any more. A collective of all ranks.

    Raises DataError where an expert is missing, or experts do not lie over the ranks of an `ep` axis.
    """
    found = list(mixtures(model))
    if len(experts_LS) != len(found):
        raise DataError("placement", len(experts_LS), f"the model has {len(found)} mixtures; give the experts of each")
    wanted = [_checked(mixture, layer, row) for layer, (mixture, row) in enumerate(zip(found, experts_LS, strict=True))]
    before_change()
    return sum(_moved(mixture, optimizer, row) for mixture, row in zip(found, wanted, strict=True))


def _checked(mixture: Mixture, layer: int, row: Sequence[int]) -> Tensor:
    if mixture.experts.exchange is None:
        raise DataError("placement", f"layer {layer}", "its experts lie on one rank; use a layout with ep")
    if sorted(row) != list(range(mixture.shape.experts)):
        fix = f"name each of the {mixture.shape.experts} experts once: other ranks compute it too by replicate_experts"
        raise DataError(f"placement of layer {layer}", list(row), fix)
    return torch.tensor(list(row), dtype=torch.int64)


def _moved(mixture: Mixture, optimizer: torch.optim.Optimizer, expert_s: Tensor) -> int:
    expert_s = expert_s.to(mixture.slots.device)
    source_s = mixture.slots[expert_s]
    assert mixture.experts.exchange is not None
    for weight in mixture.experts.parameters(recurse=False):
        moments = [one for one in optimizer.state.get(weight, {}).values() if isinstance(one, Tensor) and one.dim()]
        for tensor in (weight, *moments):
            piece = local_of(tensor)
            near = piece.to(local_of(weight).device)  # moments may lie on the host, where NCCL reaches nothing
            piece.copy_(_taken(near, source_s.tolist(), mixture.experts.exchange.group))
    mixture.slots[expert_s] = torch.arange(len(expert_s), device=expert_s.device)
    return int((source_s != torch.arange(len(source_s), device=source_s.device)).sum())


def _taken(piece: Tensor, source_s: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    """This rank's slots with what lies in their sources now. piece: (slots of a rank, ...)."""
    mine, me, ranks = len(piece), group.rank(), group.size()
    sends = [[source - me * mine for source in _of(source_s, rank, mine) if source // mine == me] for rank in range(ranks)]
    wants = _of(source_s, me, mine)
    got = [sum(source // mine == rank for source in wants) for rank in range(ranks)]
    rows = torch.tensor([slot for slots in sends for slot in slots], dtype=torch.int64, device=piece.device)
    came = all_to_all(piece.flatten(1)[rows], [len(slots) for slots in sends], got, group)
    order = sorted(range(mine), key=lambda slot: wants[slot] // mine)  # rows come by rank, and of each in the order of slots
    place = torch.empty(mine, dtype=torch.int64, device=piece.device)
    place[torch.tensor(order, device=piece.device)] = torch.arange(mine, device=piece.device)
    return came[place].view_as(piece)


def _of(source_s: Sequence[int], rank: int, mine: int) -> Sequence[int]:
    return source_s[rank * mine : (rank + 1) * mine]
