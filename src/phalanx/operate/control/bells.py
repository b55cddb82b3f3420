"""Wakes those who wait for something to have changed, however many they are. On the event loop alone."""

import asyncio
from weakref import WeakValueDictionary

from phalanx.core.ids import AttemptId


class Ticket:
    """Taken before one looks: what changes between the look and the wait is not missed."""

    def __init__(self, rung: asyncio.Event) -> None:
        self._rung = rung

    async def wait(self, limit_s: float) -> bool:
        """Whether the bell rang since the ticket was taken, or within `limit_s` from now on."""
        try:
            async with asyncio.timeout(limit_s):
                await self._rung.wait()
        except TimeoutError:
            return False
        return True


class Bell:
    """One thing that changes."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """It has changed."""
        self._rung.set()
        self._rung = asyncio.Event()

    def ticket(self) -> Ticket:
        return Ticket(self._rung)


class LogBells:
    """A bell for each log that somebody waits for; of others nothing is kept."""

    def __init__(self) -> None:
        self._bells: WeakValueDictionary[tuple[AttemptId, int], Bell] = WeakValueDictionary()

    def of(self, attempt: AttemptId, rank: int) -> Bell:
        """To be held for as long as one waits."""
        bell = self._bells.get((attempt, rank))
        if bell is None:
            bell = self._bells[attempt, rank] = Bell()
        return bell

    def ring(self, attempt: AttemptId, rank: int) -> None:
        """The rank's log has grown."""
        if (bell := self._bells.get((attempt, rank))) is not None:
            bell.ring()
