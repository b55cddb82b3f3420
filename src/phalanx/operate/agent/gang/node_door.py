"""The TCP port at which shims of a gang's other nodes dial in. Whoever else comes is a stranger: told nothing and hung up on.

Before its hello a connection may say one short frame, soon, and only so many wait at a time: the oldest goes when another comes.
"""

import contextlib
import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from phalanx.core.gang_wire import BODY_BYTES_MAX, Decoder, Frame
from phalanx.operate.agent import boottime
from phalanx.operate.agent.gang.doorway import is_token
from phalanx.operate.agent.gang.session import SHIM_HEADER_BYTES_MAX, SHIM_UNSENT_BYTES_MAX
from phalanx.operate.agent.gang.streams import Stream, Streams

HELLO_BYTES_MAX: Final = 1024
HELLO_MS_MAX: Final = 5_000
STRANGERS_MAX: Final = 64


@dataclass(slots=True, eq=False)
class NodeStream(Stream):
    """since_ms: when it came. admitted: it has the token."""

    since_ms: int = 0
    admitted: bool = False


class NodeDoor:
    """`hello(stream, node, got)` is called for each shim that has the token, `take(stream, frame)` for what it says then; both may
    raise ValueError, on which it is hung up; `left(stream)` when it is gone."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        token: str,
        hello: Callable[[NodeStream, int, int], None],
        take: Callable[[NodeStream, Frame], None],
        left: Callable[[NodeStream], None],
    ) -> None:
        self._selector = selector
        self._token = token
        self._hello = hello
        self._take_more = take
        self._streams: Streams[NodeStream] = Streams(selector, self._take, left, SHIM_UNSENT_BYTES_MAX)
        self._server: socket.socket | None = None

    def open(self, host: str, port: int) -> None:
        """Raises OSError."""
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that linger in TIME_WAIT do no harm
        try:
            server.bind((host, port))
            server.listen(128)
        except OSError:
            server.close()
            raise
        server.setblocking(False)
        self._server = server
        self._selector.register(server, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        self._streams.close()
        if self._server is not None:
            self._selector.unregister(self._server)
            self._server.close()
            self._server = None

    def say(self, stream: NodeStream, frame: Frame) -> None:
        self._streams.say(stream, frame)

    def hang_up(self, stream: NodeStream) -> None:
        self._streams.hang_up(stream)

    def turn(self, now_ms: int) -> None:
        for stream in self._strangers():
            if now_ms >= stream.since_ms + HELLO_MS_MAX:
                self._streams.hang_up(stream)

    def next_moment(self) -> int | None:
        return min((stream.since_ms + HELLO_MS_MAX for stream in self._strangers()), default=None)

    def _strangers(self) -> list[NodeStream]:
        return sorted((stream for stream in self._streams.all if not stream.admitted), key=lambda stream: stream.since_ms)

    def _accept(self) -> None:
        assert self._server is not None
        try:
            opened = self._server.accept()[0]
        except OSError:
            return
        for stream in self._strangers()[: -STRANGERS_MAX + 1]:
            self._streams.hang_up(stream)
        with contextlib.suppress(OSError):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = NodeStream(opened, since_ms=boottime.now_ms())
        stream.decoder.head_bytes_max, stream.decoder.body_bytes_max = HELLO_BYTES_MAX, 0
        self._streams.add(stream)

    def _take(self, stream: NodeStream, frame: Frame) -> None:
        if stream.admitted:
            self._take_more(stream, frame)
            return
        match frame.head:
            case {"token": str(token), "node": int(node), "got": int(got)} if is_token(token, self._token):
                stream.admitted = True
                stream.decoder.head_bytes_max, stream.decoder.body_bytes_max = SHIM_HEADER_BYTES_MAX, BODY_BYTES_MAX
                self._hello(stream, node, got)
            case _:
                raise ValueError("no hello, or a wrong token")


def node_decoder() -> Decoder:
    """Of a shim's connection to the coordinator's."""
    return Decoder(head_bytes_max=SHIM_HEADER_BYTES_MAX)
