"""Ways into running attempts: for each that somebody asks for the agent dials a connection of its own, and carries its bytes.

Each way has its own flow: what is not read at one end is not read at the other, so a slow reader holds up nobody else and memory
holds some frames. A way that breaks ends nothing but itself.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from phalanx.core.channels import (
    CHANNELS_PER_JOB,
    CHANNELS_PER_NODE,
    DATA_BYTES_MAX,
    END,
    INPUT,
    MESSAGE_BYTES_MAX,
    NOTEBOOK,
    OPENED,
    OUT,
    REFUSED,
    NotebookPlace,
)
from phalanx.core.errors import Conflict, UserError
from phalanx.core.ids import AttemptId
from phalanx.core.messages import OpenChannel
from phalanx.operate.agent.terminal import frames
from phalanx.operate.agent.together import cancelled

CLOSE_S_MAX: Final = 2.0
_log = structlog.get_logger()
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True)
class Traffic:
    """Of a port of an attempt, 0 of commands beside it: connections that are open, and when a byte last went over one."""

    open: int = 0
    last_s: float = 0.0


class Ends:
    """Where a way may lead to on this node; made by `reached.Reached`. Each raises UserError when it does not lead there."""

    async def terminal(self, command: OpenChannel) -> Streams:
        raise NotImplementedError

    async def beside(self, command: OpenChannel) -> Streams:
        raise NotImplementedError

    async def port(self, command: OpenChannel) -> Streams:
        raise NotImplementedError

    async def notebook(self, command: OpenChannel) -> NotebookPlace:
        raise NotImplementedError


class Ways:
    """All that are open. `url` and `token` as for the agent's own connection."""

    def __init__(self, url: Callable[[], str | None], token: str, ends: Ends) -> None:
        self._url, self._token, self._ends = url, token, ends
        self._open: dict[asyncio.Task[None], AttemptId] = {}
        self.traffic: dict[tuple[AttemptId, int], Traffic] = {}

    def open(self, command: OpenChannel) -> None:
        """Begins it; what becomes of it is said over it."""
        task = asyncio.create_task(self._run(command))
        self._open[task] = command.attempt
        task.add_done_callback(lambda done: self._open.pop(done, None))

    def close(self) -> list["asyncio.Task[None]"]:
        return list(self._open)

    def drop(self, attempt: AttemptId) -> None:
        """It is forgotten here."""
        for key in [key for key in self.traffic if key[0] == attempt]:
            del self.traffic[key]

    def _refuse_many(self, attempt: AttemptId) -> None:
        mine = sum(one == attempt for one in self._open.values())
        if mine > CHANNELS_PER_JOB or len(self._open) > CHANNELS_PER_NODE:
            raise Conflict("job", attempt, f"has {mine - 1} ways into it open, its node {len(self._open) - 1}; close some first")

    async def _run(self, command: OpenChannel) -> None:
        url = self._url()
        if url is None:
            return
        address = f"ws{url.removeprefix('http').rstrip('/')}/api/v1/agent/channels/{command.channel}"
        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            async with connect(
                address, additional_headers=headers, max_size=MESSAGE_BYTES_MAX, max_queue=2, close_timeout=CLOSE_S_MAX,
                proxy=None, compression=None, ping_interval=None,
            ) as socket:  # fmt: skip
                await self._serve(command, socket)
        except ConnectionClosed:
            pass
        except (OSError, WebSocketException, TimeoutError) as error:
            _log.warning("way_not_opened", attempt=command.attempt, what=command.asked.what, error=str(error))

    async def _serve(self, command: OpenChannel, socket: ClientConnection) -> None:
        try:
            self._refuse_many(command.attempt)
            if command.asked.what == "notebook":
                found = await self._ends.notebook(command)
                await _tell(socket, {NOTEBOOK: {"port": found.port, "token": found.token, "path": found.path}})
                return
            opener = {"attach": self._ends.terminal, "exec": self._ends.beside, "forward": self._ends.port}[command.asked.what]
            streams = await opener(command)
        except UserError as error:
            await _tell(socket, {REFUSED: {"field": error.field, "value": str(error.value), "fix": error.fix}})
            return
        try:
            await _tell(socket, {OPENED: True})
            if command.asked.what == "forward":
                await self._forward(command, socket, streams)
            else:
                traffic = self._traffic(command.attempt, 0) if command.asked.what == "exec" else Traffic()
                traffic.open += 1
                try:
                    await _both(_to_holder(socket, streams[1], traffic), _from_holder(streams[0], socket, traffic))
                finally:
                    traffic.open -= 1
        finally:
            streams[1].close()
            with contextlib.suppress(OSError):
                await streams[1].wait_closed()

    def _traffic(self, attempt: AttemptId, port: int) -> Traffic:
        found = self.traffic.setdefault((attempt, port), Traffic())
        found.last_s = time.monotonic()
        return found

    async def _forward(self, command: OpenChannel, socket: ClientConnection, streams: Streams) -> None:
        traffic = self._traffic(command.attempt, command.asked.port)
        traffic.open += 1
        try:
            over = asyncio.Event()
            await _both(_up(socket, streams[1], traffic, over), _down(streams[0], socket, traffic, over))
        finally:
            traffic.open -= 1
            traffic.last_s = time.monotonic()


async def _both(*sides: Awaitable[None]) -> None:
    """Until one side is over."""
    tasks = [asyncio.ensure_future(side) for side in sides]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancelled(tasks)


async def _tell(socket: ClientConnection, message: dict[str, Any]) -> None:
    await socket.send(json.dumps(message))


async def _to_holder(socket: ClientConnection, writer: asyncio.StreamWriter, traffic: Traffic) -> None:
    async for message in socket:
        traffic.last_s = time.monotonic()
        if isinstance(message, str):
            writer.write(frames.frame(frames.CONTROL, message.encode()))
        elif message:
            writer.write(frames.frame(message[0], message[1:]))
        await writer.drain()


async def _from_holder(reader: asyncio.StreamReader, socket: ClientConnection, traffic: Traffic) -> None:
    while True:
        try:
            stream, length = frames.HEADER.unpack(await reader.readexactly(frames.HEADER.size))
            data = await reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            return
        traffic.last_s = time.monotonic()
        await socket.send(data.decode() if stream == frames.CONTROL else bytes((stream,)) + data)


async def _up(socket: ClientConnection, writer: asyncio.StreamWriter, traffic: Traffic, over: asyncio.Event) -> None:
    """Until the person's end is gone; half-closed it is not. `over`: nothing more comes from there. Raises OSError once the job's
    end is gone."""
    async for message in socket:
        if isinstance(message, bytes):
            if message[:1] == bytes((INPUT,)):
                traffic.last_s = time.monotonic()
                writer.write(message[1:])
                await writer.drain()
        elif json.loads(message) == {END: INPUT}:
            writer.write_eof()
            over.set()


async def _down(reader: asyncio.StreamReader, socket: ClientConnection, traffic: Traffic, over: asyncio.Event) -> None:
    """Until the job's end says no more and hears no more."""
    while data := await reader.read(DATA_BYTES_MAX):
        traffic.last_s = time.monotonic()
        await socket.send(bytes((OUT,)) + data)
    await _tell(socket, {END: OUT})
    await over.wait()
