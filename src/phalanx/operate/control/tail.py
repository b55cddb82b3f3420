"""The end of the event log, read and rendered once for all who follow it. What lies further back comes from the database, page by
page, so a reader who is slow or comes late costs no memory, and misses nothing."""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from phalanx.core import wire
from phalanx.core.events import Event
from phalanx.core.ids import JobId
from phalanx.core.views import EventView
from phalanx.operate.control.control_thread import ControlThread
from phalanx.operate.control.store import Store
from phalanx.operate.control.views import event_view

KEPT: Final = 1024
KEPT_BYTES: Final = 8 * 1024 * 1024
PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class Told:
    """An event as it is sent. data: its EventView in JSON."""

    seq: int
    kind: str
    job: JobId | None
    data: str

    def is_of(self, job: JobId | None, kind: str) -> bool:
        return job in (None, self.job) and kind in ("", self.kind)


class Tail:
    """On the event loop; reads in threads."""

    def __init__(self, control: ControlThread, store: Store) -> None:
        self._control = control
        self._store = store
        self._kept: deque[Told] = deque()
        self._bytes = 0
        self._begin: int | None = None
        """Every event after this one, up to the last that was read, is kept."""
        self._end = 0
        self._turn = asyncio.Lock()

    async def beyond(
        self, after: int, job: JobId | None = None, kind: str = "", teams: Sequence[str] | None = None
    ) -> tuple[list[Told], int]:
        """Events after `after`, in order, of one job and kind or of all: some of them where there are many; and up to which event
        the log was looked through for them. teams: others' jobs are left out where that spares reading them, and are for the caller
        to leave out. Raises StoreUnavailable."""
        await self._catch_up()
        if self._begin is not None and after >= self._begin:
            newer = takewhile(lambda one: one.seq > after, reversed(self._kept))
            return [one for one in newer if one.is_of(job, kind)][::-1], max(after, self._end)
        end = self._end
        found = await asyncio.to_thread(self._store.events, after, job, PAGE, kind, teams=teams)
        through = found[-1].seq if len(found) == PAGE else max(after, end, found[-1].seq if found else 0)
        return [_told(event) for event in found], through

    async def _catch_up(self) -> None:
        async with self._turn:
            if self._begin is None:
                self._begin = self._end = self._control.world.seq
            while self._end < self._control.world.seq:
                self._keep(await asyncio.to_thread(self._store.events, self._end, None, PAGE))

    def _keep(self, events: Iterable[Event]) -> None:
        for event in events:
            told = _told(event)
            self._kept.append(told)
            self._bytes += len(told.data)
            self._end = told.seq
        while len(self._kept) > KEPT or self._bytes > KEPT_BYTES:
            gone = self._kept.popleft()
            self._bytes -= len(gone.data)
            self._begin = gone.seq


def _told(event: Event) -> Told:
    view = event_view(event)
    return Told(view.seq, view.kind, view.job, wire.dumps(EventView, view))
