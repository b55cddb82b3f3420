"""Server-sent events (WHATWG HTML, 9.2): a stream says that it lives, ends with a reader who takes nothing, and there is an end to
their number. A reader who is slow holds up its own stream alone: nothing is made for it before it has taken what came before."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

import structlog
from fastapi import Header
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from phalanx.core import wire
from phalanx.core.errors import RateLimited, StoreUnavailable
from phalanx.core.people import BUILT_IN, Person
from phalanx.core.stream_views import StreamEnd

EVENT_STREAM: Final = "text/event-stream"
KEEP_ALIVE_S: Final = 15.0
STALLED_S: Final = 60.0
"""So long a reader may take nothing of what is there for it."""

OPEN_MAX: Final = 1_000
OF_USER_MAX: Final = 100
"""Of one user, by whatever tokens: ten of them at the least have streams before there are none left. Who has the home's own token
is not counted, who may end the server as well."""

AGAIN_S: Final = 15.0
"""After which somebody may have closed one."""

LastEventId = Annotated[str, Header(alias="Last-Event-ID", max_length=200)]
STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Events, each with an `id` that `Last-Event-ID` goes on from; `end` is the last one",
        "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
    }
}
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Sent:
    """One event. data: JSON, one line. at: its id, from which a reader who comes back goes on."""

    kind: str
    data: str
    at: str = ""

    def encoded(self) -> bytes:
        return format_sse_event(event=self.kind, data_str=self.data, id=self.at or None)


def end(why: str) -> Sent:
    """The last event of a stream that has an end; without it a reader would come back for ever."""
    return Sent("end", wire.dumps(StreamEnd, StreamEnd(why=why)))


class OpenStreams:
    """How many there are, and whose. closing: the server ends, and each of them before it, at its next look."""

    def __init__(self) -> None:
        self._of_user: Counter[str] = Counter()
        self.closing = False

    @property
    def count(self) -> int:
        return self._of_user.total()

    @contextlib.contextmanager
    def place(self, person: Person) -> Iterator[None]:
        """One of them, for as long as it is held. Raises RateLimited for who has too many, StoreUnavailable where all have."""
        if person is not BUILT_IN and self._of_user[person.user] >= OF_USER_MAX:
            raise RateLimited(f"{person.user} has {OF_USER_MAX} streams open; close some, or read pages", AGAIN_S)
        if self.count >= OPEN_MAX:
            raise StoreUnavailable(f"{OPEN_MAX} streams are open; close some, or read pages")
        self._of_user[person.user] += 1
        try:
            yield
        finally:
            self._of_user[person.user] -= 1
            self._of_user += Counter()  # whoever has none is not kept

    def response(self, person: Person, events: AsyncGenerator[Sent | None]) -> "EventStream":
        """The answer that sends `events` to that person; None among them is that nothing came for a while."""
        return EventStream(self, person, events)


class EventStream(StreamingResponse):
    """Ends with its reader, and when that one takes nothing for STALLED_S. One for which there is no place is refused before its
    first word, as any request."""

    def __init__(self, streams: OpenStreams, person: Person, events: AsyncGenerator[Sent | None]) -> None:
        super().__init__(_encoded(streams, events), media_type=EVENT_STREAM, headers={"Cache-Control": "no-store"})
        self._streams = streams
        self._person = person

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._streams.place(self._person):
            await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        async def bounded(message: Message) -> None:
            async with asyncio.timeout(STALLED_S):
                await send(message)

        try:
            await super().stream_response(bounded)
        except TimeoutError:
            log.warning("stream_stalled", limit_s=STALLED_S)


async def _encoded(streams: OpenStreams, events: AsyncGenerator[Sent | None]) -> AsyncIterator[bytes]:
    now_s = asyncio.get_running_loop().time
    said_s = now_s()
    yield KEEPALIVE_COMMENT  # the reader knows at once that it is heard
    async with contextlib.aclosing(events):
        async for event in events:
            if streams.closing:
                return  # who comes back goes on with the next server, from the last id
            if event is None and now_s() - said_s < KEEP_ALIVE_S:
                continue
            yield KEEPALIVE_COMMENT if event is None else event.encoded()
            said_s = now_s()
