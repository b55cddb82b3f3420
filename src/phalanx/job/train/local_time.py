"""How long this rank computes in a step without waiting for another: the forward passes of its blocks, between two collectives.

FSDP gathers a block's weights in a hook before the block and lets go of them in one after it; the clock runs between these two.
No barrier, nothing to wait for: on a GPU the times are read from events after the step, when the device is idle anyway.

Ranks that share rows (`cp`), matrices (`tp`) or experts (`ep`) wait for each other inside a block, so that one slow rank makes all
of its group slow; ranks of a pipeline (`pp`) have other layers than each other. There nothing is measured, and the time is 0.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from phalanx.job.train.device import Rank


def local_timer(blocks: Iterable[nn.Module], rank: Rank) -> "LocalTimer":
    """Of this rank's blocks; of none, and so always at 0, where its times say nothing beside those of others."""
    alike = rank.layout is None or rank.layout.computes_alike
    return LocalTimer(blocks if alike else (), rank.device)


class LocalTimer:
    """Over blocks that are sharded already: hooks run in the order in which they were made. last_us: of the newest step, in
    microseconds."""

    def __init__(
        self, blocks: Iterable[nn.Module], device: torch.device, clock_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self.last_us = 0
        self._on_gpu = device.type == "cuda"
        self._clock_ns = clock_ns
        self._total_ns = 0
        self._began_ns = 0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._free: list[torch.cuda.Event] = []
        for block in blocks:
            block.register_forward_pre_hook(self._before)
            block.register_forward_hook(self._after, prepend=True)  # before FSDP's own, which may wait

    def start(self) -> None:
        """A step begins: whatever was computed before, such as a held-out loss, is none of it."""
        self._total_ns = 0
        self._free += [event for pair in self._events for event in pair]
        self._events.clear()

    def stop(self) -> None:
        """The step's updates are made. On a GPU only once the device has finished it."""
        self.last_us = round(self._total_ns / 1e3 + sum(first.elapsed_time(last) * 1e3 for first, last in self._events))

    def _before(self, *_: Any) -> None:
        if self._on_gpu:
            self._events.append((self._mark(), self._event()))
        else:
            self._began_ns = self._clock_ns()

    def _after(self, *_: Any) -> None:
        if self._on_gpu:
            self._events[-1][1].record()
        else:
            self._total_ns += self._clock_ns() - self._began_ns

    def _mark(self) -> torch.cuda.Event:
        event = self._event()
        event.record()
        return event

    def _event(self) -> torch.cuda.Event:
        return self._free.pop() if self._free else _timing_event()


def _timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
