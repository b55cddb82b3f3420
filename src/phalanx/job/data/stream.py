"""Batches gathered ahead of their use by threads, delivered in order, with the time that was waited named by its cause.

What a batch holds is a function of its step, so nothing of what was fetched ahead belongs to the run's state: a stream that begins
with the step of the next batch to be delivered goes on as if nothing had happened. `cursor` makes of that step what is saved.
"""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, runtime_checkable

import numpy as np

from phalanx.job.data.checked import callable_of, split_of, steps_of, whole
from phalanx.job.data.manifest import Split
from phalanx.job.data.order import Indices
from phalanx.job.data.samples import Rows
from phalanx.job.data.shards import Watch
from phalanx.job.data.waits import CAUSES, FAR, Cause, Span, causes

if TYPE_CHECKING:
    from phalanx.job.data.read_ahead import ReadAhead

Order = Callable[[int], Indices]
"""From a step to the samples of its batch, in order; called by the stream's threads. See `order`."""

Buffers = Callable[[tuple[int, ...]], Rows]
"""Makes an int64 array of a shape, such as one over pinned memory; called by the stream's threads, and only until all are made."""


class Gathered(Protocol):
    """What batches are gathered from: a `TokenData`, or `Sources`."""

    def row_shape(self, sequence: int) -> tuple[int, ...]:
        """Of each sample."""

    def gather(self, split: Split, numbers: Indices, sequence: int, out: Rows | None = None, watch: Watch | None = None, /) -> Rows:
        """The samples of these numbers, in `out` where it is given. Any thread may ask."""


@runtime_checkable
class Far(Protocol):
    """What also fetches the steps to come, where the data lies in a store."""

    def read_ahead(self, split: Split, sequence: int, order: Order, start: int, stop: int | None) -> "ReadAhead | None":
        """To be told how far the stream is; None where nothing is far."""


DEPTH: Final = 4
THREADS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStats:
    """Since the stream began. waited_s: how long `next` waited for a batch, by cause, all of them present."""

    delivered: int
    waited_s: dict[Cause, float]

    @property
    def cause(self) -> Cause | Literal[""]:
        """What was waited for most; '' when nothing was."""
        most = max(self.waited_s, key=lambda name: self.waited_s[name])
        return most if self.waited_s[most] > 0 else ""


class BatchStream:
    """The batches of one split from the step `start` on, counted from 0: an iterator of int64 arrays [samples, *row], where a
    row of a `TokenData` has sequence + 1 tokens.

    A delivered array is filled anew after `keep` more were delivered: one that is copied in the background needs a `keep` as long
    as that copy may last. `depth` batches at most are fetched ahead. stop: the first step that is not delivered.
    An error of a batch is raised where that batch would have been delivered, and again at each further try; `step` stays
    there. newest: the samples of the batch that was delivered last, as they were asked of the data. Close the stream, or leave its
    `with`: then its threads have ended.
    """

    def __init__(
        self,
        data: Gathered,
        split: Split,
        sequence: int,
        order: Order,
        start: int = 0,
        stop: int | None = None,
        *,
        depth: int = DEPTH,
        threads: int = THREADS,
        keep: int = 1,
        buffers: Buffers | None = None,
    ) -> None:
        depth, threads, keep = whole("depth", depth), whole("threads", threads), whole("keep", keep)
        start, stop = steps_of(start, stop)
        split, sequence = split_of(split), whole("sequence", sequence)
        callable_of("order", order, "from a step to the samples of its batch, such as rows_of_rank(order) gives")
        self._ahead = _Ahead(data, split, sequence, order, buffers or _empty, delivered=start, taken=start, stop=stop, depth=depth)
        self._keep = keep
        self._held: deque[Rows] = deque()
        self.newest: Indices = np.zeros(0, dtype=np.int64)
        self._stats = StreamStats(delivered=0, waited_s=dict.fromkeys(CAUSES, 0.0))
        self._far = data.read_ahead(split, sequence, order, start, stop) if isinstance(data, Far) else None
        self._threads = [
            threading.Thread(target=self._ahead.run, name=f"data-{split}-{number}", daemon=True) for number in range(threads)
        ]
        self._close = weakref.finalize(self, _end, self._ahead, self._threads)
        for thread in self._threads:
            thread.start()

    @property
    def step(self) -> int:
        """Of the next batch: counts what was delivered, not what was fetched."""
        return self._ahead.delivered

    @property
    def stats(self) -> StreamStats:
        return self._stats

    @property
    def num_ahead(self) -> int:
        """Batches that are ready."""
        return len(self._ahead.ready)

    @property
    def is_ready(self) -> bool:
        """Whether the next one is, so that `next` does not wait for it."""
        return self._ahead.delivered in self._ahead.ready

    def __iter__(self) -> Iterator[Rows]:
        return self

    def __next__(self) -> Rows:
        ahead = self._ahead
        if ahead.delivered == ahead.stop:
            raise StopIteration
        began = time.monotonic()
        fetched = ahead.wait()
        self._count(fetched, began, time.monotonic())
        if fetched.error is not None:
            raise fetched.error
        self._held.append(fetched.array)
        self.newest = fetched.samples
        ahead.deliver(self._held.popleft() if len(self._held) > self._keep else None)
        self._stats = StreamStats(delivered=self._stats.delivered + 1, waited_s=self._stats.waited_s)
        if self._far is not None:
            self._far.delivered(self.step)
        return fetched.rows

    def close(self) -> None:
        """Ends the threads, each after what it is reading, and without what has yet to come from a store. May be called again."""
        self._close()
        if self._far is not None:
            self._far.close()

    def __enter__(self) -> "BatchStream":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _count(self, fetched: "_Fetched", began: float, ended: float) -> None:
        waited = self._stats.waited_s
        added = causes(fetched.spans, began, ended)
        self._stats = StreamStats(
            delivered=self._stats.delivered, waited_s={name: waited[name] + added.get(name, 0.0) for name in waited}
        )


@dataclass(frozen=True, slots=True)
class _Fetched:
    """samples: of the batch, in order. rows: of it, a part of `array`. All empty where there is an error."""

    samples: Indices
    rows: Rows
    array: Rows
    spans: Sequence[Span]
    error: BaseException | None = None


@dataclass(slots=True)
class _Ahead:
    """What the threads and the stream share; it does not know the stream, so that one that is forgotten can be ended.

    delivered, taken: the next step to be delivered, and the next one to be fetched. ready: by step. free: arrays to fill.
    """

    data: Gathered
    split: Split
    sequence: int
    order: Order
    buffers: Buffers
    delivered: int
    taken: int
    stop: int | None
    depth: int
    ready: dict[int, _Fetched] = field(default_factory=dict)
    free: list[Rows] = field(default_factory=list)
    failed: bool = False
    closed: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def wait(self) -> _Fetched:
        """The next batch, once it is there. Raises ValueError on a closed stream."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or self.delivered in self.ready)
            if self.closed:
                raise ValueError("the stream is closed")
            return self.ready[self.delivered]

    def deliver(self, back: Rows | None) -> None:
        """The batch was delivered; `back` may be filled again."""
        with self.changed:
            del self.ready[self.delivered]
            self.delivered += 1
            if back is not None:
                self.free.append(back)
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def run(self) -> None:
        """A thread's life."""
        while (step := self._take()) is not None:
            fetched = self._fetch(step)
            with self.changed:
                self.failed |= fetched.error is not None
                self.ready[step] = fetched
                self.changed.notify_all()

    def _take(self) -> int | None:
        with self.changed:
            self.changed.wait_for(lambda: self.closed or self._may_take())
            if self.closed:
                return None
            self.taken += 1
            return self.taken - 1

    def _may_take(self) -> bool:
        """Nothing after a step that failed is of use."""
        return not self.failed and self.taken < self.delivered + self.depth and self.taken != self.stop

    def _fetch(self, step: int) -> _Fetched:
        spans: list[Span] = []
        try:
            began = time.monotonic()
            indices = self.order(step)
            ordered = time.monotonic()
            spans.append(("order", began, ordered))
            array = self._array((len(indices), *self.data.row_shape(self.sequence)))
            rows = array[: len(indices)]
            self.data.gather(self.split, indices, self.sequence, rows, self._watch(spans))
            spans.append(("decode", ordered, time.monotonic()))
            return _Fetched(indices, rows, array, spans)
        except BaseException as error:  # noqa: BLE001 -- whatever it is, who waits for the batch must hear of it
            return _Fetched(_empty((0,)), _empty((0, 0)), _empty((0, 0)), spans, error)

    def _watch(self, spans: list[Span]) -> Watch:
        """Of a batch: for one of a stream that was closed, nobody waits until a store that is away has come back."""

        def watch(*span: Any) -> None:
            spans.append(span)
            if self.closed and span[0] in FAR:
                raise ValueError("the stream is closed")

        return watch

    def _array(self, shape: tuple[int, ...]) -> Rows:
        """One that is free and large enough, or a new one."""
        with self.changed:
            array = self.free.pop() if self.free else None
        return self.buffers(shape) if array is None or len(array) < shape[0] else array


def _empty(shape: tuple[int, ...]) -> Rows:
    return np.empty(shape, dtype=np.int64)


def _end(ahead: _Ahead, threads: Sequence[threading.Thread]) -> None:
    ahead.close()
    for thread in threads:
        if thread is not threading.current_thread():  # one that forgets the stream last
            thread.join()
