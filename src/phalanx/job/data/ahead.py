"""What a function makes of each step, made ahead by threads and delivered in order, with waits named by their cause.

For batches that are objects; batches of tokens, which fill the same arrays again and again, have `stream`.
"""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from phalanx.job.data.checked import steps_of, whole
from phalanx.job.data.stream import StreamStats
from phalanx.job.data.waits import FAR, Cause, Span, causes

if TYPE_CHECKING:
    from phalanx.job.data.read_ahead import ReadAhead

T = TypeVar("T")

Tell = Callable[[Cause, float, float], None]
"""Told what took time: the cause, its begin and its end by `time.monotonic`."""

Fetch = Callable[[int, Tell], T]
"""Makes what belongs to a step. Called by any thread; what the second argument raises is to end it."""


class Ahead(Generic[T]):
    """An iterator over fetch(step) of the steps from `start` on, before `stop`; at most `depth` are made ahead of their use.

    An error is raised where its step would have been delivered, and again at each further try. Close it, or leave its `with`: then
    its threads have ended, without what has yet to come from a store.
    """

    def __init__(
        self,
        fetch: Fetch[T],
        start: int,
        stop: int | None,
        *,
        depth: int,
        threads: int,
        named: Sequence[Cause],
        name: str,
        read_ahead: "Callable[[Tell], ReadAhead | None]" = lambda _: None,
    ) -> None:
        """named: the causes that `fetch` tells, to be counted from the start. read_ahead: what fetches the steps to come from
        afar, if anything is; it is told how far this is, and closed with it."""
        depth, threads = whole("depth", depth), whole("threads", threads)
        start, stop = steps_of(start, stop)
        self._fetch, self._stop, self._depth = fetch, stop, depth
        self._step = self._asked = start
        self._waiting: deque[tuple[Future[T], list[Span]]] = deque()
        self._stats = StreamStats(delivered=0, waited_s=dict.fromkeys(named, 0.0))
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._far = read_ahead(partial(_end_wait, self._closing))
        self._close = weakref.finalize(self, _end, self._closing, self._far, self._pool)
        self._ask()

    @property
    def step(self) -> int:
        """Of the next delivery: counts what was delivered, not what was fetched."""
        return self._step

    @property
    def stats(self) -> StreamStats:
        return self._stats

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._step == self._stop:
            raise StopIteration
        if not self._close.alive:
            raise ValueError("the stream is closed")
        future, spans = self._waiting[0]
        began = time.monotonic()
        try:
            made = future.result()
        finally:
            self._count(causes(spans, began, time.monotonic()), delivered=0)
        self._count({}, delivered=1)
        self._waiting.popleft()
        self._step += 1
        self._ask()
        if self._far is not None:
            self._far.delivered(self._step)
        return made

    def _count(self, more: Mapping[Cause, float], delivered: int) -> None:
        waited = {name: seconds + more.get(name, 0.0) for name, seconds in self._stats.waited_s.items()}
        self._stats = StreamStats(delivered=self._stats.delivered + delivered, waited_s=waited)

    def close(self) -> None:
        """Ends the threads, each after what it is making. May be called again."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _ask(self) -> None:
        while self._asked < self._step + self._depth and self._asked != self._stop:
            spans = _Spans(self._closing)
            self._waiting.append((self._pool.submit(self._fetch, self._asked, spans), spans.all))
            self._asked += 1


class _Spans:
    """What took time."""

    def __init__(self, closing: threading.Event) -> None:
        self.all: list[Span] = []
        self._closing = closing

    def __call__(self, cause: Cause, began: float, ended: float) -> None:
        self.all.append((cause, began, ended))
        _end_wait(self._closing, cause)


def _end_wait(closing: threading.Event, cause: Cause, *_: float) -> None:
    """Once the stream is to be closed, nobody waits until a store that is away has come back."""
    if closing.is_set() and cause in FAR:
        raise ValueError("the stream is closed")


def _end(closing: threading.Event, far: "ReadAhead | None", pool: ThreadPoolExecutor) -> None:
    closing.set()
    if far is not None:
        far.close()
    pool.shutdown(cancel_futures=True)
