"""What each GPU does alone: matrix products and copies in its memory. A throttled one slows a gang as a bad link does."""

from collections.abc import Callable
from typing import Final

import torch

from phalanx.job.checkpoint.together import told_by_all
from phalanx.job.train.device import Rank
from phalanx.job.train.fabric_test.timing import alone_s

_WIDTH_GPU: Final = 8192
_WIDTH_CPU: Final = 384
_COPY_GPU: Final = 2**30
_COPY_CPU: Final = 32 * 2**20


def products(rank: Rank, clock_s: Callable[[], float]) -> dict[int, float]:
    """FLOP/s of each rank. A collective of all."""
    on_gpu = rank.device.type == "cuda"
    width, dtype = (_WIDTH_GPU, torch.bfloat16) if on_gpu else (_WIDTH_CPU, torch.float32)
    square = torch.ones(width, width, dtype=dtype, device=rank.device)
    into = torch.empty_like(square)
    taken_s = alone_s(lambda: _done(torch.mm(square, square, out=into)), rank, clock_s)
    return dict(enumerate(told_by_all(2 * width**3 / taken_s)))


def copies(rank: Rank, clock_s: Callable[[], float]) -> dict[int, float]:
    """Bytes a second that are read and written, of each rank. A collective of all."""
    size = _COPY_GPU if rank.device.type == "cuda" else _COPY_CPU
    source = torch.zeros(size // 4, device=rank.device)
    into = torch.empty_like(source)
    taken_s = alone_s(lambda: _done(into.copy_(source)), rank, clock_s)
    return dict(enumerate(told_by_all(2 * size / taken_s)))


def _done(result: torch.Tensor) -> None:
    """Nobody reads it."""
