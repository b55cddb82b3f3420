"""One rank's batches, read ahead of the step by threads, and on the device when the step begins.

A batch is a function of its step (ADR 33), so a feed holds nothing that a run has to keep: whoever goes back to another step, or on
with another number of ranks, asks for that step, and what was read ahead is thrown away.
"""

from collections import deque
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor

from phalanx.job.data.draws import DataOrder, positions
from phalanx.job.data.order import Indices, rank_slice
from phalanx.job.data.samples import Rows
from phalanx.job.data.sources import Sources
from phalanx.job.data.stream import BatchStream
from phalanx.job.data.waits import Cause
from phalanx.job.train.device import Rank

_KEEP: Final = 2
"""Batches whose arrays are not filled again yet: one is trained on, and the next may be on its way to the device."""


class Feed:
    """This rank's samples of each step of a run.

    `feed(step)`, counted from 1, is [samples, *row] on the rank's device; it lasts until the next step is asked for. Another step
    than the next one, or the same again, may be asked for at any time.
    """

    def __init__(self, data: Sources, order: DataOrder, sequence: int, rank: Rank) -> None:
        self._data, self._order, self._sequence, self._rank = data, order, sequence, rank
        self._stream: BatchStream | None = None
        self._copies = _Copies(rank.device) if rank.device.type == "cuda" else None
        self._next: tuple[int, Tensor] | None = None
        self._newest: tuple[int, Tensor] | None = None
        self._told: dict[Cause, float] = {}

    def __call__(self, step: int) -> Tensor:
        """Raises DataError where the data is not what `prepare` wrote."""
        if self._newest is not None and self._newest[0] == step:
            return self._newest[1]
        ready, self._next = self._next, None
        batch = ready[1] if ready is not None and ready[0] == step else self._taken(self._at(step))
        if self._copies is not None:
            self._copies.wait()
            self._copy_next(step + 1)
        self._newest = (step, batch)
        return batch

    def start(self, step: int) -> None:
        """Begins to read what `step` and those after it need."""
        self._at(step)

    def take_cause(self) -> Cause | Literal[""]:
        """What most of the waiting since the last time was for; '' where there was none."""
        waited = dict(self._stream.stats.waited_s) if self._stream is not None else {}
        since = {cause: seconds - self._told.get(cause, 0.0) for cause, seconds in waited.items()}
        self._told = waited
        most = max(since, key=lambda cause: since[cause], default=None)
        return most if most is not None and since[most] > 0 else ""

    def close(self) -> None:
        """Ends the threads. A step that is asked for later begins anew."""
        stream, self._stream = self._stream, None
        self._next = self._newest = None
        if stream is not None:
            stream.close()
        if self._copies is not None:
            self._copies.forget()

    def _at(self, step: int) -> BatchStream:
        """A stream whose next batch is that of `step`."""
        if self._stream is not None and self._stream.step == step - 1:
            return self._stream
        self.close()
        self._told = {}
        buffers = pinned if self._copies is not None else None
        self._stream = BatchStream(self._data, "train", self._sequence, self._numbers, step - 1, keep=_KEEP, buffers=buffers)
        return self._stream

    def _numbers(self, step: int) -> Indices:
        """Of this rank's samples in a step, counted from 0."""
        mine = rank_slice(positions(self._order, step), self._rank.rank, self._rank.world_size)
        return self._data.numbers(self._order.draws(mine), "train", self._sequence)

    def _taken(self, stream: BatchStream) -> Tensor:
        if self._copies is None:
            return torch.from_numpy(next(stream))
        self._copies.settle()
        return self._copies.begin(next(stream))

    def _copy_next(self, step: int) -> None:
        """While the device computes, if its samples are there already."""
        if self._stream is not None and self._stream.step == step - 1 and self._stream.num_ahead:
            self._next = (step, self._taken(self._stream))


class _Copies:
    """Copies of batches to the device beside what it computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._beside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._under_way: deque[torch.cuda.Event] = deque()

    def begin(self, rows: Rows) -> Tensor:
        """`rows` must not be filled again before `settle`."""
        with torch.cuda.stream(self._beside):
            copied = torch.from_numpy(rows).to(self._device, non_blocking=True)
            self._under_way.append(self._beside.record_event())
        copied.record_stream(torch.cuda.current_stream(self._device))
        return copied

    def wait(self) -> None:
        """What is computed from here on comes after every copy that was begun."""
        for event in self._under_way:
            torch.cuda.current_stream(self._device).wait_event(event)

    def settle(self) -> None:
        """Before another batch is taken: the array of the one before the last is filled again then."""
        while len(self._under_way) >= _KEEP:
            self._under_way.popleft().synchronize()

    def forget(self) -> None:
        """The arrays go: no copy may read them any more."""
        while self._under_way:
            self._under_way.popleft().synchronize()


def pinned(shape: tuple[int, ...]) -> Rows:
    """An array that a device reads by itself, without the processor."""
    found: np.ndarray[Any, np.dtype[np.int64]] = torch.empty(shape, dtype=torch.int64, pin_memory=True).numpy()
    return found
