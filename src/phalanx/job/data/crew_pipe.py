"""Objects from process to process over a socket; arrays go as they lie in memory (pickle's protocol 5, PEP 574), without the copies
that `multiprocessing` makes of each message. Both ends are ours."""

import contextlib
import pickle
import socket
import struct
from typing import Any, Final

_COUNT: Final = struct.Struct("<I")


class Pipe:
    """One end. Any number of messages may wait for the other end, as long as the system has room for them."""

    def __init__(self, own: socket.socket) -> None:
        self._socket = own

    def send(self, message: Any) -> None:
        """Raises OSError when the other end is closed."""
        buffers: list[pickle.PickleBuffer] = []
        data = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
        parts = [memoryview(data), *(buffer.raw() for buffer in buffers)]
        self._socket.sendall(_COUNT.pack(len(parts)) + struct.pack(f"<{len(parts)}Q", *map(len, parts)))
        for part in parts:
            self._socket.sendall(part)

    def receive(self) -> Any:
        """Raises EOFError when the other end is closed, OSError when it broke."""
        (count,) = _COUNT.unpack(self._exactly(_COUNT.size))
        sizes = struct.unpack(f"<{count}Q", self._exactly(8 * count))
        data, *buffers = [self._exactly(size) for size in sizes]
        return pickle.loads(data, buffers=buffers)  # noqa: S301  # from a process that this one started, or the reverse

    def _exactly(self, size: int) -> bytearray:
        """By one call of the system where it can: after each, a thread waits for the interpreter, which another may keep for 5 ms,
        and the other end waits with it."""
        found = bytearray(size)
        view, at = memoryview(found), 0
        while at < size:
            got = self._socket.recv_into(view[at:], 0, socket.MSG_WAITALL)
            if not got:
                raise EOFError
            at += got
        return found

    def end(self) -> None:
        """Both ends meet the end of what was sent, also one that waits in `receive`."""
        with contextlib.suppress(OSError):  # the other end is gone
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()
