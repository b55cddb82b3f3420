"""Planned faults that act inside the trainer: see `job.sdk.fault` for the others. Nothing is touched where none was planned."""

import time
from collections.abc import Callable

from torch import Tensor, nn

from phalanx.job.sdk.fault import Fault

Batches = Callable[[int], Tensor]


def slowed(fault: Fault | None, block: nn.Module, fetch: Batches, sleep_s: Callable[[float], None] = time.sleep) -> Batches:
    """`fetch`, and from the fault's step on each forward pass of `block` takes `ms` longer, as on a card that is throttled. Of
    steps it knows by their batches."""
    if fault is None:
        return fetch
    seconds, first, newest = fault.ms / 1000, fault.step, 0

    def wait(*_: object) -> None:
        if newest >= first:
            sleep_s(seconds)

    def noted(step: int) -> Tensor:
        nonlocal newest
        newest = step
        return fetch(step)

    block.register_forward_pre_hook(wait)
    return noted
