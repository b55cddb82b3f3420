"""The coordinator's socket: who is connected, what they say in whole frames, and answers as fast as they take them.

Belongs to the shim's one thread: it registers with the shim's selector and never blocks. Whoever does not begin with the attempt's
token, or says what is no frame, is hung up on.
"""

import contextlib
import functools
import hmac
import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from phalanx.core.gang_wire import Decoder, Frame, encode

READ_BYTES: Final = 256 * 1024
UNSENT_BYTES_MAX: Final = 256 * 1024 * 1024
"""A peer that takes nothing for so long is hung up on."""


@dataclass(slots=True, eq=False)
class Peer:
    """One connection. member: -1 until it has said who it is."""

    socket: socket.socket
    member: int = -1
    channel: str = ""
    decoder: Decoder = field(default_factory=Decoder)
    unsent: bytearray = field(default_factory=bytearray)


class Doorway:
    """`heard(peer, frame)` is called for each frame after the hello, `left(peer)` when it is gone."""

    def __init__(
        self, selector: selectors.BaseSelector, token: str, heard: Callable[[Peer, Frame], None], left: Callable[[Peer], None]
    ) -> None:
        self._selector = selector
        self._token = token
        self._heard = heard
        self._left = left
        self._server: socket.socket | None = None
        self._path: Path | None = None
        self._peers: set[Peer] = set()

    def open(self, path: Path) -> None:
        """Raises OSError."""
        path.unlink(missing_ok=True)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(str(path))
        path.chmod(0o600)
        server.listen(128)
        server.setblocking(False)
        self._server, self._path = server, path
        self._selector.register(server, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        for peer in list(self._peers):
            self.hang_up(peer)
        if self._server is not None and self._path is not None:
            self._selector.unregister(self._server)
            self._server.close()
            self._server = None
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def members(self) -> list[Peer]:
        """Connections on which members hear what becomes of their generation."""
        return [peer for peer in self._peers if peer.channel == "member"]

    def say(self, peer: Peer, frame: Frame) -> None:
        if peer not in self._peers:
            return
        peer.unsent += encode(frame)
        self._send(peer)

    def hang_up(self, peer: Peer) -> None:
        if peer not in self._peers:
            return
        self._peers.discard(peer)
        self._selector.unregister(peer.socket)
        peer.socket.close()
        self._left(peer)

    def _accept(self) -> None:
        assert self._server is not None
        try:
            opened = self._server.accept()[0]
        except OSError:
            return
        opened.setblocking(False)
        peer = Peer(opened)
        self._peers.add(peer)
        self._selector.register(opened, selectors.EVENT_READ, functools.partial(self._ready, peer))

    def _ready(self, peer: Peer) -> None:
        """Its socket can be read, or written, or both: either never blocks. One that was hung up on meanwhile is not served."""
        if peer not in self._peers:
            return
        if peer.unsent:
            self._send(peer)
        try:
            got = peer.socket.recv(READ_BYTES) if peer in self._peers else b""
        except BlockingIOError:
            return
        except OSError:
            got = b""
        if not got:
            self.hang_up(peer)
            return
        try:
            for frame in peer.decoder.feed(got):
                self._take(peer, frame)
        except (ValueError, RecursionError):
            self.hang_up(peer)

    def _take(self, peer: Peer, frame: Frame) -> None:
        if peer.member >= 0:
            self._heard(peer, frame)
            return
        match frame.head:
            case {"token": str(token), "member": int(member), "channel": "member" | "store" as channel} if member >= 0:
                if not hmac.compare_digest(token.encode(), self._token.encode()):
                    raise ValueError("a wrong token")
                peer.member, peer.channel = member, channel
            case _:
                raise ValueError("no hello")

    def _send(self, peer: Peer) -> None:
        try:
            while peer.unsent:
                del peer.unsent[: peer.socket.send(peer.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.hang_up(peer)
            return
        if len(peer.unsent) > UNSENT_BYTES_MAX:
            self.hang_up(peer)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        self._selector.modify(peer.socket, events, functools.partial(self._ready, peer))
