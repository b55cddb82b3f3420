"""What a function makes of each step, made ahead by threads and delivered in order, with waits named by their cause.

For batches that are objects; batches of tokens, which fill the same arrays again and again, have `stream`.
"""

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, Self, TypeVar

from phalanx.job.data.checked import steps_of, whole
from phalanx.job.data.stream import StreamStats
from phalanx.job.data.waits import Cause, Span, causes

T = TypeVar("T")

Fetch = Callable[[int, list[Span]], T]
"""Makes what belongs to a step and adds what took time. Called by any thread."""


class Ahead(Generic[T]):
    """An iterator over fetch(step) of the steps from `start` on, before `stop`; at most `depth` are made ahead of their use.

    An error is raised where its step would have been delivered, and again at each further try. Close it, or leave its `with`: then
    its threads have ended.
    """

    def __init__(
        self, fetch: Fetch[T], start: int, stop: int | None, *, depth: int, threads: int, named: Sequence[Cause], name: str
    ) -> None:
        """named: the causes that `fetch` tells, to be counted from the start."""
        depth, threads = whole("depth", depth), whole("threads", threads)
        start, stop = steps_of(start, stop)
        self._fetch, self._stop, self._depth = fetch, stop, depth
        self._step = self._asked = start
        self._waiting: deque[tuple[Future[T], list[Span]]] = deque()
        self._stats = StreamStats(delivered=0, waited_s=dict.fromkeys(named, 0.0))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._close = weakref.finalize(self, self._pool.shutdown, cancel_futures=True)
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
            spans: list[Span] = []
            self._waiting.append((self._pool.submit(self._fetch, self._asked, spans), spans))
            self._asked += 1
