"""Where the agent looks for the one that leads: several addresses in turn, and away from one that hangs."""

import asyncio
from random import Random
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from phalanx.core import wire
from phalanx.core.devices import NodeShape
from phalanx.core.ids import NodeId
from phalanx.core.messages import PROTOCOL, Hello, ToAgent, Welcome
from phalanx.operate.agent.connection import Connection, Listed

SHAPE = NodeShape(NodeId("a"), "127.0.0.1", (), 1.0, 1, (30000, 30100))


class Dialled:
    """An agent's connection, and the servers that it said Hello to, in order."""

    def __init__(self, url: Any) -> None:
        self.epochs: asyncio.Queue[int] = asyncio.Queue()
        self._url = url

    async def run(self) -> None:
        async def hello() -> Hello:
            return Hello(SHAPE, "boot", PROTOCOL, "test", 0, ())

        async def heard(message: Any) -> None:
            if isinstance(message, Welcome):
                self.epochs.put_nowait(message.epoch)

        async def nothing() -> None:
            return None

        await Connection(self._url, "t" * 43, hello, heard, nothing, Random(1)).run()


async def welcoming(epoch: int, hangs: bool = False) -> Any:
    async def handle(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(wire.dumps(ToAgent, Welcome(epoch, 15_000, {})))
        if hangs:  # the connection stands, and nobody speaks on it
            await asyncio.Event().wait()

    return await serve(handle, "127.0.0.1", 0)


def url_of(server: Any) -> str:
    return f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


def test_a_connection_to_one_that_hangs_is_left_once_another_says_where_it_is() -> None:
    async def scenario() -> list[int]:
        old, new = await welcoming(1, hangs=True), await welcoming(2, hangs=True)
        place = [url_of(old)]
        dialled = Dialled(lambda: place[0])
        running = asyncio.create_task(dialled.run())
        found = [await dialled.epochs.get()]
        place[0] = url_of(new)
        found.append(await dialled.epochs.get())
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for server in (old, new):
            server.close(close_connections=True)
        return found

    assert asyncio.run(scenario()) == [1, 2]


@pytest.mark.parametrize("leads", [0, 1])
def test_of_several_addresses_the_one_that_leads_is_found(leads: int) -> None:
    async def scenario() -> int:
        gone, here = await welcoming(1), await welcoming(2, hangs=True)
        urls = [url_of(gone), url_of(here)]
        gone.close()
        await gone.wait_closed()
        dialled = Dialled(Listed(urls if leads else urls[::-1]))
        running = asyncio.create_task(dialled.run())
        found = await dialled.epochs.get()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        here.close(close_connections=True)
        return found

    assert asyncio.run(scenario()) == 2
