"""Holds one program inside a job for those who come and go: a shell on a terminal, or a command tied to whoever asked for it.

It is a rank, or a child of the attempt's shim beside the ranks: it has their user, namespaces, devices and environment, and lives
when the agent, the control plane and every connection are gone. Its standard input is the socket on which it listens, as with
inetd: a path need not be reachable from inside. Standard library only, one thread.

--keep: the program starts at once, on a terminal; its screen is shown to all who attach. It ends the holder with code 0, whatever
        it ended with itself: what somebody's last command said is no failure of the job.
--tied: a terminal, for the first that attaches; hung up with them. --piped: the same with pipes and no terminal.
"""

import contextlib
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from phalanx.core.channels import EXIT, INPUT, OUT, SAY
from phalanx.operate.agent.terminal import frames
from phalanx.operate.agent.terminal.programs import OnPipes, OnTerminal, Program
from phalanx.operate.agent.terminal.sessions import BACKLOG_BYTES_MAX, READ_BYTES, Caller, Scrollback

INPUT_BYTES_MAX: Final = 64 * 1024
"""Of what the program has yet to read. Beyond it nobody is heard."""
CALLERS_MAX: Final = 32
PATIENCE_S: Final = 5.0
"""How long the program waits for those who look at it, when none of them reads; then they miss something."""
ATTACH_S_MAX: Final = 30.0
"""How long a command waits for who asked for it."""
FLUSH_S_MAX: Final = 2.0
HANG_UP_S: Final = 5.0
NOT_FOUND: Final = 127
_MISSED: Final = "some output was left out, since it was not read in time; what is still known follows"


def command(mode: str, argv: Sequence[str]) -> list[str]:
    """How to start one. `argv` may be empty: a shell that is there."""
    root = str(Path(__file__).parents[4])
    start = f"import sys; sys.path.append({root!r}); from phalanx.operate.agent.terminal.holder import main; main()"
    return [sys.executable, "-I", "-S", "-c", start, f"--{mode}", "--", *argv]


class Holder:
    """One program and its callers. `run` returns the code with which this process ends. `clock`: seconds, never going back."""

    def __init__(
        self,
        listener: socket.socket,
        program: Program,
        kept: bool,
        woken: socket.socket,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """woken: readable after a signal."""
        self._listener, self._program, self._kept, self._woken, self._clock = listener, program, kept, woken, clock
        self._callers: list[Caller] = []
        self._scrollback = Scrollback()
        self._begun = clock()
        self._input_at = self._output_at = self._begun
        self._full_since: float | None = None
        self._hung_up_at: float | None = None
        self._code: int | None = None

    def run(self) -> int:
        self._listener.setblocking(False)
        if self._kept:
            self._program.start((24, 80))
        while self._code is None:
            self._turn()
        self._say_end()
        # How somebody left their shell is no fault of the job; that it was ended, or never began, is another matter.
        left = self._kept and self._hung_up_at is None and self._program.could_start()
        return 0 if left else self._code

    def hang_up(self) -> None:
        """As when a line is cut: SIGHUP, which ends a shell, and SIGTERM."""
        if self._hung_up_at is None:
            self._hung_up_at = self._clock()
            self._program.hang_up()

    def _turn(self) -> None:
        with selectors.PollSelector() as selector:
            self._watch(selector)
            for key, mask in selector.select(self._patience_s()):
                key.data(mask)
        for caller in [one for one in self._callers if one.gone]:
            self._leave(caller)
        self._look_at_time()
        if self._program.ended():
            for stream, data in self._program.rest():
                self._show(stream, data)
            self._code = self._program.code()

    def _watch(self, selector: selectors.BaseSelector) -> None:
        selector.register(self._woken, selectors.EVENT_READ, lambda _: self._woken.recv(4096))
        if len(self._callers) < CALLERS_MAX:
            selector.register(self._listener, selectors.EVENT_READ, lambda _: self._accept())
        for caller in self._callers:
            hears = len(self._program.waiting) < INPUT_BYTES_MAX
            wanted = (selectors.EVENT_READ if hears else 0) | (selectors.EVENT_WRITE if caller.backlog or caller.behind else 0)
            if wanted:
                selector.register(caller.socket, wanted, lambda mask, caller=caller: self._serve(caller, mask))
        for stream, source in self._program.outputs() if self._may_read() else ():
            selector.register(source, selectors.EVENT_READ, lambda _, stream=stream, source=source: self._read(stream, source))
        if (sink := self._program.sink()) is not None and self._program.waiting:
            if sink in {key.fd for key in selector.get_map().values()}:
                key = selector.get_key(sink)
                both = selectors.EVENT_READ | selectors.EVENT_WRITE
                selector.modify(sink, both, lambda mask, read=key.data: self._both(mask, read))
            else:
                selector.register(sink, selectors.EVENT_WRITE, lambda _: self._program.write())
        if (handle := self._program.handle()) is not None:
            selector.register(handle, selectors.EVENT_READ, lambda _: None)

    def _both(self, mask: int, read: Callable[[int], None]) -> None:
        if mask & selectors.EVENT_WRITE:
            self._program.write()
        if mask & selectors.EVENT_READ:
            read(mask)

    def _may_read(self) -> bool:
        """The program goes as fast as the fastest that looks at it, and at its own pace where nobody does."""
        looking = [one for one in self._callers if one.attached and not one.behind]
        if not looking or any(not one.is_full for one in looking):
            self._full_since = None
            return True
        if self._full_since is None:
            self._full_since = self._clock()
        if not self._kept or self._clock() - self._full_since < PATIENCE_S:
            return False  # who asked for a command gets all of it
        for caller in looking:
            caller.drop_backlog()
        self._full_since = None
        return True

    def _patience_s(self) -> float | None:
        waits = self._full_since is not None or self._hung_up_at is not None or (not self._kept and not self._program.started)
        return 0.5 if waits else None

    def _look_at_time(self) -> None:
        now = self._clock()
        if not self._program.started and (self._hung_up_at is not None or now - self._begun > ATTACH_S_MAX):
            self._code = NOT_FOUND
        if self._hung_up_at is not None and now - self._hung_up_at > HANG_UP_S:
            self._program.kill()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            self._callers.append(Caller(self._listener.accept()[0]))

    def _serve(self, caller: Caller, mask: int) -> None:
        if mask & selectors.EVENT_READ:
            for stream, data in caller.hear():
                self._heard(caller, stream, data)
        if mask & selectors.EVENT_WRITE:
            caller.flush()
            if caller.behind and not caller.backlog:
                caller.behind = False
                caller.say({SAY: _MISSED})
                caller.show(OUT, self._scrollback.read())

    def _heard(self, caller: Caller, stream: int, data: bytes) -> None:
        if stream == INPUT and caller.attached:
            self._input_at = self._clock()
            self._program.take(data)
        elif stream == frames.CONTROL:
            try:
                self._told(caller, frames.message(data))
            except ValueError:
                caller.gone = True

    def _told(self, caller: Caller, message: dict[str, Any]) -> None:
        match message:
            case {"attach": [int(rows), int(columns)]}:
                self._attach(caller, (rows, columns))
            case {"resize": [int(rows), int(columns)]}:
                caller.size = (rows, columns)
                self._resize()
            case {"end": 0} if caller.attached:
                self._program.end_input()
            case {"say": str(text)}:
                for one in self._callers:
                    if one.attached and not one.is_full:
                        one.say({SAY: text})
            case {"status": True}:
                caller.say({"status": self._status()})

    def _status(self) -> dict[str, int]:
        now = self._clock()
        ages = {"input_ms": now - self._input_at, "output_ms": now - self._output_at}
        return {name: int(age * 1000) for name, age in ages.items()} | {"users": sum(one.attached for one in self._callers)}

    def _attach(self, caller: Caller, size: tuple[int, int]) -> None:
        if caller.attached or (not self._kept and self._program.started):
            return
        caller.attached, caller.size = True, size
        if not self._program.started:
            self._program.start(size)
        caller.show(OUT, self._scrollback.read())
        self._resize()

    def _resize(self) -> None:
        """To what all who look can see."""
        sizes = [one.size for one in self._callers if one.attached]
        if sizes:
            self._program.resize((min(rows for rows, _ in sizes), min(columns for _, columns in sizes)))

    def _leave(self, caller: Caller) -> None:
        caller.socket.close()
        self._callers.remove(caller)
        if caller.attached and not self._kept:
            self.hang_up()
        self._resize()

    def _read(self, stream: int, source: int) -> None:
        data = self._program.read(source, READ_BYTES)
        while data and len(data) < READ_BYTES and (more := self._program.read(source, READ_BYTES)):
            data += more  # a terminal gives 4 KiB at a time
        if data:
            self._output_at = self._clock()
            self._show(stream, data)

    def _show(self, stream: int, data: bytes) -> None:
        if self._kept:
            self._scrollback.add(data)
        for caller in self._callers:
            if not caller.attached or caller.behind:
                continue
            if caller.backlog >= BACKLOG_BYTES_MAX and self._kept:
                caller.drop_backlog()
            else:
                caller.show(stream, data)

    def _say_end(self) -> None:
        """To those who still read."""
        until = self._clock() + FLUSH_S_MAX
        for caller in self._callers:
            if caller.attached:
                caller.say({EXIT: self._code})
        while (left := [one for one in self._callers if one.backlog and not one.gone]) and self._clock() < until:
            with selectors.PollSelector() as selector:
                for caller in left:
                    selector.register(caller.socket, selectors.EVENT_WRITE)
                selector.select(0.1)
            for caller in left:
                caller.flush()
                until = max(until, self._clock() + FLUSH_S_MAX) if not self._kept and not caller.gone else until


def shell() -> list[str]:
    """One that is there."""
    return [next((path for name in ("bash", "sh") if (path := shutil.which(name))), "/bin/sh")]


def main() -> None:
    """`sys.argv` is as `command` makes it."""
    mode, argv = sys.argv[1], sys.argv[3:] or shell()
    listener = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    program: Program = OnPipes(argv) if mode == "--piped" else OnTerminal(argv)
    heard, told = socket.socketpair()
    heard.setblocking(False)
    told.setblocking(False)
    holder = Holder(listener, program, mode == "--keep", heard)
    signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: holder.hang_up())
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.exit(holder.run())
