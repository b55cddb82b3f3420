"""A rank's connections to its gang's coordinator. Torch-free; blocking, so the watching is done in threads of `gang`."""

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from phalanx.core.errors import UserError
from phalanx.core.gang_wire import ADDRESS, Decoder, Frame, encode, hello

READ_BYTES: Final = 256 * 1024
DIAL_S: Final = 10.0


class GangGone(ConnectionError):
    """The coordinator is gone, or hung up on us: this gang will have no further generation."""


class Link:
    """One connection. One thread at a time receives; any may send or close."""

    def __init__(self, address: str, token: str, member: int, channel: str) -> None:
        """Raises GangGone when nobody is there, UserError for an address that is none."""
        self._decoder = Decoder()
        self._ready: deque[Frame] = deque()
        self._sending = threading.Lock()
        self._socket = _dialled(address)
        self.send(hello(token, member, channel))

    def send(self, frame: Frame) -> None:
        """Raises GangGone."""
        try:
            with self._sending:
                self._socket.sendall(encode(frame))
        except OSError as error:
            raise GangGone(f"the gang's coordinator cannot be reached: {error}") from error

    def receive(self) -> Frame:
        """The next frame; waits for it. Raises GangGone, also when `close` is called meanwhile."""
        while not self._ready:
            try:
                got = self._socket.recv(READ_BYTES)
            except OSError as error:
                raise GangGone(f"the gang's coordinator cannot be reached: {error}") from error
            if not got:
                raise GangGone("the gang's coordinator hung up")
            self._ready.extend(self._decoder.feed(got))
        return self._ready.popleft()

    def close(self) -> None:
        """Wakes whoever receives."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class StoreLink:
    """Requests to the gang's store, from any thread. A request that waits has its connection for itself, so others go on."""

    def __init__(self, address: str, token: str, member: int) -> None:
        self._reach = (address, token, member)
        self._idle: list[Link] = []
        self._all: set[Link] = set()
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, head: dict[str, Any], parts: Sequence[bytes] = ()) -> Frame:
        """The answer. Raises GangGone, also once closed; TimeoutError; ValueError for a request that makes no sense."""
        link = self._take()
        try:
            link.send(Frame(head, parts))
            answer = link.receive()
        except BaseException:
            link.close()
            with self._lock:
                self._all.discard(link)
            raise
        with self._lock:
            self._idle.append(link)
        if "timeout" in answer.head:
            raise TimeoutError(answer.head["timeout"])
        if "error" in answer.head:
            raise ValueError(answer.head["error"])
        return answer

    def close(self) -> None:
        """Ends every request that waits, and lets no other begin."""
        with self._lock:
            self._closed = True
            links, self._idle = list(self._all), []
        for link in links:
            link.close()

    def _take(self) -> Link:
        with self._lock:
            if self._closed:
                raise GangGone("this store belongs to a generation that is over")
            if self._idle:
                return self._idle.pop()
        link = Link(*self._reach, "store")
        with self._lock:
            self._all.add(link)
        if self._is_closed():  # meanwhile
            link.close()
        return link

    def _is_closed(self) -> bool:
        return self._closed


def _dialled(address: str) -> socket.socket:
    kind, _, path = address.partition(":")
    if kind != "unix" or not path:
        raise UserError(ADDRESS, address, "write unix:PATH of the coordinator's socket")
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    opened.settimeout(DIAL_S)
    try:
        opened.connect(path)
    except OSError as error:
        opened.close()
        raise GangGone(f"the gang's coordinator cannot be reached: {error}") from error
    opened.settimeout(None)
    return opened
