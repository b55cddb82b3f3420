"""Work spread over processes: results in the order of the tasks, few of them in flight, one clear error when a process dies.

The processes are started afresh: a fork of a process whose libraries have threads may hang. They run `crew_member`, and not the
script that called us, which `multiprocessing` would import again. Each has a pipe of its own, on which a thread of this process
waits. `concurrent.futures` has processes too, but lets them share queues, and a process that is killed with a queue's lock in its
hand makes all others wait for ever.
"""

import os
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Pipe
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
_BEGIN: Final = """import sys
sys.path[:] = sys.argv[2:]
from phalanx.job.data.crew_member import serve
serve(int(sys.argv[1]))"""


class Crew:
    """This process alone, until others are begun. To be used as a context."""

    def __init__(self, processes: int = 1) -> None:
        self._processes = 1
        self._members: list[_Member] = []
        self._idle: queue.SimpleQueue[_Member] = queue.SimpleQueue()
        self._threads: ThreadPoolExecutor | None = None
        self._wanted = processes
        check_processes(processes)

    def __enter__(self) -> Self:
        self.begin(self._wanted)
        return self

    def begin(self, processes: int) -> None:
        """Starts so many, where none are yet. They get ready by themselves."""
        check_processes(processes)
        if processes == 1 or self._members:
            return
        self._processes = processes
        self._members = [_Member(processes) for _ in range(processes)]
        for member in self._members:
            self._idle.put(member)
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="crew")

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
        self._of = processes
        self._pipe, theirs = Pipe()
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-c", _BEGIN, str(number), *sys.path]
            self._process = subprocess.Popen(command, pass_fds=[number], stdin=subprocess.DEVNULL)

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
        self._wait()

    def _wait(self) -> int:
        """Its exit code: it ends once its pipe is closed, or is ended."""
        try:
            return self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _dead(self) -> SetupError:
        code = self._wait()
        if code > 0:
            fix = f"one of the processes ended with exit code {code}, after the words above; mend what they say, or use one process"
        else:
            fix = "one of the processes was killed, most likely for want of memory; run it again, with fewer --processes"
        return SetupError("processes", self._of, fix)


def check_processes(processes: int) -> None:
    """Raises DataError."""
    if not 1 <= processes <= PROCESSES_MAX:
        raise DataError("processes", processes, f"write a number from 1 to {PROCESSES_MAX}")


def default_processes(text_bytes: int) -> int:
    """As many as this process may use cores, fewer for a text that is done before they have begun."""
    return max(1, min(len(os.sched_getaffinity(0)), text_bytes // _BYTES_EACH))
