"""How often somebody may knock: requests of one token, refusals of one address, and refusals that are written down.

Of the event loop's thread alone. Sockets of agents pass a door once and are not counted after it; the home's own tokens never are.
"""

from typing import Final

from phalanx.core.errors import RateLimited
from phalanx.operate.control.people.audit import Refusals
from phalanx.operate.control.people.buckets import Buckets

REQUESTS_PER_S: Final = 100.0
REQUESTS_BURST: Final = 1_000.0
"""Of one person's token. A page that follows a log makes some two requests a second."""

FAILURES_PER_S: Final = 5.0
FAILURES_BURST: Final = 500.0
"""Of one address. A right token passes however many wrong ones came from beside it: nobody guesses 256 bits, only noise is made."""


class Doors:
    """The buckets of one server."""

    def __init__(
        self,
        requests: tuple[float, float] = (REQUESTS_PER_S, REQUESTS_BURST),
        failures: tuple[float, float] = (FAILURES_PER_S, FAILURES_BURST),
    ) -> None:
        """requests, failures: so many a second, and so many at once."""
        self._requests = Buckets(*requests)
        self._failures = Buckets(*failures)
        self.refusals = Refusals()
        self._used_ms: dict[str, int] = {}

    def pace(self, token: str, now_s: float) -> None:
        """Counts a request of that token. now_s: monotonic. Raises RateLimited."""
        wait_s = self._requests.take(token, now_s)
        if wait_s > 0:
            raise RateLimited(f"this token asks more than {REQUESTS_PER_S:g} times a second; go on in {_in(wait_s)}", wait_s)

    def is_first_use(self, token: str, now_ms: int, again_ms: int) -> bool:
        """Whether the token was not said to be used in the last `again_ms`, so that many requests at once make one write."""
        known = self._used_ms.get(token)
        if known is not None and 0 <= now_ms - known < again_ms:
            return False
        self._used_ms = {name: at_ms for name, at_ms in self._used_ms.items() if now_ms - at_ms < again_ms} | {token: now_ms}
        return True

    def failure(self, address: str, now_s: float) -> RateLimited | None:
        """Counts a refusal of that address; what to answer instead of it, when there were too many. now_s: monotonic."""
        wait_s = self._failures.take(address, now_s)
        if wait_s <= 0:
            return None
        return RateLimited(f"too many refused requests came from {address}; try again in {_in(wait_s)}", wait_s)


def _in(wait_s: float) -> str:
    return f"{max(1, round(wait_s))} s"
