"""Frames over a unix stream socket: four bytes of length, JSON, and descriptors that travel with the first byte."""

import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

_LENGTH_BYTES: Final = 4
FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
"""A layout of a hundred thousand parts takes twenty."""
DESCRIPTORS_MAX: Final = 16
_READ_BYTES: Final = 256 * 1024


def send(channel: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """Raises OSError when the other side is gone, or reads nothing for as long as the channel's timeout."""
    whole = len(data).to_bytes(_LENGTH_BYTES, "big") + data
    sent = socket.send_fds(channel, [whole], list(descriptors)) if descriptors else channel.send(whole)
    channel.sendall(whole[sent:])


class Received:
    """Frames and descriptors out of bytes as they come. Descriptors belong to whoever takes them; `close` closes the others."""

    def __init__(self) -> None:
        self._left = bytearray()
        self.descriptors: deque[int] = deque()

    def read(self, channel: socket.socket) -> bool:
        """Takes what is there; False when the other side has closed. Raises OSError."""
        data, descriptors, _, _ = socket.recv_fds(channel, _READ_BYTES, DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC)
        self.descriptors.extend(descriptors)
        self._left += data
        return bool(data)

    def frames(self) -> Iterator[bytes]:
        """Those that are whole. Raises ValueError for a length that none has."""
        while len(self._left) >= _LENGTH_BYTES:
            length = int.from_bytes(self._left[:_LENGTH_BYTES], "big")
            if length > FRAME_BYTES_MAX:
                raise ValueError(f"a frame of {length} bytes")
            if len(self._left) < _LENGTH_BYTES + length:
                return
            frame = bytes(self._left[_LENGTH_BYTES : _LENGTH_BYTES + length])
            del self._left[: _LENGTH_BYTES + length]
            yield frame

    def take(self, count: int) -> list[int]:
        """Raises ValueError when fewer have come."""
        if len(self.descriptors) < count:
            raise ValueError(f"{len(self.descriptors)} descriptors instead of {count}")
        return [self.descriptors.popleft() for _ in range(count)]

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.popleft())
