"""The program that a holder holds: on a pseudo-terminal, or on pipes. Standard library only; nothing here blocks."""

import contextlib
import errno
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from phalanx.core.channels import ERR, OUT

CANNOT_START: Final = 127
REST_BYTES_MAX: Final = 2 * 1024 * 1024
"""A pipe holds 1 MiB at most, where somebody made it larger; what comes beyond is of processes that live on."""
_SIDE: Final = 2000
"""Rows and columns of no terminal."""


class Program(Protocol):
    """What a holder wants of it. `waiting`: input that it has yet to read. A size is (rows, columns)."""

    waiting: bytearray
    started: bool

    def start(self, size: tuple[int, int]) -> None: ...
    def take(self, data: bytes) -> None: ...
    def end_input(self) -> None: ...
    def write(self) -> None: ...
    def sink(self) -> int | None: ...
    def outputs(self) -> list[tuple[int, int]]: ...
    def read(self, source: int, limit: int) -> bytes: ...
    def rest(self) -> Iterator[tuple[int, bytes]]: ...
    def resize(self, size: tuple[int, int]) -> None: ...
    def handle(self) -> int | None: ...
    def ended(self) -> bool: ...
    def code(self) -> int: ...
    def could_start(self) -> bool: ...
    def hang_up(self) -> None: ...
    def kill(self) -> None: ...


class _Process:
    """What the two have in common: a child that is waited for by its pidfd."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = list(argv)
        self.waiting = bytearray()
        self.started = False
        self._pid = 0
        self._handle: int | None = None
        self._code: int | None = None
        self._open: dict[int, int] = {}  # descriptor -> stream

    def _begun(self, pid: int) -> None:
        self._pid, self.started = pid, True
        self._handle = os.pidfd_open(pid)

    def take(self, data: bytes) -> None:
        self.waiting += data
        self.write()

    def write(self) -> None:
        sink = self.sink()
        if sink is None:
            self.waiting.clear()
        while self.waiting and sink is not None:
            try:
                del self.waiting[: os.write(sink, self.waiting[:65536])]
            except BlockingIOError:
                return
            except OSError:
                self.waiting.clear()

    def sink(self) -> int | None:
        raise NotImplementedError

    def outputs(self) -> list[tuple[int, int]]:
        return [(stream, source) for source, stream in self._open.items()]

    def read(self, source: int, limit: int) -> bytes:
        """Empty when there is nothing now, or never again."""
        if source not in self._open:
            return b""
        try:
            data = os.read(source, limit)
        except BlockingIOError:
            return b""
        except OSError as error:
            if error.errno != errno.EIO:  # nobody has the terminal open any more
                raise
            data = b""
        if not data:
            del self._open[source]
        return data

    def rest(self) -> Iterator[tuple[int, bytes]]:
        """What it had written when it ended; processes that it left are not waited for."""
        for stream, source in self.outputs():
            left = REST_BYTES_MAX
            while left > 0 and (data := self.read(source, 65536)):
                left -= len(data)
                yield stream, data

    def handle(self) -> int | None:
        return self._handle

    def ended(self) -> bool:
        if self._handle is None:
            return self._code is not None
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            self._code = 128 - code if code < 0 else code
            os.close(self._handle)
            self._handle = None
        return pid != 0

    def code(self) -> int:
        assert self._code is not None
        return self._code

    def could_start(self) -> bool:
        """Once it has ended."""
        return True

    def _signal(self, group: int, *numbers: signal.Signals) -> None:
        for number in numbers:
            with contextlib.suppress(OSError):
                try:
                    os.killpg(group, number)
                except ProcessLookupError:
                    if group == self._pid:  # which was just forked, and has not made its group yet
                        os.kill(group, number)

    def hang_up(self) -> None:
        if self._handle is not None:
            self._signal(self._pid, signal.SIGHUP, signal.SIGTERM, signal.SIGCONT)

    def kill(self) -> None:
        if self._handle is not None:
            self._signal(self._pid, signal.SIGKILL)


class OnTerminal(_Process):
    """Leader of a session with a terminal of its own."""

    def __init__(self, argv: Sequence[str]) -> None:
        super().__init__(argv)
        self._terminal = -1
        self._failed = -1

    def start(self, size: tuple[int, int]) -> None:
        self._failed, tell = os.pipe()  # closed by the program's own start
        waits, go = os.pipe()
        pid, self._terminal = pty.fork()
        if pid == 0:
            os.close(go)
            self._become(waits, tell)
        os.close(tell)
        os.close(waits)
        os.set_blocking(self._terminal, False)
        self._open[self._terminal] = OUT
        self._begun(pid)
        self.resize(size)
        os.close(go)

    def could_start(self) -> bool:
        """A shell that ends after a command that was not found has the same code as one that could not be started."""
        return self._failed < 0 or os.read(self._failed, 1) == b""

    def _become(self, waits: int, tell: int) -> None:
        """In the child, once its terminal has a size: set here it could come after that of somebody who attached meanwhile."""
        try:
            os.read(waits, 1)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGPIPE, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.execvpe(self.argv[0], self.argv, {"TERM": "xterm-256color", **os.environ})  # noqa: S606 - what was asked for
        except OSError as error:
            os.write(tell, b"x")
            sys.stdout.write(f"phalanx: cannot start {self.argv[0]!r}: {error.strerror}\r\n")
            sys.stdout.flush()
        finally:
            os._exit(CANNOT_START)

    def end_input(self) -> None:
        """As Ctrl-D on an empty line does."""
        self.take(b"\x04")

    def sink(self) -> int | None:
        return self._terminal if self._terminal in self._open else None

    def resize(self, size: tuple[int, int]) -> None:
        if self.sink() is None:
            return
        with contextlib.suppress(OSError):
            _set_size(self._terminal, size)
            os.killpg(os.tcgetpgrp(self._terminal), signal.SIGWINCH)  # also of the same size: whoever comes sees it drawn anew

    def hang_up(self) -> None:
        """The group in the foreground is told too: a shell that waits for it cannot end before."""
        with contextlib.suppress(OSError):
            if (group := os.tcgetpgrp(self._terminal)) not in (0, self._pid):
                self._signal(group, signal.SIGHUP, signal.SIGTERM, signal.SIGCONT)
        super().hang_up()


class OnPipes(_Process):
    """In a process group of its own, its output and errors apart."""

    def __init__(self, argv: Sequence[str]) -> None:
        super().__init__(argv)
        self._child: subprocess.Popen[bytes] | None = None
        self._sink: int | None = None
        self._input_over = False

    def start(self, size: tuple[int, int]) -> None:
        del size
        try:
            self._child = subprocess.Popen(
                self.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0, bufsize=0
            )
        except (OSError, ValueError) as error:
            self._fail(f"phalanx: cannot start {self.argv[0]!r}: {getattr(error, 'strerror', None) or error}\n")
            return
        child = self._child
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        self._sink = child.stdin.fileno()
        self._open = {child.stdout.fileno(): OUT, child.stderr.fileno(): ERR}
        for number in (self._sink, *self._open):
            os.set_blocking(number, False)
        self._begun(child.pid)

    def _fail(self, words: str) -> None:
        told, tell = os.pipe()
        os.write(tell, words.encode(errors="backslashreplace"))
        os.close(tell)
        self._open[told] = ERR
        self.started, self._code = True, CANNOT_START

    def end_input(self) -> None:
        self._input_over = True
        self.write()

    def write(self) -> None:
        super().write()
        if self._input_over and not self.waiting and self._sink is not None and self._child and self._child.stdin:
            self._child.stdin.close()
            self._sink = None

    def sink(self) -> int | None:
        return self._sink

    def ended(self) -> bool:
        """Once all that it says has been read, or it has ended and left its pipes to others."""
        over = super().ended()
        if over and self._child is not None:
            self._child.returncode = self._code
        return over

    def resize(self, size: tuple[int, int]) -> None:
        """It has no terminal."""


def _set_size(terminal: int, size: tuple[int, int]) -> None:
    rows, columns = (min(max(one, 1), _SIDE) for one in size)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
