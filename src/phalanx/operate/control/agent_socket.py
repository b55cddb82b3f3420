"""The WebSocket to one node's agent: the controller's `NodeLink` over a real network.

Commands leave through a bounded queue that the control thread fills; when it is full the agent is not reading, and a link that
cannot be used is better closed: the agent dials again and says what it holds.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

import structlog
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from phalanx.core import features, wire
from phalanx.core.errors import LinkDown, Unauthorized, UserError, WorldError
from phalanx.core.ids import AttemptId, NodeId, split_attempt
from phalanx.core.messages import (
    PROTOCOL,
    Activity,
    ArtifactAck,
    ArtifactSaved,
    AttemptReport,
    Chunk,
    ChunkAck,
    Command,
    FromAgent,
    Granted,
    Hello,
    IdleWord,
    Renew,
    Report,
    ToAgent,
    Welcome,
)
from phalanx.operate.control.artifacts import Artifacts
from phalanx.operate.control.control_thread import ControlThread
from phalanx.operate.control.controller import Controller
from phalanx.operate.control.ingest import Ingest
from phalanx.operate.control.last_words import LastWords
from phalanx.operate.control.ports import NodeLink
from phalanx.operate.control.shape import TEXT_CHARS_MAX, check_shape

FRAME_BYTES_MAX: Final = 2 * 1024 * 1024
"""A full chunk is 350 KB as base64; a Hello with a thousand attempts half a megabyte."""

QUEUE_MAX: Final = 4096
CHUNKS_MAX: Final = 64
UNDERSTOOD: Final = (features.ACTIVITY, features.ARTIFACTS, features.LEASE, features.SECRETS)
"""What an agent may rely on."""

HELLO_S_MAX: Final = 10.0

POLICY, REPLACED, AGAIN = 1008, 4001, 1013
"""Close codes: a broken promise of the protocol; a newer connection of the same node; come back later (RFC 6455, ours, IANA)."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Close:
    """Last entry of a link's queue."""

    code: int
    reason: str


class AgentLink:
    """What the controller sees of a connection. `send` may be called from any thread, the rest from the event loop's. `number`: in
    the order in which connections were accepted."""

    def __init__(self, node: NodeId, loop: asyncio.AbstractEventLoop, number: int = 0) -> None:
        self.node = node
        self.number = number
        self._loop = loop
        self._queue: asyncio.Queue[object] = asyncio.Queue()
        self._closed = False

    def send(self, commands: Sequence[Command]) -> None:
        """Raises LinkDown when the connection is gone or does not drain."""
        if self._closed or self._queue.qsize() + len(commands) > QUEUE_MAX:
            raise LinkDown(f"{self.node} cannot be reached")
        try:
            self._loop.call_soon_threadsafe(self._put_all, tuple(commands))
        except RuntimeError as error:  # the loop is closed: the server is going down
            raise LinkDown(f"{self.node} cannot be reached: {error}") from error

    def say(self, message: object) -> None:
        """Queues one message; from the event loop's thread only."""
        self._put_all((message,))

    def close(self, code: int, reason: str) -> None:
        """No message follows; those queued before are still sent."""
        if not self._closed:
            self._closed = True
            self._queue.put_nowait(Close(code, reason))

    def _put_all(self, messages: Sequence[object]) -> None:
        if self._closed:
            return
        if self._queue.qsize() + len(messages) > QUEUE_MAX:
            self.close(AGAIN, "the agent does not read")
            return
        for message in messages:
            self._queue.put_nowait(message)

    async def next(self) -> object:
        return await self._queue.get()


@dataclass(frozen=True, slots=True)
class AgentDesk:
    """Where agents' connections are served: everything they need of the server."""

    control: ControlThread
    links: dict[NodeId, NodeLink]  # the controller's; changed on its thread only
    ingest: Ingest
    lease_ms: int
    now_ms: Callable[[], int]
    seen_ms: dict[NodeId, int]  # Unix time of the last message of each node
    artifacts: Artifacts
    last_words: LastWords
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    entered: dict[NodeId, int] = field(default_factory=dict)  # number of the newest connection of each node that said Hello

    async def serve(self, socket: WebSocket, check_name: Callable[[NodeId], None]) -> None:
        """One accepted and authenticated connection, until it ends. `check_name` raises Unauthorized for a node that it is not."""
        number = next(self.numbers)
        try:
            hello = await self._hello(socket)
            check_name(hello.shape.node)
        except (ValueError, TimeoutError, Unauthorized) as error:
            log.warning("agent_refused", error=str(error))
            await _close(socket, Close(POLICY, str(error) or "no hello came"))
            return
        except WebSocketDisconnect:
            return
        link = AgentLink(hello.shape.node, asyncio.get_running_loop(), number)
        log.info("agent_connected", node=link.node, attempts=len(hello.attempts), version=hello.version)
        try:
            await self._converse(socket, link, hello, check_name)
        finally:
            await self._leave(link)

    async def _hello(self, socket: WebSocket) -> Hello:
        async with asyncio.timeout(HELLO_S_MAX):
            message = await _receive(socket)
        if not isinstance(message, Hello):
            raise ValueError("the first message must be hello")
        if message.protocol != PROTOCOL:
            raise ValueError(f"protocol {message.protocol} is not {PROTOCOL}: upgrade the older of agent and server")
        if max(len(message.boot), len(message.version)) > TEXT_CHARS_MAX:
            raise ValueError(f"hello: boot or version of over {TEXT_CHARS_MAX} characters")
        check_shape(message.shape)
        for report in message.attempts:
            split_attempt(report.attempt)
        return message

    async def _converse(self, socket: WebSocket, link: AgentLink, hello: Hello, check_name: Callable[[NodeId], None]) -> None:
        """Reads, takes in and writes side by side until one of the three ends; then closes with its reason."""
        chunks: asyncio.Queue[Chunk | ArtifactSaved] = asyncio.Queue(CHUNKS_MAX)
        try:
            async with asyncio.TaskGroup() as group:
                await self._enter_or_end(link, hello, check_name)
                group.create_task(_send_all(socket, link))
                group.create_task(self._take_chunks(link, chunks))
                group.create_task(self._hear(socket, link, chunks))
        except* _Ended as ended:
            close = next(one.close for one in _flat(ended) if isinstance(one, _Ended))
            log.info("agent_left", node=link.node, code=close.code, reason=close.reason)
            await _close(socket, close)

    async def _enter_or_end(self, link: AgentLink, hello: Hello, check_name: Callable[[NodeId], None]) -> None:
        try:
            await self._enter(link, hello)
            check_name(link.node)  # again: whoever revokes closes the links there are, and this one is there only now
        except WorldError as error:
            raise _Ended(Close(AGAIN, str(error))) from error
        except (ValueError, Unauthorized) as error:
            raise _Ended(Close(POLICY, str(error))) from error

    async def _enter(self, link: AgentLink, hello: Hello) -> None:
        """The welcome is queued before the controller can use the link, so that it comes before every command."""
        acked = await self.ingest.acknowledged([report.attempt for report in hello.attempts])
        hello = replace(hello, attempts=await asyncio.to_thread(lambda: tuple(map(self.last_words.told, hello.attempts))))
        epoch = await self.control.call(lambda controller: controller.lead_above(hello.epoch_seen))
        link.say(Welcome(epoch, self.lease_ms, acked, UNDERSTOOD))

        self.seen_ms[link.node] = self.now_ms()

        def take_over(controller: Controller) -> NodeLink | None:
            """A Hello that was long on its way says less than the newer one: what it does not list may live."""
            if link.number < self.entered.get(link.node, 0):
                raise ValueError("hello: a newer connection of this node was there before")
            self.entered[link.node] = link.number
            older = self.links.get(link.node)
            self.links[link.node] = link
            controller.heard(link.node, hello)
            return older

        older = await self.control.change(take_over)
        if isinstance(older, AgentLink):
            older.close(REPLACED, "a newer connection of this node took over")

    async def _leave(self, link: AgentLink) -> None:
        link.close(REPLACED, "over")

        def forget(_: Controller) -> None:
            if self.links.get(link.node) is link:
                del self.links[link.node]

        await self.control.call(forget)

    async def _hear(self, socket: WebSocket, link: AgentLink, chunks: asyncio.Queue[Chunk | ArtifactSaved]) -> None:
        """A full queue of chunks holds back the reading, and so the agent."""
        while True:
            try:
                message = await _receive(socket)
            except WebSocketDisconnect as gone:
                raise _Ended(Close(gone.code, "the agent hung up")) from gone
            except ValueError as error:
                raise _Ended(Close(POLICY, str(error))) from error
            self.seen_ms[link.node] = self.now_ms()
            match message:
                case Chunk() | ArtifactSaved():
                    await chunks.put(message)
                case Renew(number):
                    if await self._heard(link, message):
                        link.say(Granted(number, self.lease_ms))
                case Activity(attempt):
                    if await self._heard(link, message):
                        link.say(await self._idle_word(attempt))
                case Report(report):
                    await self._heard(link, Report(await self._with_words(report)))
                    self.control.wake()
                case _:
                    raise _Ended(Close(POLICY, "hello was said already"))

    async def _with_words(self, report: AttemptReport) -> AttemptReport:
        """Files are read for the end of an attempt alone."""
        return await asyncio.to_thread(self.last_words.told, report) if report.phase == "ended" else self.last_words.told(report)

    async def _idle_word(self, attempt: AttemptId) -> IdleWord:
        return IdleWord(attempt, await self.control.call(lambda controller: controller.idle_left_ms(attempt)))

    async def _heard(self, link: AgentLink, message: Renew | Report | Activity) -> bool:
        """What a replaced connection still says is not heard, and no lease is granted to it: the newer one has said more."""

        def hear(controller: Controller) -> bool:
            current = self.links.get(link.node) is link
            if current:
                controller.heard(link.node, message)
            return current

        return await self.control.call(hear)

    async def _take_chunks(self, link: AgentLink, chunks: asyncio.Queue[Chunk | ArtifactSaved]) -> None:
        while True:
            chunk = await chunks.get()
            try:
                link.say(await self._taken(link.node, chunk))
            except (ValueError, UserError) as error:
                raise _Ended(Close(POLICY, str(error))) from error
            except WorldError as error:
                raise _Ended(Close(AGAIN, str(error))) from error

    async def _taken(self, node: NodeId, given: Chunk | ArtifactSaved) -> ChunkAck | ArtifactAck:
        return await (self.ingest.take(node, given) if isinstance(given, Chunk) else self.artifacts.take(node, given))


class _Ended(Exception):
    """A conversation is over, and why; ends the tasks beside the one that noticed."""

    def __init__(self, close: Close) -> None:
        super().__init__(close.reason)
        self.close = close


def _flat(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return [leaf for one in group.exceptions for leaf in (_flat(one) if isinstance(one, BaseExceptionGroup) else [one])]


async def _receive(socket: WebSocket) -> FromAgent:
    """One message. Raises WebSocketDisconnect, or ValueError for a frame that is none."""
    frame = await socket.receive()
    if frame["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(frame["code"], frame.get("reason"))
    text = frame.get("text")
    if text is None or len(text) > FRAME_BYTES_MAX:
        raise ValueError(f"send text frames of at most {FRAME_BYTES_MAX} bytes")
    message: FromAgent = wire.loads(FromAgent, text)
    return message


async def _send_all(socket: WebSocket, link: AgentLink) -> None:
    while True:
        message = await link.next()
        if isinstance(message, Close):
            raise _Ended(message)
        try:
            await socket.send_text(wire.dumps(ToAgent, message))
        except (WebSocketDisconnect, RuntimeError) as error:  # starlette says RuntimeError once a close was sent
            raise _Ended(Close(1006, "the connection broke")) from error


async def _close(socket: WebSocket, close: Close) -> None:
    """Says goodbye where somebody still listens. A close frame holds 123 bytes of reason."""
    if WebSocketState.DISCONNECTED in (socket.client_state, socket.application_state):
        return
    with contextlib.suppress(RuntimeError, WebSocketDisconnect, OSError):
        await socket.close(close.code, close.reason.encode()[:120].decode(errors="ignore"))
