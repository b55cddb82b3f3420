"""Wakes those who wait for something to have changed, however many they are. On the event loop alone."""

import asyncio
from collections.abc import Mapping
from weakref import WeakValueDictionary

from phalanx.core.ids import JobId


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


class _OfJob(Bell):
    """record: the newest of the job that it was rung for; None before the first look."""

    def __init__(self) -> None:
        super().__init__()
        self.record: object = None


class LogBells:
    """A bell for each rank of a job whose log somebody waits for, over all attempts; of others nothing is kept."""

    def __init__(self) -> None:
        self._bells: WeakValueDictionary[tuple[JobId, int], _OfJob] = WeakValueDictionary()

    def of(self, job: JobId, rank: int) -> Bell:
        """To be held for as long as one waits."""
        bell = self._bells.get((job, rank))
        if bell is None:
            bell = self._bells[job, rank] = _OfJob()
        return bell

    def ring(self, job: JobId, rank: int) -> None:
        """The rank's log has grown."""
        if (bell := self._bells.get((job, rank))) is not None:
            bell.ring()

    def look(self, jobs: Mapping[JobId, object]) -> None:
        """Rings for each that has another record than at the last look: an attempt may end, or the next begin, without a byte of
        its log."""
        for (job, _), bell in list(self._bells.items()):
            if bell.record is not (record := jobs.get(job)):
                bell.record = record
                bell.ring()
