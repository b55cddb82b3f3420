"""A port for a gang of a test, until a process of it listens there."""

import secrets
import socket
from typing import Final

_PORTS: Final = range(3_000, 9_000)
"""None of these does Linux give to an outgoing connection (32,768 and up), nor an agent or a store of the tests take."""


def free_port() -> int:
    """One that nobody listens at now. It stays free: others that ask get another one of thousands, by chance."""
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
