"""Copies a state into a snapshot beside the next forward and backward, which only read it. Whoever changes it waits.

A thread copies, since torch lets go of the interpreter meanwhile. On a GPU it has the copies go through a stream of their own into
page-locked memory, some at a time: a driver holds about a thousand operations for a card, and whoever adds one more waits, be it
the thread that trains. It hands them over by one call each time, which needs the interpreter once: the thread that trains holds it
for milliseconds while it enqueues a model's kernels, and with a wait for each copy the card would run out of them.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

import torch
from torch.profiler import record_function

_log: Final = logging.getLogger(__name__)
MARK: Final = "checkpoint copy"
"""In a trace."""
T = TypeVar("T")
Copies = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""(to, from), both flat bytes of one length."""
AT_ONCE: Final = 128
"""Copies that are handed to the GPU together; two such are under way at any time."""


class Beside:
    """One copy at a time. copied_s, done_s: of the newest on a GPU, from its start until all was there, and until `then` was
    through."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._thread = ThreadPoolExecutor(1, "snapshot")
        self._under_way: Future[None] | None = None
        self.copied_s = self.done_s = 0.0
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def start(self, copies: Copies, then: Callable[[], None], first: Callable[[], None] | None = None) -> None:
        """Copies the state as the calling thread's work so far leaves it, and calls `then` in the thread once all is there.

        Waits for the copy before this one. first: to be done before the copying, in the thread too.
        """
        self.finish()
        if self._stream is None:
            self._under_way = self._thread.submit(_copy_and, copies, then)
            return
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record(torch.cuda.current_stream(self._device))
        self._under_way = self._thread.submit(self._enqueue, self._stream, ready, copies, first, then)

    def run(self, work: Callable[[], T]) -> "Future[T]":
        """Something else in the thread, for which `finish` does not wait; nothing is copied meanwhile."""
        return self._thread.submit(self._with_device, work)

    def before_change(self) -> float:
        """Called before the state is changed; seconds that the calling thread waited. Raises what `then` raised."""
        return self.finish()

    def finish(self) -> float:
        """Waits until `then` has returned; for how many seconds. Raises what it raised."""
        if self._under_way is None:
            return 0.0
        started_s = time.perf_counter()
        under_way, self._under_way = self._under_way, None
        under_way.result()
        return time.perf_counter() - started_s

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    def _with_device(self, work: Callable[[], T]) -> T:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        return work()

    def _enqueue(
        self,
        stream: torch.cuda.Stream,
        ready: torch.cuda.Event,
        copies: Copies,
        first: Callable[[], None] | None,
        then: Callable[[], None],
    ) -> None:
        """In the thread. Holds `copies` until the stream is through with what they point to."""
        began = time.perf_counter()
        torch.cuda.set_device(self._device)
        if first is not None:
            first()
        stream.wait_event(ready)
        before: torch.cuda.Event | None = None
        with record_function(MARK), torch.cuda.stream(stream):
            for some in batched(copies, AT_ONCE):
                torch._foreach_copy_([to for to, _ in some], [source for _, source in some], non_blocking=True)
                done = torch.cuda.Event()  # type: ignore[no-untyped-call]
                done.record(stream)
                if before is not None:
                    before.synchronize()
                before = done
            stream.synchronize()
        self.copied_s = time.perf_counter() - began
        then()
        self.done_s = time.perf_counter() - began


class PageLocks:
    """Host memory that a GPU copies into by itself. Where the driver refuses, copies are slower and nothing else changes.

    The driver knows memory by its address, and longer than it is mapped: what is locked must be let go of before somebody else gets
    the address, or that memory cannot be locked, and the refusal fails the next thing that the GPU is asked for.
    """

    def __init__(self, device: torch.device, driver: Any = None, what: str = "the snapshots' memory") -> None:
        """driver: the CUDA runtime; torch's own when None."""
        self._what = what
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
        _log.warning("the driver does not page-lock %s (error %d): copies to it are slower", self._what, answer)
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self._device)  # the runtime keeps the refusal, and gives it to whatever runs next

    def release(self) -> None:
        """Before the memory is unmapped."""
        for memory in self._locked:
            self._driver.cudaHostUnregister(memory.data_ptr())
        self._locked.clear()


def _copy_and(copies: Copies, then: Callable[[], None]) -> None:
    with record_function(MARK):
        for to, source in copies:
            to.copy_(source)
    then()


def batched(copies: Copies, size: int) -> Iterator[Copies]:
    """One part of them after the other, none longer than `size`."""
    for start in range(0, len(copies), size):
        yield copies[start : start + size]
