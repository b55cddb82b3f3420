"""A TCP proxy on loopback that does to a store's traffic what a bad network does."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

Meddle = Callable[[bytes], bytes]


def leave(data: bytes) -> bytes:
    """A good network."""
    return data


class Meddler:
    """Forwards connections to `port`. drop: how many of the next ones are closed at once. sent, got: what becomes of the bytes on
    the way to the store, and back."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.drop = 0
        self.sent: Meddle = leave
        self.got: Meddle = leave
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self.drop > 0:
                    self.drop -= 1
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._port))
                for source, target, name in ((near, far, "sent"), (far, near, "got")):
                    threading.Thread(target=self._carry, args=(source, target, name), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, name: str) -> None:
        with suppress(OSError), source, target:
            while data := source.recv(65_536):
                target.sendall(getattr(self, name)(data))
            target.shutdown(socket.SHUT_WR)


def flipping(marker: bytes) -> Meddle:
    """One bit of the marker, wherever it goes by whole."""
    return lambda data: data.replace(marker, bytes([marker[0] ^ 1]) + marker[1:])


def flipping_another_each_time(marker: bytes) -> Meddle:
    """A bit of the marker, and never the same twice."""
    times = iter(range(len(marker)))

    def flip(data: bytes) -> bytes:
        if marker not in data:
            return data
        at = next(times)
        return data.replace(marker, marker[:at] + bytes([marker[at] ^ 1]) + marker[at + 1 :])

    return flip
