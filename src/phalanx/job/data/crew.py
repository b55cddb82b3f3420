"""Work spread over processes: results in the order of the tasks, few of them in flight, one clear error when a process dies.

The processes are started afresh (`spawn`): a fork of a process whose libraries have threads may hang. Each has a pipe of its own,
on which a thread of this process waits. `concurrent.futures` has processes too, but lets them share queues, and a process that is
killed with a queue's lock in its hand makes all others wait for ever.
"""

import os
import queue
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from phalanx.core.errors import DataError, SetupError

T = TypeVar("T")
R = TypeVar("R")

_IN_FLIGHT: Final = 2
"""Tasks of each process, under way or done and not yet taken: one that it works on, one that waits for it."""

PROCESSES_MAX: Final = 1024
_BYTES_EACH: Final = 4 * 10**6
_END_S: Final = 10.0


class Crew:
    """`processes` of them, or this one alone for 1. To be used as a context."""

    def __init__(self, processes: int) -> None:
        if not 1 <= processes <= PROCESSES_MAX:
            raise DataError("processes", processes, f"write a number from 1 to {PROCESSES_MAX}")
        self._processes = processes
        self._members: list[_Member] = []
        self._idle: queue.SimpleQueue[_Member] = queue.SimpleQueue()
        self._threads: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        if self._processes > 1:
            self._members = [_Member(self._processes) for _ in range(self._processes)]
            for member in self._members:
                self._idle.put(member)
            self._threads = ThreadPoolExecutor(self._processes, thread_name_prefix="crew")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            for member in self._members:
                member.kill()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)  # before the pipes are closed that they wait on
        for member in self._members:
            member.end()

    def map(self, act: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """act(task) of each, in order. Bounded: a task is taken only when there is room for its result.

        `act` is a module's function. Raises what it raises, and SetupError when a process was killed.
        """
        if self._threads is None:
            yield from map(act, tasks)
            return
        waiting: deque[Future[Any]] = deque()
        for task in tasks:
            if len(waiting) >= self._processes * _IN_FLIGHT:
                yield waiting.popleft().result()
            waiting.append(self._threads.submit(self._ask, act, task))
        while waiting:
            yield waiting.popleft().result()

    def _ask(self, act: Callable[[T], R], task: T) -> R:
        member = self._idle.get()
        try:
            answer: R = member.ask(act, task)
            return answer
        finally:
            self._idle.put(member)


class _Member:
    """One process, and this end of its pipe."""

    def __init__(self, processes: int) -> None:
        context = get_context("spawn")
        self._of = processes
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, act: Callable[[T], R], task: T) -> R:
        try:
            self._pipe.send((act, task))
            answer, error = self._pipe.recv()
        except (EOFError, OSError) as gone:
            raise self._dead() from gone
        if error is not None:
            raise error
        result: R = answer
        return result

    def kill(self) -> None:
        """Nobody wants what it does."""
        self._process.kill()

    def end(self) -> None:
        """It has nothing to do any more."""
        self._pipe.close()
        self._process.join(_END_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._process.close()

    def _dead(self) -> SetupError:
        self._process.join(_END_S)
        code = self._process.exitcode
        if code is not None and code > 0:  # it never began: it imports the script that called us
            fix = f"one of the processes ended with exit code {code}; call prepare below `if __name__ == '__main__':`, or with 1"
        else:
            fix = "one of the processes was killed, most likely for want of memory; run it again, with fewer --processes"
        return SetupError("processes", self._of, fix)


def default_processes(text_bytes: int) -> int:
    """As many as this process may use cores, fewer for a text that is done before they have begun."""
    return max(1, min(len(os.sched_getaffinity(0)), text_bytes // _BYTES_EACH))


def _serve(pipe: Connection) -> None:
    """A process: answers until the other end is closed, by whatever happens to its owner."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's to handle
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the cores are taken by the others
    try:
        while True:
            act, task = pipe.recv()
            pipe.send(_answer(act, task))
    except (EOFError, OSError):
        return


def _answer(act: Callable[[Any], Any], task: Any) -> tuple[Any, Exception | None]:
    try:
        return act(task), None
    except Exception as error:  # noqa: BLE001  # it is raised again where it was asked for
        error.add_note(traceback.format_exc())
        return None, error
