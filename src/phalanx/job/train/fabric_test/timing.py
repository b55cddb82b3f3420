"""How long something takes that ranks do together."""

from collections.abc import Callable
from statistics import median
from typing import Final

import torch
import torch.distributed as dist

from phalanx.job.train.device import Rank, synchronise

REPEATS: Final = 5
TIMES_MAX: Final = 200
"""In one repeat."""
_WARM: Final = 2


def together(device: torch.device) -> None:
    """Goes on once all ranks of the gang are here. NCCL is told which GPU, as its group is bound to none."""
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)


def together_s(act: Callable[[], None], rank: Rank, seconds: float, clock_s: Callable[[], float]) -> list[float]:
    """Seconds of one `act` in each of REPEATS on this rank. A collective of all ranks, which begin each repeat together; `seconds`
    is about what all of it may take. Some ranks may have nothing to do."""
    for _ in range(_WARM):
        act()
    times = _times(_once_s(act, rank, 1, clock_s), seconds)
    return [_once_s(act, rank, times, clock_s) for _ in range(REPEATS)]


def alone_s(act: Callable[[], None], rank: Rank, clock_s: Callable[[], float]) -> float:
    """The best of a few, of what a rank does alone while the others do the same."""
    act()
    return min(_once_s(act, rank, _WARM, clock_s) for _ in range(REPEATS))


def slowest(each: list[list[float]]) -> float:
    """Of several ranks: the median over the repeats of the last one's time."""
    return float(median(max(times) for times in zip(*each, strict=True)))


def _once_s(act: Callable[[], None], rank: Rank, times: int, clock_s: Callable[[], float]) -> float:
    together(rank.device)
    synchronise(rank.device)
    begin_s = clock_s()
    for _ in range(times):
        act()
    synchronise(rank.device)
    return (clock_s() - begin_s) / times


def _times(one_s: float, seconds: float) -> int:
    """In a repeat; the same on all ranks."""
    longest = torch.tensor([one_s], dtype=torch.float64)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return max(1, min(TIMES_MAX, int(seconds / REPEATS / max(float(longest), 1e-9))))
