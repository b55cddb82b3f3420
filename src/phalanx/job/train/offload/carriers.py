"""Brings pieces from host memory to the device that computes with them, and back, beside the computing.

Streams are asked for by the device's own module of torch: a CPU has one too, in which all is done at once.
"""

from typing import Any

import torch

from phalanx.job.train.offload.stores import TURNS, Event, Pair


class Here:
    """The host is the device."""

    buffer_bytes = 0

    def up(self, turn: int, host: Pair) -> Pair:
        """Where to compute with a piece."""
        return host

    def down(self, turn: int, host: Pair) -> Event:
        """Once it was computed with: when the piece is in host memory again."""
        event: Event = torch.cpu.Event()
        return event

    def finish(self) -> None:
        """Until all is in host memory."""


class Across:
    """As `Here`, for a device with memory of its own. What is computed is enqueued in the current stream. buffer_bytes: of that
    memory."""

    def __init__(self, count: int, dtype: torch.dtype, device: torch.device) -> None:
        """count: elements of the largest piece."""
        self._module: Any = torch.get_device_module(device)
        self._up, self._down = self._module.Stream(), self._module.Stream()
        self._buffers = [torch.empty(2, count, dtype=dtype, device=device) for _ in range(TURNS)]
        self._came = [self._module.Event() for _ in range(TURNS)]
        self._left = [self._module.Event() for _ in range(TURNS)]
        self.buffer_bytes = sum(buffer.nbytes for buffer in self._buffers)

    def up(self, turn: int, host: Pair) -> Pair:
        near = self._near(turn, host)
        with self._module.stream(self._up):
            self._up.wait_event(self._left[turn])  # of the piece before it there
            for to, source in zip(near, host, strict=True):
                to.copy_(source, non_blocking=True)
            self._came[turn].record(self._up)
        self._module.current_stream().wait_event(self._came[turn])
        return near

    def down(self, turn: int, host: Pair) -> Event:
        self._down.wait_stream(self._module.current_stream())
        with self._module.stream(self._down):
            for to, source in zip(host, self._near(turn, host), strict=True):
                to.copy_(source, non_blocking=True)
            self._left[turn].record(self._down)
        event: Event = self._left[turn]
        return event

    def finish(self) -> None:
        for event in self._left:
            event.synchronize()

    def _near(self, turn: int, host: Pair) -> Pair:
        first, second = self._buffers[turn][:, : host[0].numel()]
        return first, second
