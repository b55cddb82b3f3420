"""Planned faults that act inside the trainer: see `job.sdk.fault` for the others. Nothing is touched where none was planned."""

import time
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn

from phalanx.core.chaos import OF_TRAINER
from phalanx.job.checkpoint.local import local_of
from phalanx.job.sdk.fault import Fault
from phalanx.job.sdk.session import Session

Batches = Callable[[int], Tensor]

_MANTISSA_BITS: Final = 16
"""Of a float32: a flip among the lowest ones changes the value by less than a percent, so that no loss shows it."""


def planted(session: Session, block: nn.Module, fetch: Batches) -> Batches:
    """`fetch` with this rank's planned fault, if any. Of steps a fault knows by their batches."""
    if session.chaos is not None:
        fetch = Unplanned(session, block, fetch)
    fetch = slowed(session.planned("slow"), block, fetch)
    fetch = bit_flipped(session.planned("flip-bit"), block, fetch)
    return gradient_flipped(session.planned("flip-gradient"), block, fetch)


def slowed(fault: Fault | None, block: nn.Module, fetch: Batches, sleep_s: Callable[[float], None] = time.sleep) -> Batches:
    """From the fault's step on each forward pass of `block` takes `ms` longer, as on a card that is throttled."""
    if fault is None:
        return fetch
    noted = _Noted(fetch)

    def wait(*_: object) -> None:
        if noted.step >= fault.step:
            sleep_s(fault.ms / 1000)

    block.register_forward_pre_hook(wait)
    return noted


def bit_flipped(fault: Fault | None, block: nn.Module, fetch: Batches) -> Batches:
    """At the fault's step one bit of this rank's shard of `block` is flipped, as a particle does it in memory without ECC."""
    if fault is None:
        return fetch

    def flipping(step: int) -> Tensor:
        if step == fault.step:
            _flip(_largest(block), 0)
        return fetch(step)

    return flipping


def gradient_flipped(fault: Fault | None, block: nn.Module, fetch: Batches) -> Batches:
    """From the fault's step on one bit is wrong in what each backward pass hands to `block`, as of a core that errs at times."""
    if fault is None:
        return fetch
    noted, passes = _Noted(fetch), 0

    def err(gradient: Tensor) -> Tensor:
        nonlocal passes
        passes += 1
        wrong = gradient.clone(memory_format=torch.contiguous_format)
        _flip(wrong, passes)
        return wrong

    def watch(_: nn.Module, __: object, output: Tensor) -> None:
        if noted.step >= fault.step and output.requires_grad:
            output.register_hook(err)  # type: ignore[no-untyped-call]

    block.register_forward_hook(watch)
    return noted


class Unplanned:
    """Batches of a job in which faults may be asked for while it runs."""

    def __init__(
        self,
        session: Session,
        block: nn.Module,
        fetch: Batches,
        sleep_s: Callable[[float], None] = time.sleep,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._block = block
        self._fetch = fetch
        self._sleep_s = sleep_s
        self._clock_s = clock_s
        self._slow: list[tuple[float, float]] = []  # (until, seconds) on the monotonic clock
        self._errs_until_s = 0.0
        self._passes = 0
        block.register_forward_pre_hook(self._wait)
        block.register_forward_hook(self._watch)

    def __call__(self, step: int) -> Tensor:
        for fault in self._session.due(step, *OF_TRAINER):
            until_s = self._clock_s() + fault.for_ms / 1000
            if fault.fault == "slow-rank":
                self._slow.append((until_s, fault.slow_ms / 1000))
            elif fault.flip == "weights":
                _flip(_largest(self._block), 0)
            else:
                self._errs_until_s = until_s
        return self._fetch(step)

    def _wait(self, *_: object) -> None:
        now_s = self._clock_s()
        self._slow = [(until_s, by_s) for until_s, by_s in self._slow if now_s < until_s]
        for slowed in self._slow:
            self._sleep_s(slowed[1])

    def _watch(self, _: nn.Module, __: object, output: Tensor) -> None:
        if self._clock_s() < self._errs_until_s and output.requires_grad:
            output.register_hook(self._err)  # type: ignore[no-untyped-call]

    def _err(self, gradient: Tensor) -> Tensor:
        self._passes += 1
        wrong = gradient.clone(memory_format=torch.contiguous_format)
        _flip(wrong, self._passes)
        return wrong


class _Noted:
    """Batches, and the step of the newest one."""

    def __init__(self, fetch: Batches) -> None:
        self.step = 0
        self._fetch = fetch

    def __call__(self, step: int) -> Tensor:
        self.step = step
        return self._fetch(step)


def _largest(block: nn.Module) -> Tensor:
    """This rank's shard of its largest parameter."""
    return local_of(max(block.parameters(), key=lambda one: local_of(one).numel())).detach()


def _flip(tensor: Tensor, at: int) -> None:
    """One low bit of one element, in place."""
    flat = tensor.view(-1).view(torch.int32 if tensor.element_size() == 4 else torch.int16)
    flat[at % flat.numel()] ^= 1 << (at % _MANTISSA_BITS if tensor.element_size() == 4 else at % 7)
