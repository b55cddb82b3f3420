"""A port of a running job on this machine's loopback: each connection there goes over a channel of its own."""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Final, Self

from phalanx.client.channels import Channel
from phalanx.core.channels import CHANNELS_PER_JOB, DATA_BYTES_MAX, END, OUT
from phalanx.core.errors import PhalanxError, SetupError

CONNECTIONS_MAX: Final = CHANNELS_PER_JOB - 2
"""At once: a shell and a command have room beside them."""
ACCEPT_S: Final = 0.2


class Forward:
    """Listens as soon as it is made. `open_one` makes a channel; `said` hears of those that could not be made."""

    def __init__(self, local: int, open_one: Callable[[], Channel], said: Callable[[PhalanxError], None]) -> None:
        """local: 0 for any port that is free. Raises SetupError."""
        self._open_one, self._said = open_one, said
        self._room = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._over = threading.Event()
        self._live: set[_Joined] = set()
        try:
            self._listener = socket.create_server(("127.0.0.1", local), backlog=64)
        except (OSError, OverflowError) as error:
            words = getattr(error, "strerror", None) or error
            raise SetupError("local port", str(local), f"cannot be listened on ({words}); name another: PORT:LOCAL") from error
        self._listener.settimeout(ACCEPT_S)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """On this machine."""
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all that are open."""
        self._over.set()
        self._thread.join()
        self._listener.close()
        for one in list(self._live):
            one.close()

    def _serve(self) -> None:
        while not self._over.is_set():
            if not self._room.acquire(timeout=ACCEPT_S):
                continue  # whoever comes waits in the line of the kernel
            try:
                connection = self._listener.accept()[0]
            except OSError:
                self._room.release()
                continue
            threading.Thread(target=self._join, args=(connection,), daemon=True).start()

    def _join(self, connection: socket.socket) -> None:
        try:
            with connection, self._open_one() as channel:
                joined = _Joined(connection, channel)
                self._live.add(joined)
                try:
                    joined.run()
                finally:
                    self._live.discard(joined)
        except PhalanxError as error:
            if not self._over.is_set():
                self._said(error)
        finally:
            self._room.release()


class _Joined:
    """A connection and its channel."""

    def __init__(self, connection: socket.socket, channel: Channel) -> None:
        self._connection, self._channel = connection, channel
        connection.settimeout(None)

    def run(self) -> None:
        up = threading.Thread(target=self._up, daemon=True)
        up.start()
        with contextlib.suppress(OSError):
            for said in self._channel.receive():
                if isinstance(said, tuple):
                    self._connection.sendall(said[1])
                elif said == {END: OUT}:
                    self._connection.shutdown(socket.SHUT_WR)
        self.close()
        up.join()

    def _up(self) -> None:
        try:
            while data := self._connection.recv(DATA_BYTES_MAX):
                self._channel.send(data)
            self._channel.end_input()
        except (OSError, PhalanxError):
            self._channel.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._channel.close()
