"""What two shims of a gang say to each other: each frame once and in order, over one connection after another.

A request to the gang's store must not be made twice (`add`), and none may be lost: a connection that breaks for a moment is made
again, and what the other side has not acknowledged is said again. Pure: no socket and no clock.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from phalanx.core.gang_wire import BODY_BYTES_MAX, HEADER_BYTES_MAX, Frame

UNACKED_BYTES_MAX: Final = 512 * 1024 * 1024
"""Of values of the store that wait for a connection: as much as it holds twice."""

SHIM_UNSENT_BYTES_MAX: Final = 2 * UNACKED_BYTES_MAX
"""Of one connection. All that is not acknowledged is said again at once: it would never stand, were that too much for it."""

WRAPPING_BYTES: Final = 4 * 1024
"""More than a number, an acknowledgement and the name of a rank's connection add to a head."""

SHIM_HEADER_BYTES_MAX: Final = HEADER_BYTES_MAX + WRAPPING_BYTES
_FRAME_BYTES: Final = 256  # a guess at what a frame without parts takes; only bounds how many there may be


@dataclass(slots=True)
class Session:
    """One end. sent: number of the last frame said. got: of the last one taken."""

    sent: int = 0
    got: int = 0
    _unacked: deque[tuple[int, Frame]] = field(default_factory=deque)
    _bytes: int = 0

    def number(self, frame: Frame) -> Frame:
        """The frame as it goes over the wire. Raises OverflowError when the other side has acknowledged too little for too long."""
        self.sent += 1
        self._unacked.append((self.sent, frame))
        self._bytes += _size(frame)
        if self._bytes > UNACKED_BYTES_MAX:
            raise OverflowError(f"{self._bytes} bytes wait for the other shim")
        return self._wire(self.sent, frame)

    def beat(self) -> Frame:
        """A sign of life that acknowledges what was taken."""
        return Frame({"ack": self.got})

    def take(self, frame: Frame) -> Frame | None:
        """What the other side said with a frame of the wire; None when nothing, or nothing new. Raises ValueError for nonsense."""
        match frame.head:
            case {"ack": int(ack), "n": int(number), "say": dict(head)}:
                self._acknowledge(ack)
                if number > self.got + 1:
                    raise ValueError(f"frame {number} after frame {self.got}")
                if number <= self.got:
                    return None
                self.got = number
                return Frame(head, frame.parts)
            case {"ack": int(ack)}:
                self._acknowledge(ack)
                return None
        raise ValueError("no frame of a session")

    def resume(self, got: int) -> list[Frame]:
        """The other side is there again and has taken frames up to `got`: what it must hear, as it goes over the wire. Raises
        ValueError for a number that cannot be."""
        self._acknowledge(got)
        return [self._wire(number, frame) for number, frame in self._unacked]

    @property
    def is_heard(self) -> bool:
        """Whether all that was said is acknowledged."""
        return not self._unacked

    def _wire(self, number: int, frame: Frame) -> Frame:
        return Frame({"n": number, "ack": self.got, "say": dict(frame.head)}, frame.parts)

    def _acknowledge(self, ack: int) -> None:
        if not self.sent - len(self._unacked) <= ack <= self.sent:
            if ack > self.sent or ack < 0:
                raise ValueError(f"an acknowledgement of frame {ack}, of {self.sent}")
            return  # said before a later one
        while self._unacked and self._unacked[0][0] <= ack:
            self._bytes -= _size(self._unacked.popleft()[1])


def _size(frame: Frame) -> int:
    return _FRAME_BYTES + sum(len(part) for part in frame.parts)


assert UNACKED_BYTES_MAX > 2 * BODY_BYTES_MAX
