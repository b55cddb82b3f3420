"""Those who call a holder: bounded buffers, and the last bytes of what a terminal showed. Standard library only."""

import socket
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from phalanx.operate.agent.terminal import frames

BACKLOG_BYTES_MAX: Final = 256 * 1024
"""Of what somebody has yet to read. Beyond it nothing more is kept for them."""
SCROLLBACK_BYTES_MAX: Final = 256 * 1024
READ_BYTES: Final = 64 * 1024


class Scrollback:
    """The last bytes of a terminal, from the beginning of a line on where there is one."""

    def __init__(self, limit: int = SCROLLBACK_BYTES_MAX) -> None:
        self._limit, self._size, self._cut = limit, 0, False
        self._pieces: deque[bytes] = deque()

    def add(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        while self._size - len(self._pieces[0]) >= self._limit:
            self._size -= len(self._pieces.popleft())
            self._cut = True

    def read(self) -> bytes:
        whole = b"".join(self._pieces)
        if len(whole) <= self._limit and not self._cut:
            return whole
        whole = whole[-self._limit :]
        return whole[whole.find(b"\n") + 1 :]


class Caller:
    """One connection. `attached`: it sees the terminal; others only ask or say something."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.attached = False
        self.size = (24, 80)
        self.behind = False  # what it has not read was dropped; it gets the scrollback once it has read the rest
        self.gone = False
        self._heard = bytearray()
        self._queue: deque[bytes] = deque()
        self._sent = 0  # of the first
        self.backlog = 0

    @property
    def is_full(self) -> bool:
        return self.backlog >= BACKLOG_BYTES_MAX

    def say(self, message: dict[str, Any]) -> None:
        self._put(frames.control(message))

    def show(self, stream: int, data: bytes) -> None:
        for piece in frames.cut(data):
            self._put(frames.frame(stream, piece))

    def _put(self, whole: bytes) -> None:
        self._queue.append(whole)
        self.backlog += len(whole)

    def drop_backlog(self) -> None:
        """But for a frame that is half sent."""
        kept = [self._queue[0]] if self._sent else []
        self._queue = deque(kept)
        self.backlog = sum(len(one) for one in kept) - self._sent
        self.behind = True

    def flush(self) -> None:
        """As much as the connection takes."""
        while self._queue and not self.gone:
            try:
                sent = self.socket.send(self._queue[0][self._sent :])
            except BlockingIOError:
                return
            except OSError:
                self.gone = True
                return
            self._sent += sent
            self.backlog -= sent
            if self._sent == len(self._queue[0]):
                self._queue.popleft()
                self._sent = 0

    def hear(self) -> Iterator[tuple[int, bytes]]:
        """Whole frames that have come. One that breaks the form is hung up on."""
        try:
            got = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            got = b""
        self.gone = not got
        self._heard += got
        try:
            yield from frames.take(self._heard)
        except ValueError:
            self.gone = True
