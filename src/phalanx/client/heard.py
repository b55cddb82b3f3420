"""Server-sent events as they come in bytes (WHATWG HTML, 9.2.6), as far as the control plane sends them. No I/O."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of one event: a page of a log is 64 KiB, six times that where JSON escapes all of it."""


@dataclass(frozen=True, slots=True)
class Heard:
    """One event. at: its id, from which a reader who comes back goes on."""

    kind: str
    data: bytes
    at: str


class Reader:
    """Of one stream. Lines end with a line feed alone: JSON has none in it, but may have what Unicode takes for an end of line."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[Heard]:
        """Events that are whole now; comments are none. Raises ValueError for one without end."""
        self._held += data
        while (end := self._held.find(b"\n\n")) >= 0:
            block = bytes(self._held[:end])
            del self._held[: end + 2]
            if (heard := _heard(block)) is not None:
                yield heard
        if len(self._held) > HELD_BYTES_MAX:
            raise ValueError(f"an event of more than {HELD_BYTES_MAX} bytes")


def _heard(block: bytes) -> Heard | None:
    found: dict[bytes, bytes] = {}
    for text in block.split(b"\n"):
        name, _, value = text.partition(b":")
        if name:
            found[name] = value.removeprefix(b" ")
    if b"data" not in found:
        return None
    return Heard(found.get(b"event", b"message").decode(), found[b"data"], found.get(b"id", b"").decode())
