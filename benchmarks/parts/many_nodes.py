"""Nodes that are connections: each says Hello, and asks for its lease again as an agent does. Run as a process of its own.

Usage: python many_nodes.py URL COUNT SECONDS, the node token on standard input. Its last line is one JSON object.
"""

import asyncio
import json
import sys
import time
from typing import Final

from websockets.asyncio.client import ClientConnection, connect

from phalanx.core import wire
from phalanx.core.devices import Device, NodeShape
from phalanx.core.ids import NodeId
from phalanx.core.messages import PROTOCOL, FromAgent, Granted, Hello, Renew, ToAgent, Welcome

GPUS: Final = 8
AT_ONCE: Final = 20
"""That greet at the same time: agents of a fleet do not start in one millisecond."""
HELLO_S_MAX: Final = 120.0


class Node:
    """renewals: how long each was answered after, in ms. missed: not answered before the next was due."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.renewals: list[float] = []
        self.missed = 0
        self._asked: dict[int, float] = {}

    async def run(self, address: str, token: str, gate: asyncio.Semaphore, up: asyncio.Queue[str], seconds: float) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        async with gate:
            socket = await connect(address, additional_headers=headers, proxy=None, open_timeout=HELLO_S_MAX)
            await socket.send(wire.dumps(FromAgent, self._hello()))
            welcome = wire.loads(ToAgent, await socket.recv())
        assert isinstance(welcome, Welcome)
        up.put_nowait(self.name)
        every_s = welcome.lease_ms / 3000
        async with socket:
            hearing = asyncio.create_task(self._hear(socket))
            end_s, number = time.monotonic() + seconds, 0
            while time.monotonic() < end_s:
                number += 1
                self._asked[number] = time.monotonic()
                await socket.send(wire.dumps(FromAgent, Renew(number)))
                await asyncio.sleep(every_s)
                self.missed += number in self._asked
            hearing.cancel()

    def _hello(self) -> Hello:
        devices = tuple(Device(index, "H100", "simulated", 80 * 2**30) for index in range(GPUS))
        shape = NodeShape(NodeId(self.name), "127.0.0.1", devices, 128.0, 2**40, (20_000, 20_064))
        return Hello(shape, "boot", PROTOCOL, "simulated", 0, ())

    async def _hear(self, socket: ClientConnection) -> None:
        async for text in socket:
            message = wire.loads(ToAgent, text)
            if isinstance(message, Granted) and (asked_s := self._asked.pop(message.number, None)) is not None:
                self.renewals.append(1000 * (time.monotonic() - asked_s))


async def main(url: str, count: int, seconds: float) -> None:
    token, gate, up = sys.stdin.readline().strip(), asyncio.Semaphore(AT_ONCE), asyncio.Queue[str]()
    address = f"ws{url.removeprefix('http')}/api/v1/agent"
    nodes = [Node(f"sim-{number:04d}") for number in range(count)]
    async with asyncio.TaskGroup() as group:
        for node in nodes:
            group.create_task(node.run(address, token, gate, up, seconds))
        for _ in nodes:
            await up.get()
        print("all are up", flush=True)
    answered = sorted(one for node in nodes for one in node.renewals)
    print(json.dumps({"renewals": len(answered), "missed": sum(node.missed for node in nodes), "longest_ms": answered[-1]}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
