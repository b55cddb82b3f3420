"""Copies a state into a snapshot beside the next forward and backward, which only read it. Whoever changes it waits.

On the CPU a thread copies, since torch lets go of the interpreter meanwhile. On a GPU the copies go through a stream of their own
into page-locked memory, and the stream that changes the state waits for them, not its host.
"""

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

    def start(self, copies: Copies, then: Callable[[], None]) -> None:
        """Copies the state as the calling thread's work so far leaves it, and calls `then` in the thread once all is there.

        Waits for the copy before this one.
        """
        self.finish()
        if self._stream is None:
            self._under_way = self._thread.submit(_copy_and, copies, then)
        else:
            self._copied = self._enqueue(self._stream, copies)
            self._under_way = self._thread.submit(_wait_and, self._copied, copies, then)

    def before_change(self) -> float:
        """Called before the state is changed; seconds that the calling thread waited. Raises what `then` raised."""
        if self._copied is not None:
            torch.cuda.current_stream(self._device).wait_event(self._copied)
            self._copied = None
            return 0.0
        return self.finish() if self._stream is None else 0.0

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

    def _enqueue(self, stream: torch.cuda.Stream, copies: Copies) -> torch.cuda.Event:
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for to, source in copies:
                to.copy_(source, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(stream)
        return copied


def page_lock(memory: torch.Tensor, device: torch.device) -> None:
    """Lets a GPU copy into host memory by itself. Where the driver refuses, copies are slower and nothing else changes."""
    if device.type != "cuda":
        return
    answer: Any = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)  # type: ignore[no-untyped-call]
    if int(answer) != 0:
        _log.warning("the driver does not page-lock the snapshots' memory (error %d): copies to it are slower", int(answer))


def _copy_and(copies: Copies, then: Callable[[], None]) -> None:
    for to, source in copies:
        to.copy_(source)
    then()


def _wait_and(copied: torch.cuda.Event, copies: Copies, then: Callable[[], None]) -> None:
    """Holds `copies` until the stream is through with what they point to."""
    copied.synchronize()
    del copies
    then()
