"""One rank's batches, read ahead of the step by threads, and on the device when the step begins.

A batch is a function of its step (ADR 33), so a feed holds nothing that a run has to keep: whoever goes back to another step, or on
with another number of ranks, asks for that step, and what was read ahead is thrown away.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from phalanx.job.data.cursor import Cursor
from phalanx.job.data.deliveries import DeliveryLog
from phalanx.job.data.draws import DataOrder, positions
from phalanx.job.data.images.open import ImageData
from phalanx.job.data.order import Indices, rank_slice
from phalanx.job.data.quarantine import set_aside_of
from phalanx.job.data.samples import Rows
from phalanx.job.data.sound import STOP, BadData, SoundOrder, tried
from phalanx.job.data.sources import Sources
from phalanx.job.data.stream import BatchStream
from phalanx.job.data.waits import CAUSES, Cause
from phalanx.job.train.device import Rank

_ASKED: Final = 1_024
"""Samples whose numbers are asked for at once: a millisecond, instead of nearly as much for each step."""

_KEEP: Final = 2
"""Batches whose arrays are not filled again yet: one is trained on, and the next may be on its way to the device."""

T = TypeVar("T")
RunData = Sources | ImageData
"""What a run reads: token shards, or images."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """A batch on the device; numbers: of its samples. content: XXH3 of each, where that is recorded."""

    step: int
    batch: Tensor
    numbers: Indices
    content: Any


@dataclass(frozen=True, slots=True)
class _Failed:
    """What befell the batch of a step that was begun with early."""

    step: int
    error: Exception


class Feed:
    """This rank's samples of each step of a run.

    `feed(step)`, counted from 1, is [samples, *row] on the rank's device; it lasts until the next step is asked for. Another step
    than the next one, or the same again, may be asked for at any time. bad_data: what is done about a damaged block; with
    `quarantine` all ranks ask for the same steps, since they tell each other of what they met before any uses a batch.
    steps: of the run, beyond which nothing is read ahead; None where it has no end.
    """

    def __init__(
        self, data: RunData, order: DataOrder, sequence: int, rank: Rank, bad_data: BadData = STOP, steps: int | None = None
    ) -> None:
        self._data, self._sequence, self._rank, self._steps = data, sequence, rank, steps
        self._sound = SoundOrder(order, lambda block: data.touching(block, "train", sequence), bad_data, rank.world_size)
        self._log: DeliveryLog | None = None
        self._stream: BatchStream | None = None
        self._copies = _Copies(rank.device) if rank.device.type == "cuda" else None
        self._next: _Taken | _Failed | None = None
        self._newest: _Taken | None = None
        self._waited_before: dict[Cause, float] = {}
        self._told: dict[Cause, float] = {}
        self._was_ready = False
        self._asked: dict[int, Indices] = {}

    @property
    def order(self) -> DataOrder:
        """As it is now: without what was set aside."""
        return self._sound.order

    def resume(self, cursor: Cursor) -> None:
        """Goes on without what the cursor's run had set aside. Raises DataError where that is not of this order."""
        self._sound.resume(cursor)
        self.close()

    def record(self, log: DeliveryLog | None) -> None:
        """From now on each batch is recorded when it is handed out."""
        self._log = log

    def __call__(self, step: int) -> Tensor:
        """Raises DataError where the data is not what `prepare` wrote, and is not set aside, and whatever else went wrong with this
        step's batch, also while it was read or copied ahead."""
        if self._newest is not None and self._newest.step == step:
            return self._newest.batch
        taken = self._soundly(step, lambda: self._ready(step))
        if self._log is not None:
            self._log.set_aside(set_aside_of(self.order))
            self._log.delivered(step - 1, *self._data.drawn(taken.numbers, "train", self._sequence), taken.content)
        self._newest = taken
        if self._copies is not None:
            self._copies.wait()
            self._copy_next(step + 1)
        return taken.batch

    def shared(self, step: int, count: int) -> Tensor:
        """The first `count` samples of the step's global batch, the same on every rank, on this rank's device."""

        def read() -> Rows:
            draws = self.order.draws(positions(self.order, step - 1)[:count])
            return self._data.gather("train", self._data.numbers(draws, "train", self._sequence), self._sequence)

        return torch.from_numpy(self._soundly(step, read)).to(self._rank.device)

    def start(self, step: int) -> None:
        """Begins to read what `step` and those after it need."""
        self._at(step)

    def take_cause(self) -> Cause | Literal["processor", ""]:
        """What most of the waiting since the last time was for; '' where there was none. processor: the newest batch was there when
        it was asked for, and this process did not get to it at once."""
        waited = self._waited_s()
        since = {cause: seconds - self._told.get(cause, 0.0) for cause, seconds in waited.items()}
        self._told = waited
        most = max(since, key=lambda cause: since[cause], default=None)
        if most is None or since[most] <= 0:
            return ""
        return "processor" if self._was_ready else most

    def close(self) -> None:
        """Ends the threads. A step that is asked for later begins anew, and what was waited until now still counts."""
        self._waited_before = self._waited_s()
        stream, self._stream = self._stream, None
        self._next = self._newest = None
        if stream is not None:
            stream.close()
        self._asked = {}  # once no thread asks, perhaps of an order that is no more
        if self._copies is not None:
            self._copies.forget()

    def _soundly(self, step: int, read: Callable[[], T]) -> T:
        """What `read` gives once no rank meets damage in it that is not set aside."""
        while True:
            found, met = tried(read)
            if not self._sound.changed_by(met, step - 1):
                assert found is not None
                return found
            self.close()  # what was read ahead is of the order before

    def _ready(self, step: int) -> _Taken:
        ready, self._next = self._next, None
        if ready is None or ready.step != step:
            self._was_ready = self._is_ready(step)
            return self._taken(self._at(step))
        self._was_ready = True
        if isinstance(ready, _Failed):
            raise ready.error
        return ready

    def _at(self, step: int) -> BatchStream:
        """A stream whose next batch is that of `step`."""
        if self._stream is not None and self._stream.step == step - 1:
            return self._stream
        self.close()
        buffers = pinned if self._copies is not None else None
        self._stream = BatchStream(
            self._data, "train", self._sequence, self._numbers, step - 1, self._steps, keep=_KEEP, buffers=buffers
        )
        return self._stream

    def _numbers(self, step: int) -> Indices:
        """Of this rank's samples in a step, counted from 0. Several steps are asked for at once, since asking has a fixed cost."""
        order = self.order
        first = rank_slice(positions(order, 0), self._rank.data_rank, self._rank.data_size)
        num_steps = max(1, _ASKED // max(1, len(first)))
        block = step // num_steps
        found = self._asked.get(block)
        if found is None:
            starts = np.arange(block * num_steps, (block + 1) * num_steps, dtype=np.int64) * order.global_batch
            draws = order.draws((starts[:, None] + first).reshape(-1))
            found = self._data.numbers(draws, "train", self._sequence).reshape(num_steps, len(first))
            newest = list(self._asked.items())[-1:]  # where data is far, somebody looks at steps that lie well ahead
            self._asked = {**dict(newest), block: found}
        numbers: Indices = found[step - block * num_steps]
        return numbers

    def _taken(self, stream: BatchStream) -> _Taken:
        if self._copies is not None:
            self._copies.settle()
        rows = next(stream)
        content = self._data.contents(rows) if self._log is not None else None
        batch = torch.from_numpy(rows) if self._copies is None else self._copies.begin(rows)
        return _Taken(stream.step, batch, stream.newest, content)

    def _copy_next(self, step: int) -> None:
        """While the device computes, if its samples are there already. Whatever goes wrong with them is said when they are asked
        for: the step before, whose batch is sound, is not the one to fail."""
        if self._stream is None or not self._is_ready(step):
            return
        try:
            self._next = self._taken(self._stream)
        except Exception as error:  # noqa: BLE001 -- as said
            self._next = _Failed(step, error)

    def _waited_s(self) -> dict[Cause, float]:
        """By cause, since the feed began; by one stream after another."""
        now = self._stream.stats.waited_s if self._stream is not None else {}
        return {cause: self._waited_before.get(cause, 0.0) + now.get(cause, 0.0) for cause in CAUSES}

    def _is_ready(self, step: int) -> bool:
        return self._stream is not None and self._stream.step == step - 1 and self._stream.is_ready


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
