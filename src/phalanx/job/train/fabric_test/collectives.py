"""Each collective of each size in the groups of one tier, all of which work at the same time as they would in training."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.core.fabric_test import FabricAsked
from phalanx.fabric.links.tiers import Tier
from phalanx.job.checkpoint.together import told_by_all
from phalanx.job.train.device import Rank
from phalanx.job.train.fabric_test.timing import together_s

_ITEM_BYTES: Final = 4  # of float32
_ALL_GATHER: Final[Callable[..., Any]] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER: Final[Callable[..., Any]] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""By their names as of torch 2.13, which warns of those before."""

Measured = tuple[str, int, list[list[float]]]
"""Collective, bytes, and of each rank of the gang its times; those of a rank outside all groups say nothing."""


Groups = dict[tuple[int, ...], Any]
"""Of this rank. They stay: one that is made a second time would find its first one's addresses in the store."""


def measured(
    tier: Tier, asked: FabricAsked, sizes: tuple[int, ...], rank: Rank, groups: Groups, clock_s: Callable[[], float]
) -> Iterator[tuple[str, int, Callable[[], Measured]]]:
    """(collective, size, what measures it), one after another. A collective of all ranks of the gang."""
    mine = next((ranks for ranks in tier.groups if rank.rank in ranks), None)
    if mine is not None and mine not in groups:
        # Only its members make a group: a gang of thousands of nodes has thousands.
        groups[mine] = dist.new_group(list(mine), use_local_synchronization=True)
    group = groups[mine] if mine is not None else None
    for collective in asked.collectives:
        for size in sizes:
            yield collective, size, lambda: _one(collective, size, tier.num_ranks, group, rank, asked.seconds, clock_s)  # noqa: B023


def _one(collective: str, size: int, most: int, group: Any, rank: Rank, seconds: float, clock_s: Callable[[], float]) -> Measured:
    act, size_bytes = _nothing, whole_bytes(size, most)
    if group is not None:
        act = operation(collective, size_bytes, group, rank.device)
    return collective, size_bytes, told_by_all(together_s(act, rank, seconds, clock_s))


def whole_bytes(size: int, num_ranks: int) -> int:
    """The next size that is whole numbers for each of so many ranks."""
    part = _ITEM_BYTES * num_ranks
    return max(1, round(size / part)) * part


def operation(collective: str, size_bytes: int, group: Any, device: torch.device) -> Callable[[], None]:
    """One call of it. Sums are over zeros, which stay zeros."""
    num_ranks = dist.get_world_size(group)
    items = size_bytes // _ITEM_BYTES // num_ranks * num_ranks
    whole = torch.zeros(max(items, num_ranks), device=device)
    part = torch.zeros(len(whole) // num_ranks, device=device)
    match collective:
        case "all_reduce":
            return lambda: _done(dist.all_reduce(whole, group=group))
        case "all_gather":
            return lambda: _done(_ALL_GATHER(whole, part, group=group))
        case "reduce_scatter":
            return lambda: _done(_REDUCE_SCATTER(part, whole, group=group))
        case "all_to_all":
            other: Tensor = torch.zeros_like(whole)
            return lambda: _done(dist.all_to_all_single(other, whole, group=group))
    raise KeyError(collective)


def _done(work: object) -> None:
    """A synchronous call gives no work."""


def _nothing() -> None:
    """Of a rank outside all groups of a tier."""
