"""Work spread over processes: results in the order of the tasks, few of them in flight, one clear error when a process dies.

This process is one of them: another would cost its start, its own tokenizer and its cache of words, and this one would wait. The
others are started afresh: a fork of a process whose libraries have threads may hang. They run `crew_member`, and not the script
that called us, which `multiprocessing` would import again. Each has a pipe of its own, whose answers a thread of this one takes.
`concurrent.futures` has processes too, but lets them share queues, and a process that is killed with a queue's lock in its hand
makes all others wait for ever.
"""

import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from phalanx.core.errors import DataError, SetupError
from phalanx.job.data.crew_pipe import Pipe

T = TypeVar("T")
R = TypeVar("R")

_AHEAD: Final = 2
"""Tasks that a process has: one that it works on, and one that lies in its pipe for the moment when it is done."""

_IN_FLIGHT: Final = 4
"""Tasks of each process, under way or done and not yet taken: so many may be done while an earlier one is not."""

PROCESSES_MAX: Final = 1024
_BYTES_EACH: Final = 4 * 10**6
_END_S: Final = 10.0
_BEGIN: Final = """import sys
sys.path[:] = sys.argv[2:]
from phalanx.job.data.crew_member import serve
serve(int(sys.argv[1]))"""


class Crew:
    """`processes` of them, this one among them. To be used as a context."""

    def __init__(self, processes: int = 1) -> None:
        self._members: list[_Member] = []
        self._wanted = processes
        check_processes(processes)

    def __enter__(self) -> Self:
        self.begin(self._wanted)
        return self

    def begin(self, processes: int) -> None:
        """Starts so many, where none are yet. They get ready by themselves."""
        check_processes(processes)
        if not self._members:
            self._members = [_Member(processes) for _ in range(processes - 1)]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            for member in self._members:
                member.kill()
        for member in self._members:
            member.end()

    def map(self, act: Callable[[T], R], tasks: Iterable[T], here: Callable[[T], bool] = lambda _: True) -> Iterator[R]:
        """act(task) of each, in order. Bounded: a task is taken only when there is room for its result.

        here: whether this process may do it where others could too; it hands out none meanwhile. `act` is a module's function.
        Raises what it raises, and SetupError when a process was killed.
        """
        if not self._members:
            yield from map(act, tasks)
            return
        waiting: deque[Future[Any]] = deque()
        for task in tasks:
            while (begun := self._begun(act, task, here, len(waiting))) is None:
                if len(waiting) < self._in_flight_max:
                    wait([one for one in waiting if not one.done()], return_when=FIRST_COMPLETED)
                else:
                    yield waiting.popleft().result()
            waiting.append(begun)
            while waiting and waiting[0].done():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    @property
    def _in_flight_max(self) -> int:
        return (len(self._members) + 1) * _IN_FLIGHT

    def _begun(self, act: Callable[[T], R], task: T, here: Callable[[T], bool], waiting: int) -> "Future[R] | None":
        """None where nobody can take it now."""
        if waiting >= self._in_flight_max:
            return None
        member = min(self._members, key=lambda one: one.load)
        if member.load < _AHEAD:
            return member.ask(act, task)
        return _done(act, task) if len(self._members) == 1 or here(task) else None


def _done(act: Callable[[T], R], task: T) -> "Future[R]":
    found: Future[R] = Future()
    try:
        found.set_result(act(task))
    except Exception as error:  # noqa: BLE001  # it is raised when its turn has come
        found.set_exception(error)
    return found


class _Member:
    """One process, this end of its pipe, and the thread that takes its answers."""

    def __init__(self, processes: int) -> None:
        self._of = processes
        self._asked: deque[Future[Any]] = deque()
        ours, theirs = socket.socketpair()
        self._pipe = Pipe(ours)
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-c", _BEGIN, str(number), *sys.path]
            self._process = subprocess.Popen(command, pass_fds=[number], stdin=subprocess.DEVNULL)
        self._thread = threading.Thread(target=self._take_answers, name="crew", daemon=True)
        self._thread.start()

    @property
    def load(self) -> int:
        """Tasks that it has not answered."""
        return len(self._asked)

    def ask(self, act: Callable[[T], R], task: T) -> "Future[R]":
        """Its answer, some time: answers come in the order of the tasks."""
        found: Future[R] = Future()
        self._asked.append(found)
        try:
            self._pipe.send((act, task))
        except OSError:  # the thread has seen it too, maybe before this one was among those that it told
            self._thread.join()
            self._tell_dead()
        return found

    def _take_answers(self) -> None:
        try:
            while True:
                answer, error = self._pipe.receive()
                asked = self._asked.popleft()
                if error is not None:
                    asked.set_exception(error)
                else:
                    asked.set_result(answer)
        except (EOFError, OSError):
            self._tell_dead()
        except BaseException:  # or who waits for answers would wait for ever
            self._process.kill()
            self._tell_dead()
            raise

    def _tell_dead(self) -> None:
        if self._asked:
            dead = self._dead()
            while self._asked:
                self._asked.popleft().set_exception(dead)

    def kill(self) -> None:
        """Nobody wants what it does."""
        self._process.kill()

    def end(self) -> None:
        """It has nothing to do any more."""
        self._pipe.end()
        self._thread.join()
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
