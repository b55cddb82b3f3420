"""A disk that does not answer, for one fact of a real shim."""

import contextlib
import os
from collections.abc import Iterator

from phalanx.operate.agent.processes import children
from tests.operate.agent.test_shim import Order


@contextlib.contextmanager
def stalled(order: Order, file: str) -> Iterator[None]:
    """Whoever writes that fact next waits until the end of this, as on a disk that does not answer: the file that it is written to
    first is a pipe that nobody reads."""
    assert order.process is not None
    writers = {order.process.pid, *children(order.process.pid)}
    pipes = [order.folder / f".{file}.{pid}" for pid in writers]
    for pipe in pipes:
        os.mkfifo(pipe)
    try:
        yield
    finally:
        readers = [os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) for pipe in pipes]
        for pipe in pipes:
            pipe.unlink()
        for reader in readers:
            os.close(reader)
