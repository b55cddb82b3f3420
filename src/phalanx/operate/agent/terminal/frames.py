"""What a holder and those who call it say over a unix socket: a byte for the stream, four for the length, then so many bytes.

Standard library only: holders import this.
"""

import json
import struct
from collections.abc import Iterator
from typing import Any, Final

from phalanx.core.channels import DATA_BYTES_MAX

CONTROL: Final = 255
"""The stream of JSON objects, as `core.channels` has them; the others are those of a channel."""

HEADER: Final = struct.Struct(">BI")


def frame(stream: int, data: bytes) -> bytes:
    return HEADER.pack(stream, len(data)) + data


def control(message: dict[str, Any]) -> bytes:
    return frame(CONTROL, json.dumps(message).encode())


def cut(data: bytes) -> Iterator[bytes]:
    """In pieces that a frame may hold."""
    for start in range(0, len(data), DATA_BYTES_MAX):
        yield data[start : start + DATA_BYTES_MAX]


def take(buffer: bytearray) -> Iterator[tuple[int, bytes]]:
    """Removes the whole frames from the front of `buffer`. Raises ValueError for one that is too long."""
    while len(buffer) >= HEADER.size:
        stream, length = HEADER.unpack_from(buffer)
        if length > DATA_BYTES_MAX:
            raise ValueError(f"a frame of {length} bytes; at most {DATA_BYTES_MAX} go into one")
        if len(buffer) < HEADER.size + length:
            return
        data = bytes(buffer[HEADER.size : HEADER.size + length])
        del buffer[: HEADER.size + length]
        yield stream, data


def message(data: bytes) -> dict[str, Any]:
    """Of the stream CONTROL. Raises ValueError when it is no JSON object."""
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError("a control message is a JSON object")
    return found
