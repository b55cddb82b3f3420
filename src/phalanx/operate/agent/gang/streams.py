"""Frames over stream sockets in the shim's one thread: they register with its selector and never block.

Whoever says what is no frame, or takes nothing for too long, is hung up on.
"""

import functools
import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from phalanx.core.gang_wire import HEADER_BYTES_MAX, Decoder, Frame, encode

READ_BYTES: Final = 256 * 1024
UNSENT_BYTES_MAX: Final = 256 * 1024 * 1024
"""A peer that takes nothing for so long is hung up on."""


@dataclass(slots=True, eq=False)
class Stream:
    """One connection."""

    socket: socket.socket
    decoder: Decoder = field(default_factory=Decoder)
    unsent: bytearray = field(default_factory=bytearray)


S = TypeVar("S", bound=Stream)


class Streams(Generic[S]):
    """`take(stream, frame)` is called for each frame, and may raise ValueError for nonsense; `left(stream)` when it is gone."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        take: Callable[[S, Frame], None],
        left: Callable[[S], None],
        unsent_bytes_max: int = UNSENT_BYTES_MAX,
    ) -> None:
        self._unsent_bytes_max = unsent_bytes_max
        self._selector = selector
        self._take = take
        self._left = left
        self.all: set[S] = set()

    def add(self, stream: S) -> S:
        """Its socket is connected, and ours from now on."""
        stream.socket.setblocking(False)
        self.all.add(stream)
        self._selector.register(stream.socket, selectors.EVENT_READ, functools.partial(self._ready, stream))
        return stream

    def say(self, stream: S, frame: Frame) -> None:
        if stream not in self.all:
            return
        try:
            stream.unsent += encode(frame, max(HEADER_BYTES_MAX, stream.decoder.head_bytes_max))
        except ValueError:  # longer than the other side takes
            self.hang_up(stream)
            return
        self._send(stream)

    def hang_up(self, stream: S) -> None:
        if stream not in self.all:
            return
        self.all.discard(stream)
        self._selector.unregister(stream.socket)
        stream.socket.close()
        self._left(stream)

    def close(self) -> None:
        for stream in list(self.all):
            self.hang_up(stream)

    def _ready(self, stream: S) -> None:
        """Its socket can be read, or written, or both: either never blocks. One that was hung up on meanwhile is not served."""
        if stream not in self.all:
            return
        if stream.unsent:
            self._send(stream)
        try:
            got = stream.socket.recv(READ_BYTES) if stream in self.all else b""
        except BlockingIOError:
            return
        except OSError:
            got = b""
        if not got:
            self.hang_up(stream)
            return
        try:
            for frame in stream.decoder.feed(got):
                self._take(stream, frame)
        except (ValueError, RecursionError):
            self.hang_up(stream)

    def _send(self, stream: S) -> None:
        try:
            while stream.unsent:
                del stream.unsent[: stream.socket.send(stream.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.hang_up(stream)
            return
        if len(stream.unsent) > self._unsent_bytes_max:
            self.hang_up(stream)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if stream.unsent else 0)
        self._selector.modify(stream.socket, events, functools.partial(self._ready, stream))
