"""Where units come from, and who is told what that took."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from phalanx.storage.cache.index import Unit

Phase = Literal["store", "cache"]
"""store: bytes on their way. cache: room for them."""

Watch = Callable[[Phase, float, float], None]


class Origin(Protocol):
    """Where units come from. Any thread may call it."""

    def groups(self, units: Sequence[Unit]) -> Sequence[Sequence[Unit]]:
        """The units again, in the same order as far as it goes, those together that are fetched together."""

    def read(self, group: Sequence[Unit]) -> Sequence[memoryview]:
        """The bytes of each, checked."""
