"""Channels as the server has them: somebody's connection and an agent's, each handing on what the other says.

Nothing is kept of what goes by: a frame is taken from one end once the other has taken the one before.
"""

import asyncio
import contextlib
import json
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from starlette.websockets import WebSocket, WebSocketDisconnect

from phalanx.core.channels import (
    CHANNELS_PER_JOB,
    CHANNELS_PER_NODE,
    MESSAGE_BYTES_MAX,
    OPEN_S_MAX,
    REFUSED,
    ChannelAsked,
)
from phalanx.core.errors import Conflict, NotFound, ServerUnreachable, SpecError, StoreUnavailable, UserError
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.messages import OpenChannel
from phalanx.operate.control.agent_socket import AgentLink

REVOKED, TOO_BIG, GONE = 1008, 1009, 1011
ASK_S: Final = 1.0
"""So long somebody may go on in a job that they may not change any more."""

_KINDS: Final[dict[str, type[UserError]]] = {"rank": NotFound, "command": SpecError}
log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class Waiting:
    """A channel from its asking to its end. agent: its connection, once that has come. over: nobody needs that any more."""

    node: NodeId
    job: JobId
    agent: "asyncio.Future[WebSocket]"
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Channels:
    """Those that are open, or about to be. Used from the event loop alone."""

    def __init__(self) -> None:
        self._known: dict[str, Waiting] = {}

    def awaited(self, channel: str, node: NodeId | None) -> Waiting:
        """The one of that name, which that node is asked for (None is the home's own). Raises NotFound."""
        found = self._known.get(channel)
        if found is None or found.agent.done() or (node is not None and node != found.node):
            raise NotFound("channel", "(hidden)", "nobody waits for it, or not any more")
        return found

    def open_to(self, node: NodeId) -> int:
        return Counter(one.node for one in self._known.values())[node]

    async def reach(self, link: AgentLink, job: JobId, attempt: AttemptId, epoch: int, asked: ChannelAsked) -> "Reached":
        """Has the node's agent open its end. Raises the error that it says, Conflict where there are too many, ServerUnreachable
        when it does not come. Whoever gets it closes it."""
        mine = sum(one.job == job for one in self._known.values())
        if mine >= CHANNELS_PER_JOB or self.open_to(link.node) >= CHANNELS_PER_NODE:
            raise Conflict("job", job, f"has {mine} channels open, its node {self.open_to(link.node)}; close some first")
        name = secrets.token_hex(32)
        waiting = Waiting(link.node, job, asyncio.get_running_loop().create_future())
        self._known[name] = waiting
        try:
            link.say(OpenChannel(attempt, epoch, name, asked))
            async with asyncio.timeout(OPEN_S_MAX):
                agent = await waiting.agent
                first = await _first(agent)
        except TimeoutError as error:
            self._end(name, waiting)
            raise ServerUnreachable(f"the agent of node {link.node} did not open its end in {OPEN_S_MAX:g} s") from error
        except BaseException:
            self._end(name, waiting)
            raise
        return Reached(agent, first, lambda: self._end(name, waiting))

    def _end(self, name: str, waiting: Waiting) -> None:
        waiting.over.set()
        waiting.agent.cancel()
        self._known.pop(name, None)


class Reached:
    """An agent's end that is open. first: its first word, a text frame."""

    def __init__(self, agent: WebSocket, first: str, end: Any) -> None:
        self.agent, self.first, self.end = agent, first, end

    async def carry(self, person: WebSocket, may: Callable[[], Awaitable[bool]], ask_s: float = ASK_S) -> None:
        """Until one of them is over, or `may`, asked every `ask_s` seconds, says that the person may not be there any more; then
        both are closed."""
        await person.send_text(self.first)
        ways = (_hand_on(person, self.agent), _hand_on(self.agent, person), _asked_again(may, ask_s))
        sides = [asyncio.create_task(way) for way in ways]
        try:
            done, _ = await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
            code, reason = next(iter(done)).result()
        finally:
            for side in sides:
                side.cancel()
            await asyncio.gather(*sides, return_exceptions=True)
        for socket in (self.agent, person):
            with contextlib.suppress(RuntimeError, WebSocketDisconnect, OSError):
                await socket.close(code, reason)


async def _first(agent: WebSocket) -> str:
    """Raises the error that it is."""
    frame = await agent.receive()
    text = frame.get("text")
    if frame["type"] == "websocket.disconnect" or text is None:
        raise ServerUnreachable("the node's agent hung up before it had opened its end")
    refused = json.loads(text).get(REFUSED)
    if refused is None:
        return str(text)
    kind = _KINDS.get(refused["field"], Conflict)
    raise kind(refused["field"], refused["value"], refused["fix"])


async def _asked_again(may: Callable[[], Awaitable[bool]], ask_s: float) -> tuple[int, str]:
    """The code and reason with which it is over, once it is. A database that is away ends nothing: it is asked again."""
    while True:
        await asyncio.sleep(ask_s)
        try:
            if not await may():
                return REVOKED, "this token does not open it any more"
        except StoreUnavailable as error:
            log.warning("channel_not_asked", error=str(error))


async def _hand_on(source: WebSocket, sink: WebSocket) -> tuple[int, str]:
    """What comes from the one goes to the other; the code and reason with which it is over."""
    while True:
        frame = await source.receive()
        if frame["type"] == "websocket.disconnect":
            return (1000, "") if frame.get("code") in (1000, 1005) else (GONE, "the other end is gone")
        data: bytes | str = frame["bytes"] if frame.get("bytes") is not None else frame["text"]
        if len(data) > MESSAGE_BYTES_MAX:
            return TOO_BIG, f"send frames of at most {MESSAGE_BYTES_MAX} bytes"
        try:
            await (sink.send_bytes(data) if isinstance(data, bytes) else sink.send_text(data))
        except (WebSocketDisconnect, RuntimeError, OSError):
            return GONE, "the other end is gone"
