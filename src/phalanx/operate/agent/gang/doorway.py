"""The unix socket at which this node's processes of a gang speak: who is connected, what they say, and answers as fast as they take
them. Whoever does not begin with the socket's token is hung up on, and so is another user where ranks have one of their own.
"""

import contextlib
import hmac
import os
import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.gang_wire import Frame
from phalanx.operate.agent.gang.streams import Stream, Streams
from phalanx.operate.agent.processes import peer_uid


@dataclass(slots=True, eq=False)
class Peer(Stream):
    """One connection. member: -1 until it has said who it is."""

    member: int = -1
    channel: str = ""


class Doorway:
    """`heard(peer, frame)` is called for each frame after the hello, `left(peer)` when it is gone."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        token: str,
        heard: Callable[[Peer, Frame], None],
        left: Callable[[Peer], None],
        uid: int | None = None,
    ) -> None:
        self._selector = selector
        self._token = token
        self._uid = uid
        self._heard = heard
        self._streams: Streams[Peer] = Streams(selector, self._take, left)
        self._server: socket.socket | None = None
        self._path: Path | None = None
        self._on_hold: dict[int, list[tuple[Peer, Frame]]] = {}

    def open(self, path: Path) -> None:
        """Raises OSError."""
        path.unlink(missing_ok=True)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(str(path))
        path.chmod(0o600)
        if self._uid is not None:
            os.chown(path, self._uid, self._uid)
        server.listen(128)
        server.setblocking(False)
        self._server, self._path = server, path
        self._selector.register(server, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        self._streams.close()
        if self._server is not None and self._path is not None:
            self._selector.unregister(self._server)
            self._server.close()
            self._server = None
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def members(self) -> list[Peer]:
        """Connections on which members hear what becomes of their generation."""
        return [peer for peer in self._streams.all if peer.channel == "member"]

    def say(self, peer: Peer, frame: Frame) -> None:
        if peer.member in self._on_hold:
            self._on_hold[peer.member].append((peer, frame))
        else:
            self._streams.say(peer, frame)

    def hold(self, member: int) -> None:
        """What is said to that member from now on it hears after `release`."""
        self._on_hold.setdefault(member, [])

    def release(self, member: int) -> None:
        for peer, frame in self._on_hold.pop(member, []):
            self._streams.say(peer, frame)

    def hang_up(self, peer: Peer) -> None:
        self._streams.hang_up(peer)

    def _accept(self) -> None:
        assert self._server is not None
        with contextlib.suppress(OSError):
            channel = self._server.accept()[0]
            if self._uid is None or peer_uid(channel) == self._uid:
                self._streams.add(Peer(channel))
            else:
                channel.close()

    def _take(self, peer: Peer, frame: Frame) -> None:
        if peer.member >= 0:
            self._heard(peer, frame)
            return
        match frame.head:
            case {"token": str(token), "member": int(member), "channel": "member" | "store" as channel} if member >= 0:
                if not is_token(token, self._token):
                    raise ValueError("a wrong token")
                peer.member, peer.channel = member, channel
            case _:
                raise ValueError("no hello")


def is_token(said: str, token: str) -> bool:
    """In a time that says nothing of it. An empty token is nobody's."""
    return bool(token) and hmac.compare_digest(said.encode(errors="surrogatepass"), token.encode())
