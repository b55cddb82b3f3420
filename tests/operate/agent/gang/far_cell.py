"""A gang of two shims, each standing for a node, that meet over TCP; and a wire between them that can be cut."""

import contextlib
import json
import os
import select
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from phalanx.core.timeouts import Timeouts
from phalanx.operate.agent.launch_env import GangPlace
from tests.operate.agent.gang.test_gang_shim import PROGRAM, GangOrder
from tests.ports import free_port

NODE_TOKEN = "n" * 64
PATIENT = Timeouts(beat_ms=50, silent_ms=500, node_ms=30_000, gather_ms=40_000, kill_ms=40_000, hang_ms=30_000, form_ms=60_000)
HASTY = replace(PATIENT, node_ms=8_000)
SOON = replace(PATIENT, silent_ms=3_500, hang_ms=5_000)
"""No shorter: a busy machine stalls a healthy process for seconds, which must not be taken for lost or for hung."""


class NodeOrder(GangOrder):
    """One node's part of a gang with a rank on each of two nodes."""

    def __init__(self, folder: Path, node: int, port: int, times: Timeouts, sizes: tuple[int, ...], **env: str) -> None:
        super().__init__(folder, PROGRAM, 1, 1)
        path = folder / "shim.json"
        order = json.loads(path.read_bytes())
        place = GangPlace(folder / "gang", os.urandom(8).hex(), 1, times, (0, 1), node, ("127.0.0.1", port, NODE_TOKEN), sizes)
        order["gang"] = place.order()
        (entry,) = order["ranks"]
        entry |= {"argv": [sys.executable, PROGRAM], "rank": node, "log": str(folder / f"rank-{node}.log")}
        entry["env"] |= {"RANK": str(node), "LOCAL_RANK": "0", "LAST": "2"} | env | place.env(node)
        path.write_text(json.dumps(order))


class Wire:
    """A TCP port that leads to another one, unless it is cut. Cut, it breaks what there is, and lets nobody through."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._cut = threading.Event()
        self._mute = threading.Event()
        self._closed = threading.Event()
        self.carried = 0
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        self._cut.set()

    def mute(self) -> None:
        """Connections stand, and nothing comes through: as where packets are dropped."""
        self._mute.set()

    def heal(self) -> None:
        self._cut.clear()
        self._mute.clear()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self._server.close()

    def _carry(self) -> None:
        while not self._closed.is_set():
            if self._cut.is_set():
                self._break()
            ends = {one: other for pair in self._pairs for one, other in (pair, pair[::-1])}
            readable, _, _ = select.select([self._server, *([] if self._mute.is_set() else ends)], [], [], 0.02)
            for one in readable:
                if one is self._server:
                    self._accept()
                else:
                    self._pass(one, ends[one])
        self._break()

    def _accept(self) -> None:
        came = self._server.accept()[0]
        if self._cut.is_set():
            came.close()
            return
        try:
            self._pairs.append((came, socket.create_connection(("127.0.0.1", self._to))))
        except OSError:
            came.close()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        try:
            got = one.recv(65_536)
            if got:
                other.sendall(got)
                self.carried += len(got)
                return
        except OSError:
            pass
        self._pairs = [pair for pair in self._pairs if one not in pair]
        one.close()
        other.close()

    def _break(self) -> None:
        for one, other in self._pairs:
            one.close()
            other.close()
        self._pairs.clear()


@contextlib.contextmanager
def two_nodes(
    folder: Path, times: Timeouts = PATIENT, sizes: tuple[int, ...] = (), **env: str
) -> Iterator[tuple[NodeOrder, NodeOrder, Wire]]:
    """Both started. What is left of them is killed at the end."""
    port = free_port()
    wire = Wire(port)
    orders = NodeOrder(folder / "a", 0, port, times, sizes, **env), NodeOrder(folder / "b", 1, wire.port, times, sizes, **env)
    try:
        for order in reversed(orders):  # the other node may well be there first
            order.start()
        yield *orders, wire
    finally:
        for order in orders:
            if order.process is not None and order.process.poll() is None:
                order.process.kill()
                order.process.wait()
        wire.close()
