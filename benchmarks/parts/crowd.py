"""Many ranks as threads of a few processes, beside one process that serves them all: for what is measured of meeting."""

import contextlib
import multiprocessing
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

DEADLINE_S: Final = 120.0
READY_S: Final = 600.0

Instants = dict[int, tuple[float, ...]]
"""Of each rank when it was through with each step, on CLOCK_MONOTONIC, which all processes of a machine share."""
OPEN: Final[list[Any]] = []
"""What this process's ranks hold until the measurement is over."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """serve(there, over): in a process of its own; calls `there` once it listens, which is before the start, and goes on until
    `over` is set. ranks: of each of the other processes. rank_of(rank): what one does before the start, one after another, and
    gives what it does then. beside(process): what else its threads do."""

    serve: Callable[[Callable[[], None], threading.Event], None]
    ranks: tuple[tuple[int, ...], ...]
    rank_of: Callable[[int], Callable[[], tuple[float, ...]]]
    beside: Callable[[int], list[Callable[[threading.Event], None]]] = lambda _: []

    def met(self) -> Instants:
        """Seconds since all could start. Every thread is there before."""
        context = multiprocessing.get_context("fork")
        told = _Words(context.Event(), context.Event(), context.Event(), context.Semaphore(0), context.SimpleQueue())
        roles = [context.Process(target=_role, args=(self._server, told))]
        roles += [context.Process(target=_role, args=(self._worker, told, number)) for number in range(len(self.ranks))]
        try:
            for role in roles:
                role.start()
            for _ in roles:
                assert told.ready.acquire(timeout=READY_S)
            begin_s = time.monotonic()
            told.go.set()
            found: Instants = dict(pair for _ in self.ranks for pair in told.answers.get())
        finally:
            told.end.set()
            _join(roles)
        if missing := sum(map(len, self.ranks)) - len(found):
            raise SystemExit(f"{missing} ranks did not come in {DEADLINE_S:g} s")
        return {rank: tuple(instant - begin_s for instant in instants) for rank, instants in found.items()}

    def _server(self, told: "_Words") -> None:
        def there() -> None:
            told.serves.set()
            told.ready.release()

        self.serve(there, _when(told.end))

    def _worker(self, told: "_Words", number: int) -> None:
        over, start = _when(told.end), threading.Event()
        told.serves.wait()
        acts = {rank: self.rank_of(rank) for rank in self.ranks[number]}
        found: list[tuple[int, tuple[float, ...]]] = []

        def one(rank: int) -> None:
            act = acts[rank]
            start.wait()
            found.append((rank, act()))

        def other(work: Callable[[threading.Event], None]) -> None:
            start.wait()
            work(over)

        others = _threads((other, work) for work in self.beside(number))
        ranks = _threads((one, rank) for rank in self.ranks[number])
        told.ready.release()
        told.go.wait()
        start.set()
        until_s = time.monotonic() + DEADLINE_S
        for thread in ranks:
            thread.join(max(0.0, until_s - time.monotonic()))
        told.answers.put(list(found))
        told.end.wait()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what peers say of a server that has ended
        for thread in others:
            thread.join(5)


@dataclass(frozen=True, slots=True)
class _Words:
    """Between processes."""

    serves: Any
    go: Any
    end: Any
    ready: Any
    answers: Any


def _threads(work: Iterable[tuple[Callable[[Any], None], Any]]) -> list[threading.Thread]:
    threads = [threading.Thread(target=act, args=(given,), daemon=True) for act, given in work]
    for thread in threads:
        thread.start()
    return threads


def _when(end: Any) -> threading.Event:
    """Set once the other processes' `end` is."""
    over = threading.Event()

    def wait() -> None:
        end.wait()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    return over


def _role(act: Callable[..., None], *given: Any) -> None:
    """With as many descriptors as may be: a process has both ends of its ranks' connections."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.suppress(KeyboardInterrupt):
        act(*given)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _join(roles: Iterable[Any]) -> None:
    for role in roles:
        role.join(15)
        if role.is_alive():
            role.kill()
            role.join()
