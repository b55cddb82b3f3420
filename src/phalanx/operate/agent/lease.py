"""The node's lease as its agent counts it: from the sending of what was granted. Pure: moments, in CLOCK_BOOTTIME, are arguments.

A node whose lease is over may have been given up by the control plane, which counts silence from the last message that it heard:

    sent + lease                             SIGTERM to ranks that must not outlive it, by their shim
    sent + lease + GRACE_MS                  SIGKILL
    sent + lease + GRACE_MS + dying          the last of them is gone
    heard + lease + kill grace + 1 s         the control plane gives their attempt up (PartLost)

heard >= sent, so what must hold is GRACE_MS + dying <= kill grace + 1 s. With GRACE_MS = 5 s and a kill grace of 10 s (the
`Settings` of the control plane), a killed process has 6 s to be gone: it takes milliseconds, with much GPU memory a second or two.
"""

from typing import Final

GRACE_MS: Final = 5_000
HELLO: Final = 0
"""The number of the Hello, which the Welcome grants; Renews count from 1, anew with each connection."""
ASKED_MAX: Final = 64


class Lease:
    """`ends_ms` is None until something was granted."""

    def __init__(self) -> None:
        self.ends_ms: int | None = None
        self._counted_from_ms: int | None = None
        self._asked: dict[int, int] = {}  # number -> when it was sent

    def sending(self, number: int, now_ms: int) -> None:
        """Call right before it goes out: a lease that is counted from too early is only shorter."""
        if number == HELLO:
            self._asked.clear()
        self._asked[number] = now_ms
        while len(self._asked) > ASKED_MAX:
            del self._asked[next(iter(self._asked))]

    def granted(self, number: int, lease_ms: int) -> bool:
        """Whether that changed the end. The newest sending counts, and only with what was granted to it: an answer that comes
        late, or to nothing that was asked on this connection, moves nothing."""
        sent_ms = self._asked.pop(number, None)
        if sent_ms is None or (self._counted_from_ms is not None and sent_ms < self._counted_from_ms):
            return False
        self._counted_from_ms, self.ends_ms = sent_ms, sent_ms + lease_ms
        return True

    def holds(self, now_ms: int) -> bool:
        return self.ends_ms is not None and now_ms < self.ends_ms
