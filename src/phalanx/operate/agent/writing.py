"""What a shim has to write: facts in their order, each there for good before anybody is told of it, and lines of logs.

A disk may hold up whoever writes for many seconds. The shim of a gang that recovers inside must hear and answer its gang meanwhile,
or its node counts as lost: there a process beside it writes, and only that one waits. No thread can: none may be started once
children have a PID namespace of their own, and ranks are forked from a process with one thread. Standard library only.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from phalanx.operate.agent import boottime, own_pids
from phalanx.operate.agent.durable import write_durable

NAME: Final = b"phalanx-writer"
RETRY_MS: Final = 500
READ_BYTES: Final = 65_536

LINES_MAX: Final = 1_000
"""That wait for the disk."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A file, whole, named from the attempt's folder on. what: is announced once it is there."""

    folder: str
    file: str
    fact: Any
    what: str


@dataclass(frozen=True, slots=True)
class Line:
    """One more line of a log; of the shim's own where path is ''. Lost where the disk does not take it. lost: how many others it
    stands for."""

    path: str
    text: str
    lost: int = 0


class Writer:
    """A process that writes one thing after another. Made before there are signal handlers or a PID namespace; it ends with this
    process."""

    def __init__(self) -> None:
        self._here, there = socket.socketpair()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            self._here.close()
            _serve(there, parent)
        there.close()
        self._process = os.pidfd_open(self._pid)  # its number may be another's, once it was collected

    def fileno(self) -> int:
        return self._here.fileno()

    def begin(self, one: Fact | Line) -> None:
        """That it is gone is heard from `done`."""
        with contextlib.suppress(OSError):
            self._here.sendall(json.dumps([isinstance(one, Fact), asdict(one)]).encode() + b"\n")

    def done(self) -> bool | None:
        """Once it can be read: whether the disk took it; None when the process is gone."""
        try:
            said = self._here.recv(1)
        except OSError:
            said = b""
        return said == b"y" if said else None

    def end(self) -> None:
        """It must have nothing to do."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # collected already
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._process)
        self._here.close()


class Writing:
    """Belongs to the shim's thread: `turn` after every wait. Without a writer that writes everything itself."""

    def __init__(
        self, folder: Path, selector: selectors.BaseSelector, announce: Callable[[str], None], writer: Writer | None = None
    ) -> None:
        self._folder = folder
        self._selector = selector
        self._announce = announce
        self._writer = writer
        self._left: list[Fact | Line] = []  # oldest first
        self._begun: Fact | Line | None = None  # by the writer
        self._not_before_ms = 0
        if writer is not None:
            selector.register(writer, selectors.EVENT_READ, self._answered)

    @property
    def is_open(self) -> bool:
        """Whether something is not written yet."""
        return bool(self._left or self._begun)

    @property
    def waits(self) -> bool:
        """Whether it must be tried again though nothing happens."""
        return bool(self._left)

    def fact(self, file: str, fact: object, what: str) -> None:
        self._left.append(self._fact(file, fact, what))

    def first(self, file: str, fact: object, what: str) -> None:
        """Before all that is not written yet."""
        self._left.insert(0, self._fact(file, fact, what))

    def newest(self, file: str, fact: object, what: str) -> None:
        """In the place of an older state that is not written yet: put off behind all else it might never be."""
        fresh = self._fact(file, fact, what)
        place = next((at for at, one in enumerate(self._left) if isinstance(one, Fact) and one.file == file), len(self._left))
        self._left[place : place + 1] = [fresh]

    def line(self, text: str, path: str = "") -> None:
        one = Line(path, text)
        if self._writer is None:
            _write(one)
        else:
            self._left.append(one)
            self._bound_lines()

    def turn(self) -> None:
        """As far as the disk takes it: what is left waits for a later turn."""
        if self._writer is not None:
            self._begin()
            return
        while self._left:
            try:
                _write(self._left[0])
            except OSError as error:
                _note(self._left[0], error)
                return
            self._is_there(self._left.pop(0))

    def dismiss_writer(self) -> None:
        """The gang is over: nobody minds any more who waits."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            self._selector.unregister(writer)
            writer.end()

    def _fact(self, file: str, fact: object, what: str) -> Fact:
        return Fact(str(self._folder), file, fact, what)

    def _bound_lines(self) -> None:
        """A disk may hang for as long as the gang goes on."""
        lines = [one for one in self._left if isinstance(one, Line)]
        if len(lines) <= LINES_MAX:
            return
        oldest, second = lines[:2]
        lost = sum(one.lost or 1 for one in (oldest, second))
        note = Line("", f"{lost} lines of logs are lost: the disk did not take them", lost)
        self._left = [note if one is second else one for one in self._left if one is not oldest]

    def _begin(self) -> None:
        if self._writer is not None and self._left and self._begun is None and boottime.now_ms() >= self._not_before_ms:
            self._begun = self._left.pop(0)
            self._writer.begin(self._begun)

    def _answered(self) -> None:
        assert self._writer is not None
        begun, self._begun, took = self._begun, None, self._writer.done()
        if begun is not None and took:
            self._is_there(begun)
        elif begun is not None:
            self._left.insert(0, begun)
            self._not_before_ms = boottime.now_ms() + RETRY_MS
        if took is None:
            self.dismiss_writer()
        self._begin()

    def _is_there(self, one: Fact | Line) -> None:
        if isinstance(one, Fact):
            self._announce(one.what)


def _serve(asked: socket.socket, parent: int) -> None:
    """In the writer: never returns."""
    try:
        own_pids.die_with_parent()
        own_pids.set_name(NAME)
        for deaf_to in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # whoever ends the attempt wants its records
            signal.signal(deaf_to, signal.SIG_IGN)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # secrets come there, for the shim alone
        got = b""
        while os.getppid() == parent and (more := asked.recv(READ_BYTES)):
            *whole, got = (got + more).split(b"\n")
            for task in whole:
                asked.sendall(b"y" if _carry_out(json.loads(task)) else b"n")
    finally:
        os._exit(0)


def _carry_out(task: tuple[bool, dict[str, Any]]) -> bool:
    is_fact, fields = task
    one = Fact(**fields) if is_fact else Line(**fields)
    try:
        _write(one)
    except OSError as error:
        _note(one, error)
        return False
    return True


def _write(one: Fact | Line) -> None:
    """Raises OSError where a fact could not be written."""
    if isinstance(one, Fact):
        write_durable(Path(one.folder, one.file), one.fact)
        return
    with contextlib.suppress(OSError):
        line = f"{one.text}\n".encode(errors="backslashreplace")
        if not one.path:
            os.write(2, line)
            return
        with open(one.path, "ab") as log:  # noqa: PTH123 - its path may be of any bytes
            log.write(line)


def _note(one: Fact | Line, error: OSError) -> None:
    _write(Line("", f"cannot write {one.file if isinstance(one, Fact) else one.path} yet: {error}"))
