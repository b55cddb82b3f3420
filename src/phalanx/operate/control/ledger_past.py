"""The log as the ledger folds it, kept in memory, so that a read folds no more than what came since the one before."""

import threading
from typing import Final

from phalanx.operate.control.store import Store
from phalanx.record.telemetry.ledger import Folding, History

PAGE: Final = 5_000


class LedgerPast:
    """Of one server. The first read goes through the whole log. Any thread may ask; one folds at a time."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._folding = Folding()
        self._seq = 0
        self._first_ms: int | None = None

    def history(self, store: Store) -> tuple[History, int | None]:
        """Up to the newest event, and when the first was (Unix time; None where there is none). Raises StoreUnavailable."""
        with self._turn:
            while page := store.events(self._seq, None, PAGE):
                self._first_ms = page[0].at_ms if self._first_ms is None else self._first_ms
                self._folding.take(page)
                self._seq = page[-1].seq
            return self._folding.history(), self._first_ms
