"""Where units come from, and who is told what that took."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

from phalanx.storage.cache.index import Unit

Phase = Literal["store", "cache"]
"""store: bytes on their way. cache: room for them."""

Watch = Callable[[Phase, float, float], None]
"""Told of a wait, piece by piece while it lasts; what it raises ends the wait."""


class Waited:
    """A wait that its watch hears of while it lasts."""

    def __init__(self, phase: Phase, watch: Watch | None) -> None:
        self._phase, self._watch, self._told = phase, watch, time.monotonic()

    def tell(self) -> None:
        """What was waited since the last time. Raises what the watch does."""
        began, self._told = self._told, time.monotonic()
        if self._watch is not None:
            self._watch(self._phase, began, self._told)


class Origin(Protocol):
    """Where units come from. Any thread may call it."""

    def groups(self, units: Sequence[Unit]) -> Sequence[Sequence[Unit]]:
        """The units again, in the same order as far as it goes, those together that are fetched together."""

    def read(self, group: Sequence[Unit]) -> Sequence[Iterable[memoryview]]:
        """The bytes of each in pieces, checked as each is handed over; a unit of which a piece is refused does not come to be."""
