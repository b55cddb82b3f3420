"""A block of ports for MASTER_PORT, ours as long as a guard socket holds its first one."""

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from phalanx.core.errors import SetupError

FIRST_PORT: Final = 20_000
LAST_PORT: Final = 30_000
"""Below Linux's ephemeral range (32768 on), so that no outgoing connection takes one of ours by chance."""
BLOCK_PORTS: Final = 64


@dataclass(frozen=True, slots=True)
class PortBlock:
    """`ports` is the half-open range free for MASTER_PORT; closing `guard` gives the block back."""

    ports: tuple[int, int]
    guard: socket.socket


def claim_block(prefer: int | None = None) -> PortBlock:
    """The first block nobody guards, `prefer` (a block's first port) before all others. Raises SetupError when all are held."""
    for start in _starts(prefer):
        guard = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            guard.bind(("127.0.0.1", start))
            guard.listen(1)
        except OSError:
            guard.close()
            continue
        return PortBlock((start + 1, start + BLOCK_PORTS), guard)
    raise SetupError("ports", f"{FIRST_PORT}-{LAST_PORT}", "every block of ports is held; stop another agent or service there")


def is_taken(port: int) -> bool:
    """Whether something on this machine listens on `port`, on any address."""
    return bool(cannot_listen("", port))


def cannot_listen(host: str, port: int) -> str:
    """Why nobody of this machine can listen there now; '' when somebody could. host: '' for any address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that linger in TIME_WAIT do no harm
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return error.strerror or str(error)
        return ""


def _starts(prefer: int | None) -> Iterable[int]:
    starts = range(FIRST_PORT, LAST_PORT - BLOCK_PORTS + 1, BLOCK_PORTS)
    if prefer is not None and prefer in starts:
        yield prefer
    yield from starts
