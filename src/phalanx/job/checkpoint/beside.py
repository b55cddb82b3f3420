"""Copies a state into a snapshot beside the next forward and backward, which only read it. Whoever changes it waits.

On the CPU a thread copies, since torch lets go of the interpreter meanwhile. On a GPU the copies go through a stream of their own
into page-locked memory, and the stream that changes the state waits for them, not its host.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import torch

_log: Final = logging.getLogger(__name__)
Copies = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""(to, from), both flat bytes of one length."""


class Beside:
    """One copy at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._thread = ThreadPoolExecutor(1, "snapshot")
        self._under_way: Future[None] | None = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._copied: torch.cuda.Event | None = None
        self._is_enqueued = False  # the stream that changes the state waits for the copy by itself

    def start(self, copies: Copies, then: Callable[[], None], first: Callable[[], None] | None = None) -> None:
        """Copies the state as the calling thread's work so far leaves it, and calls `then` in the thread once all is there.

        Waits for the copy before this one. first: to be done before the copying, in the thread too.
        """
        self.finish()
        if self._stream is None:
            self._under_way = self._thread.submit(_copy_and, copies, then)
        elif first is not None:
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record(torch.cuda.current_stream(self._device))
            self._under_way = self._thread.submit(self._prepare_and_copy, ready, copies, first, then)
        else:
            self._copied = self._enqueue(self._stream, copies)
            self._under_way = self._thread.submit(_wait_and, self._copied, copies, then)

    def before_change(self) -> float:
        """Called before the state is changed; seconds that the calling thread waited. Raises what `then` raised."""
        if self._copied is not None:
            torch.cuda.current_stream(self._device).wait_event(self._copied)
            self._copied, self._is_enqueued = None, True
            return 0.0
        return 0.0 if self._is_enqueued else self.finish()

    def finish(self) -> float:
        """Waits until `then` has returned; for how many seconds. Raises what it raised."""
        if self._under_way is None:
            return 0.0
        started_s = time.perf_counter()
        under_way, self._under_way, self._copied, self._is_enqueued = self._under_way, None, None, False
        under_way.result()
        return time.perf_counter() - started_s

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    def _prepare_and_copy(
        self, ready: torch.cuda.Event, copies: Copies, first: Callable[[], None], then: Callable[[], None]
    ) -> None:
        torch.cuda.set_device(self._device)
        first()
        assert self._stream is not None
        self._stream.wait_event(ready)
        with torch.cuda.stream(self._stream):
            for to, source in copies:
                to.copy_(source, non_blocking=True)
        self._stream.synchronize()
        then()

    def _enqueue(self, stream: torch.cuda.Stream, copies: Copies) -> torch.cuda.Event:
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for to, source in copies:
                to.copy_(source, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(stream)
        return copied


class PageLocks:
    """Host memory that a GPU copies into by itself. Where the driver refuses, copies are slower and nothing else changes.

    The driver knows memory by its address, and longer than it is mapped: what is locked must be let go of before somebody else gets
    the address, or that memory cannot be locked, and the refusal fails the next thing that the GPU is asked for.
    """

    def __init__(self, device: torch.device, driver: Any = None) -> None:
        """driver: the CUDA runtime; torch's own when None."""
        self._device = device
        self._driver: Any = driver
        if driver is None and device.type == "cuda":
            self._driver = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        self._locked: list[torch.Tensor] = []

    def lock(self, memory: torch.Tensor) -> None:
        if self._driver is None:
            return
        answer = int(self._driver.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
        if answer == 0:
            self._locked.append(memory)
            return
        _log.warning("the driver does not page-lock the snapshots' memory (error %d): copies to it are slower", answer)
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self._device)  # the runtime keeps the refusal, and gives it to whatever runs next

    def release(self) -> None:
        """Before the memory is unmapped."""
        for memory in self._locked:
            self._driver.cudaHostUnregister(memory.data_ptr())
        self._locked.clear()


def _copy_and(copies: Copies, then: Callable[[], None]) -> None:
    for to, source in copies:
        to.copy_(source)
    then()


def _wait_and(copied: torch.cuda.Event, copies: Copies, then: Callable[[], None]) -> None:
    """Holds `copies` until the stream is through with what they point to."""
    copied.synchronize()
    del copies
    then()
