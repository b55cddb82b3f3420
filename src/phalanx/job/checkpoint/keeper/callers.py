"""A keeper's connections: the rank of its place, and whoever only looks."""

import contextlib
import functools
import os
import selectors
import socket
import struct
from collections.abc import Callable
from typing import Final

from phalanx.core import wire
from phalanx.job.checkpoint.keeper import frames
from phalanx.job.checkpoint.keeper.messages import Answer, Asked, News, Request, Told

_SEND_S: Final = 5.0


class Caller:
    """One connection."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.received = frames.Received()
        self.greeted = False  # it said Hello, of the right attempt
        self.known = False  # it said Hello, of the right attempt, and not only to read

    def tell(self, message: Answer | News, descriptors: list[int] | None = None) -> None:
        """A rank that is gone, or does not read, is not waited for."""
        with contextlib.suppress(OSError):
            frames.send(self.channel, wire.dumps(Told, message).encode(), descriptors or [])


class Callers:
    """Those who are there. obey: what one asked; ValueError from it ends the connection. gone: told of each end."""

    def __init__(self, selector: selectors.BaseSelector, obey: Callable[[Caller, Request], None], gone: Callable[[], None]) -> None:
        self.there: list[Caller] = []
        self._selector = selector
        self._obey = obey
        self._gone = gone

    @property
    def known(self) -> list[Caller]:
        return [caller for caller in self.there if caller.known]

    def listen(self, folder: int, name: str) -> None:
        """By way of the folder's descriptor: a path may be longer than a socket's address."""
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)  # of a keeper that was killed
        server.bind(f"/proc/self/fd/{folder}/{name}")
        server.listen(8)
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ, functools.partial(self._accept, server))

    def hang_up(self, caller: Caller) -> None:
        if caller not in self.there:
            return
        self._selector.unregister(caller.channel)
        self.there.remove(caller)
        caller.received.close()
        caller.channel.close()
        self._gone()

    def _accept(self, server: socket.socket) -> None:
        try:
            channel = server.accept()[0]
        except OSError:
            return
        channel.settimeout(_SEND_S)
        if _peer_uid(channel) != os.getuid():
            channel.close()
            return
        caller = Caller(channel)
        self.there.append(caller)
        self._selector.register(channel, selectors.EVENT_READ, functools.partial(self._hear, caller))

    def _hear(self, caller: Caller) -> None:
        try:
            if not caller.received.read(caller.channel):
                raise ConnectionError
            for frame in caller.received.frames():
                self._obey(caller, wire.loads(Asked, frame))
        except (OSError, ValueError):  # ValueError: what is no message of ours
            self.hang_up(caller)


def _peer_uid(channel: socket.socket) -> int:
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
