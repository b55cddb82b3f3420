"""One shim's way to the coordinator's: a TCP connection that is made again whenever it breaks. Never blocks."""

import contextlib
import errno
import selectors
import socket
from collections.abc import Callable
from typing import Final

from phalanx.core.gang_wire import Frame
from phalanx.operate.agent import boottime
from phalanx.operate.agent.gang.node_door import node_decoder
from phalanx.operate.agent.gang.session import SHIM_UNSENT_BYTES_MAX
from phalanx.operate.agent.gang.streams import Stream, Streams

AGAIN_MS: Final = 250
CONNECT_MS_MAX: Final = 3_000
"""A packet that is lost on the way is not waited for as long as the kernel would."""


class Dialling:
    """`up()` is called for each new connection, `take(frame)` for what is said on it, which may raise ValueError, and `down()` when
    it is gone."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        address: tuple[str, int],
        up: Callable[[], None],
        take: Callable[[Frame], None],
        down: Callable[[], None],
    ) -> None:
        self._selector = selector
        self._address = address
        self._up = up
        self._down = down
        self._streams: Streams[Stream] = Streams(selector, lambda _, frame: take(frame), self._left, SHIM_UNSENT_BYTES_MAX)
        self._stream: Stream | None = None
        self._pending: socket.socket | None = None
        self._next_ms = 0  # when to dial again, or to give up one that is not answered

    @property
    def is_up(self) -> bool:
        return self._stream is not None

    def say(self, frame: Frame) -> None:
        if self._stream is not None:
            self._streams.say(self._stream, frame)

    def hang_up(self) -> None:
        if self._stream is not None:
            self._streams.hang_up(self._stream)

    def close(self) -> None:
        self._drop_pending()
        self._streams.close()

    def turn(self, now_ms: int) -> None:
        if self._stream is None and now_ms >= self._next_ms:
            self._drop_pending()
            self._dial(now_ms)

    def next_moment(self) -> int | None:
        return self._next_ms if self._stream is None else None

    def _dial(self, now_ms: int) -> None:
        opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        opened.setblocking(False)
        self._next_ms = now_ms + AGAIN_MS
        if opened.connect_ex(self._address) not in (0, errno.EINPROGRESS):
            opened.close()
            return
        self._next_ms = now_ms + CONNECT_MS_MAX
        self._pending = opened
        self._selector.register(opened, selectors.EVENT_WRITE, self._connected)

    def _connected(self) -> None:
        """It is answered, or refused."""
        if self._pending is None:
            return
        opened, self._pending = self._pending, None
        self._selector.unregister(opened)
        if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0:
            opened.close()
            self._next_ms = boottime.now_ms() + AGAIN_MS
            return
        with contextlib.suppress(OSError):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._streams.add(Stream(opened, node_decoder()))
        self._up()

    def _drop_pending(self) -> None:
        if self._pending is not None:
            self._selector.unregister(self._pending)
            self._pending.close()
            self._pending = None

    def _left(self, stream: Stream) -> None:
        self._stream = None
        self._next_ms = boottime.now_ms() + AGAIN_MS
        self._down()
