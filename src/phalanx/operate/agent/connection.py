"""The agent's one WebSocket to the control plane: dials out, dials again, and puts every message before logs and records."""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final

import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from phalanx.core import wire
from phalanx.core.errors import Bug, PhalanxError, WorldError
from phalanx.core.messages import Activity, ArtifactSaved, Chunk, FromAgent, Hello, Renew, Report, ToAgent, Welcome
from phalanx.operate.agent.lease import HELLO
from phalanx.operate.agent.together import together

FRAME_BYTES_MAX: Final = 8 * 1024 * 1024
WELCOME_S_MAX: Final = 10.0
CLOSE_S_MAX: Final = 1.0
RENEW_S_MIN: Final = 0.1
FORBIDDEN: Final = 403
MOVED_S: Final = 0.5
PING_S: Final = 4.0
SILENT_S_MAX: Final = 6.0
"""A control plane that hangs is left 10 s after its last word, before a lease of 15 s is over. One that waits for its database as
long reads no pings either, and is dialled again: ranks notice nothing of it."""
BACKOFF_S: Final = (0.1, 2.0)
"""First and longest pause between dials; each is drawn between half of it and all of it, so that a fleet does not dial at once."""
CHUNK_BYTES_PER_S: Final = 32 * 1024 * 1024
"""Of base64. Loopback carries more; the point is that a rank that prints without end leaves the control plane its breath."""

_log = structlog.get_logger()
Message = Hello | Report | Renew | Chunk | ArtifactSaved | Activity


def _words(error: Exception) -> str:
    if isinstance(error, InvalidStatus) and error.response.status_code == FORBIDDEN:
        return "the control plane does not know this node's credential, or not any more; a new token lets it join again"
    return str(error) or type(error).__name__


class StaleLeader(WorldError):
    """What answered is an older control plane than one already seen."""


def written_url(home: Path) -> Callable[[], str | None]:
    """Reads run/server.json anew at each call, since a restarted server may have another port. None while there is none."""

    def read() -> str | None:
        try:
            return str(json.loads((home / "run" / "server.json").read_bytes())["url"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    return read


class Listed:
    """Several addresses of one control plane, of which only the one that leads listens: the next is asked where one fails."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = deque(urls)

    def __call__(self) -> str | None:
        return self._urls[0]

    def failed(self) -> None:
        self._urls.rotate(-1)


def backoff_s(failures: int, random: Random) -> float:
    """How long to wait before the dial after `failures` failed ones."""
    first, longest = BACKOFF_S
    return min(longest, first * 2.0 ** min(failures, 10)) * random.uniform(0.5, 1.0)


class Connection:
    """`hello` is asked at each dial, `heard` gets every message (Welcome first), `next_chunk` is asked when nothing else waits.
    `sending` gets the number of each Hello and Renew right before it goes out. A connection is given up once `url` says another
    place, and where a `Listed` one fails the next is dialled."""

    def __init__(
        self,
        url: Callable[[], str | None],
        token: str,
        hello: Callable[[], Awaitable[Hello]],
        heard: Callable[[ToAgent], Awaitable[None]],
        next_chunk: Callable[[], Awaitable[Chunk | None]],
        random: Random,
        sending: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._url = url
        self._token = token
        self._hello = hello
        self._heard = heard
        self._next_chunk = next_chunk
        self._random = random
        self._sending = sending
        self._waiting: deque[Message] = deque()
        self._woken = asyncio.Event()
        self._connected = False

    def send(self, message: Message) -> None:
        """Sends soon; dropped while away, since Hello says everything anyway."""
        if self._connected:
            self._waiting.append(message)
            self._woken.set()

    def wake(self) -> None:
        """There may be chunks to send."""
        self._woken.set()

    async def run(self) -> None:
        """For ever, until cancelled; a link, a disk or a home that refuses is tried again. Raises only what is a bug."""
        failures = 0
        while True:
            try:
                if (url := self._url()) is not None:
                    await self._session(url)
                    failures = 0
            except Bug:
                raise
            except (OSError, WebSocketException, PhalanxError, ValueError) as error:
                failures = 0 if self._connected else failures
                _log.warning("control_plane_away", error=_words(error))
            finally:
                self._connected = False
            if isinstance(self._url, Listed):
                self._url.failed()
            failures += 1
            await asyncio.sleep(backoff_s(failures - 1, self._random))

    async def _session(self, url: str) -> None:
        address = f"ws{url.removeprefix('http').rstrip('/')}/api/v1/agent"
        headers = {"Authorization": f"Bearer {self._token}"}
        async with connect(
            address,
            additional_headers=headers,
            max_size=FRAME_BYTES_MAX,
            close_timeout=CLOSE_S_MAX,
            ping_interval=PING_S,
            ping_timeout=SILENT_S_MAX,
            proxy=None,
        ) as socket:
            welcome = await self._introduce(socket)
            _log.info("connected", url=url, epoch=welcome.epoch)
            renewing = self._renew(max(welcome.lease_ms / 3000, RENEW_S_MIN))
            await together(self._read(socket), self._write(socket), renewing, self._watch_move(url))

    async def _watch_move(self, url: str) -> None:
        """A leader that hangs says nothing, and closes nothing. Its successor is known by where it says that it is."""
        while (now := self._url()) in (url, None):
            await asyncio.sleep(MOVED_S)
        raise WorldError(f"the control plane is at {now} now, no more at {url}")

    async def _introduce(self, socket: ClientConnection) -> Welcome:
        self._waiting.clear()
        hello = await self._hello()
        self._connected = True  # what changes from here on is queued behind Hello
        self._sending(HELLO)
        await socket.send(wire.dumps(FromAgent, hello))
        async with asyncio.timeout(WELCOME_S_MAX):
            welcome = wire.loads(ToAgent, await socket.recv())
        if not isinstance(welcome, Welcome):
            raise ValueError(f"the control plane's first message is {welcome.kind}, not welcome")
        await self._heard(welcome)
        return welcome

    async def _read(self, socket: ClientConnection) -> None:
        async for text in socket:
            try:
                message = wire.loads(ToAgent, text)
            except ValueError as error:
                _log.warning("message_not_understood", error=str(error))  # a newer control plane may say more
                continue
            await self._heard(message)
        raise WorldError("the control plane closed the connection")

    async def _write(self, socket: ClientConnection) -> None:
        while True:
            self._woken.clear()
            while (message := self._waiting.popleft() if self._waiting else await self._next_chunk()) is not None:
                text = wire.dumps(FromAgent, message)
                if isinstance(message, Renew):
                    self._sending(message.number)
                await socket.send(text)
                if isinstance(message, Chunk):
                    await asyncio.sleep(len(text) / CHUNK_BYTES_PER_S)
            await self._woken.wait()

    async def _renew(self, every_s: float) -> None:
        number = HELLO
        while True:
            number += 1
            self.send(Renew(number))
            await asyncio.sleep(every_s)
