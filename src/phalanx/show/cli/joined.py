"""This terminal joined to a channel: keys go there as they are, bytes come back as they are; one key leaves."""

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from phalanx.core.channels import ERR, EXIT, SAY
from phalanx.core.errors import PhalanxError, ServerUnreachable, SpecError
from phalanx.show.cli.text import clean

if TYPE_CHECKING:
    from phalanx.client.channels import Channel

READ_BYTES: Final = 64 * 1024
NO_KEY: Final = "none"


@dataclass(frozen=True, slots=True)
class Left:
    """How it ended: with the other side's exit code; by the key (`detached`); or because the connection broke (`lost`)."""

    code: int | None = None
    detached: bool = False
    lost: str = ""


def key_of(text: str) -> bytes | None:
    """'^]' as the byte that Ctrl and ']' make; None for 'none'. Raises SpecError."""
    if text == NO_KEY:
        return None
    if len(text) == 2 and text[0] == "^" and 64 <= ord(text[1].upper()) < 96:
        return bytes((ord(text[1].upper()) - 64,))
    raise SpecError("--detach-key", text, f"write ^ and a letter or one of @[\\]^_, such as ^], or {NO_KEY}")


def size() -> tuple[int, int]:
    """(rows, columns) of this terminal."""
    found = shutil.get_terminal_size()
    return found.lines, found.columns


class Joined:
    """One channel, from attaching to its end."""

    def __init__(self, channel: "Channel", key: bytes | None, terminal: bool) -> None:
        """key: leaves, on a terminal. terminal: whether the other side has one, and this one goes raw."""
        self._channel, self._terminal = channel, terminal and sys.stdin.isatty()
        self._key = key if self._terminal else None
        self._woken, self._wake = os.pipe()
        self._code: int | None = None
        self._lost = ""
        self._detached = False

    def run(self) -> Left:
        """Blocks until it is over. Ctrl-C goes to the other side where that has a terminal, else it raises KeyboardInterrupt."""
        listening = threading.Thread(target=self._listen, daemon=True)
        with self._raw():
            self._channel.attach(*size())
            listening.start()
            try:
                self._speak()
            finally:
                self._channel.close()
                listening.join(timeout=5)
        return Left(self._code, self._detached, self._lost)

    @contextlib.contextmanager
    def _raw(self) -> Iterator[None]:
        if not self._terminal:
            yield
            return
        before, winch = termios.tcgetattr(0), signal.signal(signal.SIGWINCH, lambda *_: os.write(self._wake, b"w"))
        try:
            tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead is kept
            yield
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, before)
            signal.signal(signal.SIGWINCH, winch)

    def _listen(self) -> None:
        try:
            for said in self._channel.receive():
                if isinstance(said, tuple):
                    _write(2 if said[0] == ERR else 1, said[1])
                elif EXIT in said:
                    self._code = int(said[EXIT])
                    return
                elif SAY in said:
                    end = "\r\n" if self._terminal else "\n"
                    _write(2, f"{end}[phalanx] {clean(said[SAY])}{end}".encode())
            self._lost = "the other side ended it without a word"
        except ServerUnreachable as error:
            self._lost = str(error)
        except OSError as error:
            self._lost = f"this terminal is gone ({error.strerror})"
        finally:
            os.write(self._wake, b"e")

    def _speak(self) -> None:
        sources = [0, self._woken]
        while True:
            ready = select.select(sources, [], [])[0]
            if self._woken in ready:
                if b"e" in os.read(self._woken, 4096):
                    return
                self._channel.resize(*size())
            if 0 in ready and not self._pass_on(os.read(0, READ_BYTES)):
                sources.remove(0)
            if self._detached:
                return

    def _pass_on(self, data: bytes) -> bool:
        """Whether more may come."""
        if self._key is not None and self._key in data:
            data, self._detached = data[: data.index(self._key)], True
        try:
            if data:
                self._channel.send(data)
            elif not self._detached:
                self._channel.end_input()
        except PhalanxError:
            return False  # the listening side says why
        return bool(data)


def _write(where: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(where, left) :]
