"""A gloo group's connections, and how to end them: its own `abort` frees nobody that waits in a collective.

Whoever waits for a dead rank is told by its closed connection. Whoever waits for one that waits itself, or for one that hangs, is
not, until a timeout or until the last reference to the group is gone, and torch's own caches keep a mesh alive. So the sockets
that appeared while the group was made are shut down: the operation ends at once, on both sides.
"""

import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path

Sockets = Mapping[int, str]
"""Descriptor -> what /proc calls it, by which a number that was used again is told apart."""


def open_sockets() -> Sockets:
    """Of this process."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own, closed by now
            target = str(entry.readlink())
            if target.startswith("socket:"):
                found[int(entry.name)] = target
    return found


class Connections:
    """Of the group that is made between here and `made`. `shut_down` may be called from any thread, at any time."""

    def __init__(self) -> None:
        self._before = open_sockets()
        self._own: Sockets | None = None

    def made(self) -> None:
        self._own = self._new()

    def shut_down(self) -> int:
        """How many there were."""
        own = self._own if self._own is not None else self._new()
        return sum(_shut_down(descriptor, target) for descriptor, target in own.items())

    def _new(self) -> Sockets:
        return {number: target for number, target in open_sockets().items() if self._before.get(number) != target}


def _shut_down(descriptor: int, target: str) -> bool:
    """Of a TCP connection that is still the same."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        return False
    with socket.socket(fileno=copy) as connection, contextlib.suppress(OSError):
        if str(Path(f"/proc/self/fd/{copy}").readlink()) == target and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.getpeername()  # raises for one that listens: gloo ends the process when that one is shut down
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False
