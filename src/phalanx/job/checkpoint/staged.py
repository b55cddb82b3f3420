"""Fills tensors from host memory that a GPU cannot read by itself: several threads, each through page-locked pieces of its own.

A driver that is handed such memory copies it through one small buffer of its own on one core (measured: 4 GB/s of 50), and to lock
tens of gigabytes in order to read them once lasts longer than to copy them.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import torch

from phalanx.job.checkpoint.beside import Copies

PIECE_BYTES: Final = 16 * 2**20
_THREADS_MAX: Final = 12
_BUFFERS: Final = 2
"""Of each thread: one is filled while the GPU reads the other."""


def copy_in(copies: Copies, device: torch.device) -> None:
    """Returns once all is there. copies: see `Copies`, nowhere the same memory twice. The calling thread's work so far on the
    device comes first."""
    pieces = _pieces(copies)
    threads = max(1, min(_THREADS_MAX, len(os.sched_getaffinity(0)), len(pieces)))
    ready = _ready(device)

    def some(number: int) -> None:
        mine = pieces[number::threads]
        if ready is None:
            for to, source in mine:
                to.copy_(source)
        else:
            _by_way_of_locked(mine, device, ready)

    with ThreadPoolExecutor(threads, "fill") as pool:
        list(pool.map(some, range(threads)))


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous one, in place."""
    return tensor.view(-1).view(torch.uint8)


def _pieces(copies: Copies) -> Sequence[tuple[torch.Tensor, torch.Tensor]]:
    return [
        (to[start : start + PIECE_BYTES], source[start : start + PIECE_BYTES])
        for to, source in copies
        for start in range(0, to.numel(), PIECE_BYTES)
    ]


def _ready(device: torch.device) -> "torch.cuda.Event | None":
    if device.type == "cpu":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def _by_way_of_locked(pieces: Copies, device: torch.device, ready: torch.cuda.Event) -> None:
    """In a thread of its own."""
    torch.cuda.set_device(device)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    locked = [torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(_BUFFERS)]
    read = [torch.cuda.Event() for _ in range(_BUFFERS)]  # type: ignore[no-untyped-call]
    stream.wait_event(ready)
    with torch.cuda.stream(stream):
        for number, (to, source) in enumerate(pieces):
            turn = number % _BUFFERS
            read[turn].synchronize()  # at once where nothing was recorded yet
            buffer = locked[turn][: source.numel()]
            buffer.copy_(source)
            to.copy_(buffer, non_blocking=True)
            read[turn].record(stream)
    stream.synchronize()
